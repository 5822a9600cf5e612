"""What a user has in hand, as the input that a file takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.images import fit_pixels, image_size, load_image, prepare, resize_values
from vitpe_deploy.inputs import ImageInput, InputLayout
from vitpe_deploy.pixels import PixelInput
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import Resolution

if TYPE_CHECKING:
    Array: TypeAlias = npt.NDArray[Any]

Picture: TypeAlias = "str | Path | Image.Image | npt.NDArray[np.uint8]"


def is_picture(item: object) -> bool:
    """Whether something is one picture: a path, a Pillow image, or uint8 [H, W, 3]."""
    if isinstance(item, (str, Path, Image.Image)):
        return True
    return isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 3


def picture_size(picture: Any) -> tuple[int, int]:
    """Height and width of one picture as it should be seen, without decoding a file's pixels.

    Raises:
        UsageError: not a picture, or no such file.
        ArtifactError: not a picture that can be read.
    """
    if isinstance(picture, (str, Path)):
        return image_size(Path(picture))
    pixels = _pixels(picture)
    return pixels.shape[0], pixels.shape[1]


def pictures_to_batch(
    pictures: Sequence[Any], size: Resolution, layout: InputLayout, preprocess: Preprocess
) -> Array:
    """Pictures through the stored preprocessing, as one batch.

    Gives ``[B, C, H, W]`` in float32, or pixels where the file normalises them by itself. A model
    of one channel gets their luminance.

    Raises:
        UsageError: the model does not read pictures, or an item is not one.
    """
    if isinstance(layout, PixelInput):
        grey = layout.channels == 1
        pixels = [_grey(_pixels(p)) if grey else _pixels(p) for p in pictures]
        return layout.from_pictures(
            np.stack([fit_pixels(p, size.height, size.width, preprocess) for p in pixels])
        )
    if not isinstance(layout, ImageInput):
        raise UsageError(
            f"this model takes {layout.kind} input, not pictures",
            hint=f"Pass an array {layout.name} of the shape that its manifest lists.",
        )
    if layout.channels not in (1, 3):
        raise UsageError(
            f"this model reads {layout.channels} channels, pictures have 3",
            hint="Pass a float32 array [B, C, H, W].",
        )
    grey = layout.channels == 1
    pixels = [_grey(_pixels(p)) if grey else _pixels(p) for p in pictures]
    prepared = [prepare(p, size.height, size.width, preprocess) for p in pixels]
    return np.ascontiguousarray(np.stack(prepared)[:, : layout.channels])


def _grey(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """``[H, W, 3]`` -> its luminance in all three channels."""
    return np.array(Image.fromarray(pixels).convert("L").convert("RGB"))


def _pixels(picture: Any) -> npt.NDArray[np.uint8]:
    """``[H, W, 3]`` of one picture."""
    if isinstance(picture, (str, Path)):
        return load_image(Path(picture))
    if isinstance(picture, Image.Image):
        return np.array(picture.convert("RGB"), dtype=np.uint8)
    if is_picture(picture) and picture.shape[2] == 3:
        return picture  # type: ignore[no-any-return]
    described = (
        f"{picture.dtype} {list(picture.shape)}"
        if isinstance(picture, np.ndarray)
        else type(picture).__name__
    )
    raise UsageError(
        f"a picture cannot be {described}",
        hint="Give a path, a Pillow image, or a uint8 array [H, W, 3].",
    )


def values_to_batch(
    values: Array,
    size: Resolution | None,
    layout: InputLayout,
    preprocess: Preprocess,
    resize: bool,
) -> Array:
    """An array that is prepared already, in the dtype and at the size that the file takes.

    ``size`` is the one size of a static file, None where sizes are symbolic.

    Raises:
        SizeError: another size; the message names both.
        UsageError: an array of another rank, number of channels, or kind of number.
    """
    one = layout.shape(size or Resolution(1, 1), 1)
    if values.ndim == len(one) - 1:
        values = values[None]
    if values.ndim != len(one):
        raise UsageError(
            f"an array of shape {list(values.shape)} does not fit, {layout.name} has "
            f"{len(one)} dimensions",
            hint=f"Give {list(one)} with any batch.",
        )
    kinds = {"i": "iu", "u": "u"}.get(np.dtype(layout.dtype).kind, "f")
    if values.dtype.kind not in kinds:
        raise UsageError(
            f"{layout.name} is {values.dtype}, the model takes {layout.dtype}",
            hint="Pictures are uint8 [H, W, 3]; prepared inputs are float32 [B, C, H, W]."
            if kinds == "f"
            else ("Give pixels from 0 to 255 in uint8." if kinds == "u" else "Give token ids."),
        )
    sides = tuple(layout.size_axes())
    for axis in range(1, values.ndim):
        if axis not in sides and values.shape[axis] != one[axis]:
            raise UsageError(
                f"{layout.name} has shape {list(values.shape)}, the model takes {list(one)}",
                hint="Only the batch is free.",
            )
    if size is not None:
        got = tuple(values.shape[axis] for axis in sides)
        wanted = tuple(one[axis] for axis in sides)
        if got != wanted:
            values = _resized(values, size, layout, preprocess, resize, got, wanted)
    return np.ascontiguousarray(values, dtype=layout.dtype)


def _resized(
    values: Array,
    size: Resolution,
    layout: InputLayout,
    preprocess: Preprocess,
    allowed: bool,
    got: tuple[int, ...],
    wanted: tuple[int, ...],
) -> Array:
    """At the size of the file, where that was allowed and pictures are read."""
    pictures = isinstance(layout, ImageInput)
    if not allowed or not pictures:
        raise SizeError(
            f"this file takes {'x'.join(map(str, wanted))}, got {'x'.join(map(str, got))}",
            hint="Feed that size, or pass resize=True (vitpe-run --resize) to have it resampled."
            if pictures
            else "Feed that size.",
        )
    return resize_values(values, size.height, size.width, preprocess.interpolation)
