"""Pictures in, model inputs out, with numpy and Pillow alone.

Parity needs pictures because noise is too easy: on N(0,1) pixels every patch looks alike, and a
table that was transposed or shifted moves the outputs less than on a picture with structure.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.preprocess import Preprocess as Preprocess

MAX_PIXELS = 128_000_000
"""Larger pictures are refused before they are decoded: a small file can claim any size."""

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})

_EXIF_ORIENTATION = 0x0112
_EXIF_TURNED = range(5, 9)
"""Orientations that swap height and width."""

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def structured_image(height: int, width: int) -> npt.NDArray[np.uint8]:
    """A procedural test picture, the same on every machine.

    Each quadrant holds something else, so that no flip, transpose or shift leaves the picture
    alike: top left a diagonal colour gradient, top right discs with sharp edges, bottom left bars
    that get finer downwards, bottom right a fine two-scale texture.

    Returns:
        ``[height, width, 3]``.
    """
    if height < 1 or width < 1:
        raise UsageError(
            f"a picture must be at least 1x1, got {height}x{width}", hint="Give a size in pixels."
        )
    y = ((np.arange(height) + 0.5) / height)[:, None]  # [H, 1], 0..1
    x = ((np.arange(width) + 0.5) / width)[None, :]  # [1, W], 0..1

    # A slow background everywhere, so that no region is flat.
    red = 0.25 + 0.5 * x + 0.15 * np.sin(7.0 * y + 3.0 * x)
    green = 0.70 - 0.5 * y + 0.20 * np.sin(5.0 * x * (1 + y))
    blue = 0.40 + 0.3 * np.cos(4.0 * y - 9.0 * x) + 0.1 * x
    picture = np.stack([red, green, blue], axis=-1)  # [H, W, 3]

    for centre_y, centre_x, radius, colour in (
        (0.17, 0.63, 0.13, (0.95, 0.15, 0.10)),
        (0.34, 0.86, 0.10, (0.05, 0.85, 0.90)),
        (0.12, 0.90, 0.05, (0.98, 0.95, 0.20)),
    ):
        inside = (y - centre_y) ** 2 + (x - centre_x) ** 2 < radius**2
        picture[inside] = colour

    bars = np.sin(2 * np.pi * (6.0 * y + 34.0 * y**2) + 2.0 * x) > 0.2
    picture[bars & (y >= 0.55) & (x < 0.42)] = (0.08, 0.10, 0.35)

    texture = 0.5 * np.sin(2 * np.pi * (37.0 * x + 11.0 * y)) + 0.5 * np.sin(
        2 * np.pi * (5.0 * x * x - 23.0 * y)
    )
    patch = (y >= 0.5) & (x >= 0.5)
    picture += (0.35 * texture * patch)[..., None] * np.array([1.0, -0.6, 0.8])

    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)


def load_image(path: Path) -> npt.NDArray[np.uint8]:
    """A picture as it should be seen: EXIF orientation applied, 8-bit RGB.

    16-bit grey is scaled to 8 bits. Transparency is dropped, as timm and transformers do, so that
    the model sees what it saw in training. Of animations the first frame is read.

    Returns:
        ``[H, W, 3]``.

    Raises:
        UsageError: no such file, too many pixels, or a kind of pixel without an agreed range.
        ArtifactError: damaged, or not a picture.
    """
    try:
        with warnings.catch_warnings():
            # Ours is the limit; Pillow would warn at a smaller one.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as file:
                if file.width * file.height > MAX_PIXELS:
                    raise UsageError(
                        f"{path} claims {file.height}x{file.width} pixels, "
                        f"the limit is {MAX_PIXELS} in all",
                        hint="Scale it down before use.",
                    )
                upright = ImageOps.exif_transpose(file)
                return _to_rgb(upright, path)
    except FileNotFoundError:
        raise UsageError(f"picture {path} does not exist", hint="Check the path.") from None
    except IsADirectoryError:
        raise UsageError(f"picture {path} is a folder", hint="Name a file in it.") from None
    except Image.DecompressionBombError:
        raise UsageError(
            f"{path} claims more pixels than the limit of {MAX_PIXELS}",
            hint="Scale it down before use.",
        ) from None
    except UnidentifiedImageError:
        raise ArtifactError(
            f"{path} is not a picture that Pillow can read",
            hint="Use PNG, JPEG, WebP, TIFF, BMP or GIF.",
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise ArtifactError(
            f"picture {path} cannot be decoded: {error}",
            hint="It is damaged or cut short: copy it again or leave it out.",
        ) from error


def image_size(path: Path) -> tuple[int, int]:
    """Height and width of a picture as :func:`load_image` gives it, from its head alone.

    Raises:
        UsageError: no such file.
        ArtifactError: not a picture.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as file:
                turned = file.getexif().get(_EXIF_ORIENTATION, 1) in _EXIF_TURNED
                height, width = file.height, file.width
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError):
        found = load_image(path)  # says what is wrong, in the words for it
        height, width = found.shape[:2]
        turned = False
    return (width, height) if turned else (height, width)


