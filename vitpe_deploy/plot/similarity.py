"""The numbers behind the pictures, in numpy; no torch and no matplotlib.

Letters used in shapes: L leading (prefix) tokens, N tokens, D channels, M heads, P channel pairs,
h and w patch grid.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Grid: TypeAlias = tuple[int, int]


def cosine_similarity(rows: Array) -> Array:
    """Cosine of the angle between every two rows.

    Args:
        rows: [N, D].

    Returns:
        float64 [N, N]. A row of zeros has no direction: its line and column are NaN.
    """
    rows = np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = rows / norms
    similarity: Array = np.clip(unit @ unit.T, -1.0, 1.0)
    return similarity


def similarity_maps(rows: Array, grid: Grid, leading: int = 0) -> Array:
    """Similarity of each patch with every patch, as in Dosovitskiy et al. 2021, figure 7.

    Args:
        rows: [L + at least h*w, D] in raster order; of a video only the first time step is read.
        grid: rows and columns of patches.
        leading: L, rows to skip.

    Returns:
        float64 [h, w, h, w]: ``[i, j]`` is the map of the patch in row i and column j.
    """
    h, w = grid
    return cosine_similarity(rows[leading : leading + h * w]).reshape(h, w, h, w)


def bias_maps(bias: Array, grid: Grid, query: Grid, leading: int = 0) -> Array:
    """What one patch adds to its attention logit for every patch of the grid.

    Args:
        bias: [M, N, N], queries before keys.
        grid: rows and columns of patches.
        query: row and column of the patch that attends.
        leading: L, tokens in front of the patches on both axes.

    Returns:
        [M, h, w].
    """
    h, w = grid
    line = bias[:, leading + query[0] * w + query[1]]  # [M, N]
    return line[:, leading : leading + h * w].reshape(-1, h, w)


def matching_patch(patch: Grid, old: Grid, new: Grid) -> Grid:
    """The patch of another grid that covers the centre of ``patch``.

    (3, 3) of 6x6 is (5, 5) of 9x9: (3 + 1/2) * 9/6 = 5.25.
    """
    row, column = (
        min((2 * at + 1) * n // (2 * o), n - 1) for at, o, n in zip(patch, old, new, strict=True)
    )
    return row, column


def rotary_features(cos: Array, sin: Array) -> Array:
    """Rows whose cosine similarity is what rotation alone leaves of q . k.

    For equal channel pairs, turning q and k by angles a and b multiplies their product by the mean
    of cos(a - b) over pairs (Su et al. 2021, section 3.3).

    Args:
        cos: [M, N, P].
        sin: [M, N, P].

    Returns:
        [N, M * 2P].
    """
    return np.concatenate([*cos, *sin], axis=1)


def rotary_steps(cos: Array, sin: Array, grid: Grid, leading: int = 0) -> Array:
    """By how much one patch further turns each channel pair, in radians.

    Args:
        cos: [N, P].
        sin: [N, P].
        grid: rows and columns of patches.
        leading: L, rows to skip.

    Returns:
        float64 [P, 2]: along a column (to the next row), along a row (to the next column). Steps
        are seen modulo a full turn and lie in (-pi, pi]; an axis of a single patch has none: 0.
    """
    h, w = grid
    cells = slice(leading, leading + h * w)
    turn = np.asarray(cos[cells], np.float64) + 1j * np.asarray(sin[cells], np.float64)
    turn = turn.reshape(h, w, -1)
    none = np.zeros(turn.shape[-1])
    down = np.angle(turn[1, 0] * turn[0, 0].conj()) if h > 1 else none
    right = np.angle(turn[0, 1] * turn[0, 0].conj()) if w > 1 else none
    return np.stack([down, right], axis=1)


def mosaic(maps: Array, gap: int = 1) -> Array:
    """Maps side by side with empty lines between.

    Args:
        maps: [A, B, h, w].
        gap: width of the lines, in cells.

    Returns:
        [A * (h + gap) - gap, B * (w + gap) - gap], NaN in the lines.
    """
    a, b, h, w = maps.shape
    tiles = np.full((a, b, h + gap, w + gap), np.nan)
    tiles[:, :, :h, :w] = maps
    whole = tiles.transpose(0, 2, 1, 3).reshape(a * (h + gap), b * (w + gap))
    return whole[: whole.shape[0] - gap, : whole.shape[1] - gap]
