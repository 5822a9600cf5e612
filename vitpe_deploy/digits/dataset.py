"""The pictures that the embedded models were trained and tested on.

scikit-learn's copy of the UCI handwritten digits: 1,797 grey pictures of 8x8 pixels, 16 levels.
Every fourth one is for testing. A picture gets to the size of a network in one bicubic step, as
:func:`vitpe_deploy.images.prepare` does with a file, so a digit at 64 pixels is the digit at 32
pixels twice as large.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitpe_deploy.digits import PREPROCESS
from vitpe_deploy.errors import MissingExtraError
from vitpe_deploy.images import prepare
from vitpe_deploy.request import Resolution

Part: TypeAlias = Literal["train", "test"]
Pixels: TypeAlias = npt.NDArray[np.uint8]
Inputs: TypeAlias = npt.NDArray[np.float32]

_TEST_EVERY = 4
_LEVELS = 16
_MARGIN = 4
"""Empty pixels put around a digit that moves; enough for every shift used here."""

STEP = 0.5
"""Pixels of the 8x8 picture that a digit of a clip moves from frame to frame, per axis."""

_DIRECTIONS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))
"""Rows and columns; the digit with index i moves in direction i mod 8."""


@dataclass(frozen=True, slots=True)
class Digits:
    """One part of the data.

    Attributes:
        pixels: [N, 8, 8] in 0..255.
        labels: [N] in 0..9.
    """

    pixels: Pixels
    labels: npt.NDArray[np.int64]


def load(part: Part) -> Digits:
    """The 1,348 digits to train with, or the 449 to test with.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        datasets: Any = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError as problem:
        raise MissingExtraError("scikit-learn", "test") from problem
    images, target = datasets.load_digits(return_X_y=True)
    tested = np.arange(len(target)) % _TEST_EVERY == _TEST_EVERY - 1
    chosen = tested if part == "test" else ~tested
    levels = np.rint(images[chosen].reshape(-1, 8, 8) * 255 / _LEVELS)
    return Digits(levels.astype(np.uint8), target[chosen].astype(np.int64))


def pictures(pixels: Pixels, size: Resolution) -> Inputs:
    """Digits as inputs of a network: [N, 8, 8] in 0..255 -> [N, 1, H, W], normalised."""
    colour = np.repeat(pixels[..., None], 3, axis=-1)
    return np.stack([prepare(p, size.height, size.width, PREPROCESS)[:1] for p in colour])


def clips(pixels: Pixels, size: Resolution, frames: int) -> Inputs:
    """Digits that move at constant speed, centred in the middle of the clip.

    [N, 8, 8] in 0..255 -> [N, 1, T, H, W], normalised. The picture of time t shows the digit
    displaced by ``(t - (frames - 1) / 2) * STEP`` pixels of the 8x8 picture along its direction.
    """
    times = (np.arange(frames) - (frames - 1) / 2) * STEP
    moved = [
        np.stack([displaced(digit, (dy * t, dx * t), 1.0, size) for t in times])
        for digit, (dy, dx) in zip(pixels, _directions(len(pixels)), strict=True)
    ]
    return normalise(np.stack(moved))[:, None]


def _directions(count: int) -> list[tuple[int, int]]:
    return [_DIRECTIONS[i % len(_DIRECTIONS)] for i in range(count)]


def displaced(digit: Pixels, shift: tuple[float, float], zoom: float, size: Resolution) -> Pixels:
    """One digit moved and zoomed while it is resized, empty pixels around it.

    Args:
        digit: [8, 8].
        shift: pixels of the 8x8 picture, downwards and to the right.
        zoom: above 1 enlarges.
        size: of the result.
    """
    height, width = digit.shape
    picture = Image.fromarray(np.pad(digit, _MARGIN))
    half_h, half_w = height / zoom / 2, width / zoom / 2
    middle_y, middle_x = _MARGIN + height / 2 - shift[0], _MARGIN + width / 2 - shift[1]
    box = (middle_x - half_w, middle_y - half_h, middle_x + half_w, middle_y + half_h)
    resized = picture.resize((size.width, size.height), Image.Resampling.BICUBIC, box=box)
    return np.asarray(resized)


def normalise(pixels: Pixels) -> Inputs:
    """0..255 to what the networks read, elementwise."""
    mean, std = np.float32(PREPROCESS.mean[0]), np.float32(PREPROCESS.std[0])
    values: Inputs = (pixels.astype(np.float32) * np.float32(PREPROCESS.scale) - mean) / std
    return values