def _to_rgb(image: Image.Image, path: Path) -> npt.NDArray[np.uint8]:
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64)
        if wide.min(initial=0) < 0 or wide.max(initial=0) > 65535:
            raise UsageError(
                f"{path} has 32-bit pixels, whose range is not known",
                hint="Save it with 8 or 16 bits per channel.",
            )
        grey = np.rint(wide / 257.0).astype(np.uint8)  # 65535 / 255 = 257
        return np.repeat(grey[..., None], 3, axis=-1)
    if image.mode == "F":
        raise UsageError(
            f"{path} has floating-point pixels, whose range is not known",
            hint="Save it with 8 or 16 bits per channel.",
        )
    if image.mode == "P":
        # Straight to RGB, Pillow warns about palettes with transparency.
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"), dtype=np.uint8)


def prepare(
    image: npt.NDArray[np.uint8], height: int, width: int, preprocess: Preprocess
) -> npt.NDArray[np.float32]:
    """One picture as a model input of exactly the size asked for.

    How its shape is changed is ``preprocess.fit``; pixels are resampled once, by Pillow's filters,
    which antialias. A picture that has the target size already passes unchanged, apart from the
    normalisation, where the rule has no crop.

    Args:
        image: ``[H, W, 3]`` as :func:`load_image` gives it.
        height: Target height in pixels.
        width: Target width in pixels.
        preprocess: The model's rule.

    Returns:
        ``[3, height, width]``, channels in ``preprocess.color_order``.
    """
    values = normalise(fit_pixels(image, height, width, preprocess), preprocess)
    if preprocess.fit == "pad":
        rows, columns = _inside(image.shape[0], image.shape[1], height, width)
        values[rows:] = 0
        values[:, columns:] = 0
    return np.ascontiguousarray(values.transpose(2, 0, 1), dtype=np.float32)


def fit_pixels(
    image: npt.NDArray[np.uint8], height: int, width: int, preprocess: Preprocess
) -> npt.NDArray[np.uint8]:
    """The first half of :func:`prepare`: the picture at the size, its pixels as they are.

    What is padded gets the pixel that normalises nearest to zero.

    Returns:
        ``[height, width, 3]``, RGB.
    """
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise UsageError(
            f"a picture must be uint8 [H, W, 3], got {image.dtype} {list(image.shape)}",
            hint="load_image gives that form.",
        )
    if height < 1 or width < 1:
        raise UsageError(
            f"a size must be at least 1x1, got {height}x{width}", hint="Give a size in pixels."
        )
    if height * width > MAX_PIXELS:
        raise UsageError(
            f"an input of {height}x{width} is over the limit of {MAX_PIXELS} pixels",
            hint="Use a smaller size.",
        )
    return np.asarray(_FITS[preprocess.fit](Image.fromarray(image), height, width, preprocess))


def normalise(pixels: npt.NDArray[np.uint8], preprocess: Preprocess) -> npt.NDArray[np.float32]:
    """The second half of :func:`prepare`: ``(pixel * scale - mean) / std``.

    Args:
        pixels: ``[..., 3]``, RGB.
        preprocess: The model's rule.

    Returns:
        ``[..., 3]``, channels in ``preprocess.color_order``.
    """
    values = pixels.astype(np.float32) * np.float32(preprocess.scale)
    if preprocess.color_order == "BGR":
        values = values[..., ::-1]
    mean, std = (np.array(v, dtype=np.float32) for v in (preprocess.mean, preprocess.std))
    normalised: npt.NDArray[np.float32] = (values - mean) / std
    return normalised


