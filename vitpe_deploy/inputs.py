"""What a network takes: pictures, clips or token ids; one class each.

A layout knows the shape of an input, which of its axes may be symbolic, and how to make inputs
that prove something. A *size* is a :class:`~vitpe_deploy.request.Resolution` in pixels; for text,
whose positions lie on a grid of one row, it is ``1 x length``. Nothing here imports torch or an
engine, and numpy only to make inputs.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import Dynamic, Resolution

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]

SEEDS = 3
"""Random batches per case; structured inputs and the user's images come on top."""


class InputLayout(ABC):
    """One kind of input."""

    kind: ClassVar[str]
    name: ClassVar[str]
    """Name of the input in the file."""

    dtype: ClassVar[str]

    @abstractmethod
    def shape(self, size: Resolution, batch: int) -> tuple[int, ...]:
        """Shape of a batch of inputs of one size."""

    @abstractmethod
    def size_axes(self) -> Mapping[int, str]:
        """Axes that the size decides, with the names they have in the file."""

    @abstractmethod
    def has_symbolic_size(self, dynamic: Dynamic) -> bool:
        """Whether the size stays symbolic under ``--dynamic``.

        Raises:
            UsageError: this kind of input has no such dimension.
        """

    @abstractmethod
    def arrays(
        self,
        size: Resolution,
        batch: int,
        *,
        preprocess: Preprocess,
        images: Path | None = None,
        seeds: int = SEEDS,
    ) -> tuple[Array, ...]:
        """Batches of inputs for a comparison; no two items of a batch are alike."""

    def symbolic_axes(self, dynamic: Dynamic) -> Mapping[int, str]:
        """Symbolic axes of the input with their names."""
        axes = {0: "batch"} if dynamic.batch else {}
        return {**axes, **self.size_axes()} if self.has_symbolic_size(dynamic) else axes

    def label(self, size: Resolution) -> str:
        """How file names and messages write a size."""
        return str(size)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; :func:`layout_from_dict` gives the same layout back."""
        return {"kind": self.kind, **dataclasses.asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class ImageInput(InputLayout):
    """Pictures [B, C, H, W] in float32."""

    kind: ClassVar[str] = "image"
    name: ClassVar[str] = "pixel_values"
    dtype: ClassVar[str] = "float32"

    channels: int = 3

    def shape(self, size: Resolution, batch: int) -> tuple[int, ...]:
        """[B, C, H, W]."""
        return (batch, self.channels, size.height, size.width)

    def size_axes(self) -> Mapping[int, str]:
        """Height and width."""
        return {2: "height", 3: "width"}

    def has_symbolic_size(self, dynamic: Dynamic) -> bool:
        """Under ``size`` and ``all``."""
        return pictures_have_size(dynamic)

    def arrays(
        self,
        size: Resolution,
        batch: int,
        *,
        preprocess: Preprocess,
        images: Path | None = None,
        seeds: int = SEEDS,
    ) -> tuple[Array, ...]:
        """Noise, a structured picture, and the pictures of a folder."""
        import numpy as np

        from vitpe_deploy.images import noise, prepare

        height, width = size.height, size.width
        inputs = [noise(seed, batch, height, width) for seed in range(seeds)]
        for pictures in picture_batches(
            size, batch, images, lambda p: prepare(p, height, width, preprocess)
        ):
            inputs.append(np.stack(pictures))
        return tuple(_with_channels(x, self.channels) for x in inputs)


@dataclass(frozen=True, slots=True)
class VideoInput(InputLayout):
    """Clips in float32; the number of frames belongs to the model.

    Attributes:
        frames_first: whether a clip is [B, T, C, H, W], as transformers reads it; else
            [B, C, T, H, W].
    """

    kind: ClassVar[str] = "video"
    name: ClassVar[str] = "pixel_values"
    dtype: ClassVar[str] = "float32"

    channels: int = 3
    frames: int = 16
    frames_first: bool = False

    def shape(self, size: Resolution, batch: int) -> tuple[int, ...]:
        """[B, C, T, H, W] or [B, T, C, H, W]."""
        inner = (self.channels, self.frames)
        return (batch, *(inner[::-1] if self.frames_first else inner), size.height, size.width)

    def size_axes(self) -> Mapping[int, str]:
        """Height and width."""
        return {3: "height", 4: "width"}

    def has_symbolic_size(self, dynamic: Dynamic) -> bool:
        """Under ``size`` and ``all``."""
        return pictures_have_size(dynamic)

    def arrays(
        self,
        size: Resolution,
        batch: int,
        *,
        preprocess: Preprocess,
        images: Path | None = None,
        seeds: int = SEEDS,
    ) -> tuple[Array, ...]:
        """Noise and pictures, each picture moved from frame to frame."""
        import numpy as np

        stills = ImageInput(self.channels).arrays(
            size, batch, preprocess=preprocess, images=images, seeds=0
        )
        axis = 1 if self.frames_first else 2
        moved = [
            np.stack([np.roll(x, 3 * t, axis=-1) for t in range(self.frames)], axis=axis)
            for x in stills
        ]
        shape = self.shape(size, batch)
        noise = [
            np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
            for seed in range(seeds)
        ]
        return (*noise, *moved)


@dataclass(frozen=True, slots=True)
class TextInput(InputLayout):
    """Token ids [B, L] in int64, L at most ``max_length``.

    Attributes:
        end_token_id: where a text ends; None when that is its highest id.
    """

    kind: ClassVar[str] = "text"
    name: ClassVar[str] = "input_ids"
    dtype: ClassVar[str] = "int64"

    vocab_size: int
    max_length: int
    end_token_id: int | None = None

    def shape(self, size: Resolution, batch: int) -> tuple[int, ...]:
        """[B, L]."""
        return (batch, size.width)

    def size_axes(self) -> Mapping[int, str]:
        """The length."""
        return {1: "length"}

    def has_symbolic_size(self, dynamic: Dynamic) -> bool:
        """Under ``length`` and ``all``."""
        if dynamic is Dynamic.SIZE:
            raise UsageError(
                "--dynamic size is for pictures, this model reads text",
                hint="Use --dynamic length, batch or all.",
            )
        return dynamic in (Dynamic.LENGTH, Dynamic.ALL)

    def arrays(
        self,
        size: Resolution,
        batch: int,
        *,
        preprocess: Preprocess,
        images: Path | None = None,
        seeds: int = SEEDS,
    ) -> tuple[Array, ...]:
        """Random words; the end token stands at another place in every text, padding after it.

        A single token is a word: texts of nothing but the end token are all alike.
        """
        import numpy as np

        del preprocess
        if images is not None:
            raise UsageError("--images has no meaning for a text tower", hint="Leave it out.")
        end = self.vocab_size - 1 if self.end_token_id is None else self.end_token_id
        length, batches = size.width, []
        for seed in range(seeds + 1):
            generator = np.random.default_rng(seed)
            ids = generator.integers(1, max(self.vocab_size - 1, 2), (batch, length))
            ids[ids == end] = 1
            for item in range(batch if length > 1 else 0):
                place = int(generator.integers(0, length))
                ids[item, place] = end
                ids[item, place + 1 :] = 0
            batches.append(ids.astype(np.int64))
        return tuple(batches)

    def label(self, size: Resolution) -> str:
        """``len77``."""
        return f"len{size.width}"


_LAYOUTS: Mapping[str, type[InputLayout]] = {
    layout.kind: layout for layout in (ImageInput, VideoInput, TextInput)
}


def layout_from_dict(document: Mapping[str, Any]) -> InputLayout:
    """From :meth:`InputLayout.as_dict`.

    Raises:
        ArtifactError: no such layout.
    """
    from vitpe_deploy.pixels import PixelInput

    fields = dict(document)
    kind = str(fields.pop("kind", None))
    try:
        return (PixelInput if kind == PixelInput.kind else _LAYOUTS[kind])(**fields)
    except (KeyError, TypeError) as problem:
        raise ArtifactError(f"the manifest describes no known input: {dict(document)}") from problem


def pictures_have_size(dynamic: Dynamic) -> bool:
    """Whether height and width stay symbolic.

    Raises:
        UsageError: ``--dynamic length``.
    """
    if dynamic is Dynamic.LENGTH:
        raise UsageError(
            "--dynamic length is for text towers, this model takes pictures",
            hint="Use --dynamic size, batch or all.",
        )
    return dynamic.size


def picture_batches(
    size: Resolution, batch: int, images: Path | None, prepare: Callable[[Array], Array]
) -> Iterator[list[Array]]:
    """A structured picture moved from item to item, then the pictures of a folder.

    Args:
        size: of the structured picture.
        batch: items of each list; the last is filled up with the first pictures.
        images: the folder, or nothing.
        prepare: makes an item of a picture [H, W, 3] in uint8.
    """
    import numpy as np

    from vitpe_deploy.images import list_images, load_image, structured_image

    picture = structured_image(size.height, size.width)
    yield [prepare(np.roll(picture, (7 * k, 13 * k), axis=(0, 1))) for k in range(batch)]
    photos = [] if images is None else [prepare(load_image(p)) for p in list_images(images)]
    for start in range(0, len(photos), batch):
        yield [photos[(start + k) % len(photos)] for k in range(batch)]


def _with_channels(x: Array, channels: int) -> Array:
    """Three colour channels repeated or cut to what the model reads."""
    import numpy as np

    repeats = -(-channels // x.shape[1])
    return np.ascontiguousarray(np.tile(x, (1, repeats, 1, 1))[:, :channels])
