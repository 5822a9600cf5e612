"""Pixels as an input: uint8 pictures, for files that scale and normalise by themselves.

The reference of such a file is the model behind the same arithmetic in numpy, so that what a file
does inside is proved against what the loader does outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from vitpe_deploy.errors import UsageError
from vitpe_deploy.inputs import SEEDS, ImageInput, InputLayout, picture_batches, pictures_have_size
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import Dynamic, Resolution, closest

if TYPE_CHECKING:
    import numpy.typing as npt

    from vitpe_deploy.parity import Outputs, Reference

    Array: TypeAlias = npt.NDArray[Any]

ORDERS = ("nhwc", "nchw")
"""Orders of dimensions: channels last, as cameras and decoders give them, or first."""


@dataclass(frozen=True, slots=True)
class PixelInput(InputLayout):
    """Pictures in uint8, RGB or grey: [B, H, W, C] or [B, C, H, W]."""

    kind: ClassVar[str] = "pixels"
    name: ClassVar[str] = "pixels"
    dtype: ClassVar[str] = "uint8"

    channels: int = 3
    order: str = "nhwc"

    def shape(self, size: Resolution, batch: int) -> tuple[int, ...]:
        """[B, H, W, C] or [B, C, H, W]."""
        if self.order == "nhwc":
            return (batch, size.height, size.width, self.channels)
        return (batch, self.channels, size.height, size.width)

    def size_axes(self) -> Mapping[int, str]:
        """Height and width."""
        first = 1 if self.order == "nhwc" else 2
        return {first: "height", first + 1: "width"}

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
        """Noise of all 256 values, a structured picture, and the pictures of a folder."""
        import numpy as np

        from vitpe_deploy.images import fit_pixels

        height, width = size.height, size.width
        shape = (batch, height, width, 3)
        inputs = [
            np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
            for seed in range(seeds)
        ]
        for pictures in picture_batches(
            size, batch, images, lambda p: fit_pixels(p, height, width, preprocess)
        ):
            inputs.append(np.stack(pictures))
        return tuple(self.from_pictures(x) for x in inputs)

    def from_pictures(self, pictures: Array) -> Array:
        """[B, H, W, 3] as the file takes it; a grey file reads the first channel."""
        import numpy as np

        kept = pictures[..., : self.channels]
        return np.ascontiguousarray(kept if self.order == "nhwc" else kept.transpose(0, 3, 1, 2))

    def holds(self, array: Array, size: Resolution | None) -> bool:
        """Whether an array is an input already, and not pictures that have yet to be resized.

        Where sizes are symbolic and channels are last, nothing tells them apart: those are
        pictures.
        """
        if array.ndim != 4 or array.dtype != self.dtype:
            return False
        if size is not None:
            return bool(array.shape[1:] == self.shape(size, 1)[1:])
        return self.order == "nchw" and array.shape[1] == self.channels

    def to_values(self, pixels: Array, preprocess: Preprocess) -> Array:
        """What the model behind it reads: float32 [B, C, H, W]."""
        import numpy as np

        from vitpe_deploy.images import normalise

        last = pixels if self.order == "nhwc" else pixels.transpose(0, 2, 3, 1)
        values = normalise(np.repeat(last, 3 // self.channels, axis=-1), preprocess)
        return np.ascontiguousarray(values[..., : self.channels].transpose(0, 3, 1, 2))


def pixel_input(layout: InputLayout, order: str) -> PixelInput:
    """The pixels of a model that reads pictures.

    Raises:
        UsageError: it reads something else, or the order does not exist.
    """
    if order not in ORDERS:
        raise UsageError(
            f"--pixel-order {order!r} is not known",
            hint=f"{closest(order, ORDERS)}Choose from: {', '.join(ORDERS)}.",
        )
    if not isinstance(layout, ImageInput) or layout.channels not in (1, 3):
        what = f"{layout.channels} channels" if isinstance(layout, ImageInput) else layout.kind
        raise UsageError(
            f"--embed-preprocess is for pictures of 1 or 3 channels, this model reads {what}",
            hint="Leave it out.",
        )
    return PixelInput(layout.channels, order)


class PixelReference:
    """A reference behind the preprocessing, for files that take pixels."""

    def __init__(self, inner: Reference, layout: PixelInput, preprocess: Preprocess) -> None:
        self._inner = inner
        self._layout = layout
        self._preprocess = preprocess

    def outputs(
        self, size: Resolution, inputs: Sequence[Array], names: Sequence[str]
    ) -> list[Outputs]:
        """The inner reference on normalised pixels."""
        values = [self._layout.to_values(x, self._preprocess) for x in inputs]
        return self._inner.outputs(size, values, names)


def reference_for(layout: InputLayout, preprocess: Preprocess, inner: Reference) -> Reference:
    """``inner``, which takes what the model takes, on what a file with ``layout`` takes."""
    if isinstance(layout, PixelInput):
        return PixelReference(inner, layout, preprocess)
    return inner