def _box(image: Image.Image, height: int, width: int, rule: Preprocess) -> Image.Image:
    """The largest centred box of the target's shape, resized in one step."""
    factor = min(image.height / height, image.width / width) * rule.crop
    box_height, box_width = height * factor, width * factor
    top, left = (image.height - box_height) / 2, (image.width - box_width) / 2
    # min() because rounding may put the far edge a hair outside, which Pillow refuses
    box = (
        max(left, 0.0),
        max(top, 0.0),
        min(left + box_width, float(image.width)),
        min(top + box_height, float(image.height)),
    )
    return image.resize((width, height), _FILTERS[rule.interpolation], box=box)


def _center_crop(image: Image.Image, height: int, width: int, rule: Preprocess) -> Image.Image:
    """The whole picture resized with its shape kept, then the centre; sizes round as in timm."""
    inner_height, inner_width = _enlarged(height, rule), _enlarged(width, rule)
    if inner_height == inner_width:  # by the shorter side, the longer one cut to whole pixels
        short, long = sorted((image.height, image.width))
        sides = (inner_height, int(inner_height * long / short))
        new_height, new_width = sides if image.height <= image.width else sides[::-1]
    else:
        ratio = min(image.height / inner_height, image.width / inner_width)
        new_height, new_width = round(image.height / ratio), round(image.width / ratio)
    resized = image.resize((new_width, new_height), _FILTERS[rule.interpolation])
    return _centre(resized, height, width)


def _squash(image: Image.Image, height: int, width: int, rule: Preprocess) -> Image.Image:
    """Both sides resized by themselves, then the centre."""
    size = (_enlarged(width, rule), _enlarged(height, rule))
    return _centre(image.resize(size, _FILTERS[rule.interpolation]), height, width)


def _pad(image: Image.Image, height: int, width: int, rule: Preprocess) -> Image.Image:
    """The whole picture inside the target, its shape kept, at the top left."""
    rows, columns = _inside(image.height, image.width, height, width)
    mean = [min(max(round(m / rule.scale), 0), 255) for m in rule.mean]
    filling = mean[::-1] if rule.color_order == "BGR" else mean
    target = Image.new("RGB", (width, height), (filling[0], filling[1], filling[2]))
    target.paste(image.resize((columns, rows), _FILTERS[rule.interpolation]))
    return target


def _inside(own_height: int, own_width: int, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of a picture that was scaled to lie inside a target, rounded as for SAM."""
    scale = min(height / own_height, width / own_width)
    return max(int(own_height * scale + 0.5), 1), max(int(own_width * scale + 0.5), 1)


def _enlarged(side: int, rule: Preprocess) -> int:
    """Pixels to resize to before ``side`` of them are cut out."""
    return math.floor(side / rule.crop + 1e-6)  # 224 / (224 / 248) is a hair below 248


def _centre(image: Image.Image, height: int, width: int) -> Image.Image:
    top, left = round((image.height - height) / 2), round((image.width - width) / 2)
    return image.crop((left, top, left + width, top + height))


_FITS = {"box": _box, "center-crop": _center_crop, "squash": _squash, "pad": _pad}


def resize_values(
    values: npt.NDArray[np.floating[Any]], height: int, width: int, interpolation: str
) -> npt.NDArray[np.float32]:
    """Prepared inputs at another size, channel by channel, antialiased.

    Args:
        values: ``[B, C, H, W]``.
        height: Target height in pixels.
        width: Target width in pixels.
        interpolation: A name of :data:`vitpe_deploy.preprocess.FILTERS`.

    Returns:
        ``[B, C, height, width]``.
    """
    flat = values.reshape(-1, *values.shape[2:]).astype(np.float32)
    resized = [
        np.asarray(Image.fromarray(plane).resize((width, height), _FILTERS[interpolation]))
        for plane in flat
    ]
    return np.stack(resized).reshape(*values.shape[:2], height, width)


def list_images(folder: Path) -> list[Path]:
    """Every picture below a folder, sorted by path, hidden files left out.

    Raises:
        UsageError: no such folder, or no picture in it.
    """
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"picture folder {folder} {found}", hint="Name a folder of pictures.")
    paths = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not paths:
        raise UsageError(
            f"picture folder {folder} holds no picture",
            hint=f"Looked for: {', '.join(sorted(SUFFIXES))}.",
        )
    return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def noise(seed: int, batch: int, height: int, width: int) -> npt.NDArray[np.float32]:
    """Standard normal values, the same on every machine for a seed.

    Returns:
        ``[batch, 3, height, width]``, N(0, 1) from numpy's PCG64.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal((batch, 3, height, width), dtype=np.float32)
