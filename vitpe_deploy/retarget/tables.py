"""Found positions on another grid, as constants.

A table that the file only holds as numbers says nothing of how its library would resample it, so
the rule is the user's, ours by default. A baked attention bias [heads, N, N] is first taken back to
the table of relative distances [2h-1, 2w-1, heads] that it was gathered from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitpe_deploy.encodings.resample import ResampleRule
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.retarget.find_positions import FoundPosition

Array: TypeAlias = npt.NDArray[Any]
Resample: TypeAlias = Callable[[Tensor, tuple[int, int], ResampleRule], Tensor]


def fitted(
    found: FoundPosition,
    array: Array,
    grid: tuple[int, int],
    rule: ResampleRule,
    resample: Resample,
) -> Array:
    """The constant that ``found`` names, on another grid.

    Args:
        found: what the constant is.
        array: its numbers.
        grid: rows and columns of patches.
        rule: how it is resampled.
        resample: [h, w, D] to another grid, by the rule.

    Raises:
        UnsupportedError: a bias that no table of relative distances explains.
    """
    if grid == found.grid:
        return array
    if found.kind == "bias":
        return _fitted_bias(found, array, grid, rule, resample)
    if found.kind == "map":
        moved = np.moveaxis(array, found.axes, (0, 1))
        flat = moved.reshape(*found.grid, -1)
        new = _resampled(flat, grid, rule, resample).reshape(*grid, *moved.shape[2:])
        return np.ascontiguousarray(np.moveaxis(new, (0, 1), found.axes))
    (axis,) = found.axes
    rows = np.moveaxis(array, axis, 0)
    head, tail = rows[: found.prefix], rows[found.prefix :]
    new = _resampled(tail.reshape(*found.grid, -1), grid, rule, resample)
    joined = np.concatenate([head, new.reshape(-1, *rows.shape[1:])])
    return np.ascontiguousarray(np.moveaxis(joined, 0, axis))


def _resampled(
    table: Array, grid: tuple[int, int], rule: ResampleRule, resample: Resample
) -> Array:
    tensor = torch.from_numpy(np.array(table, order="C"))  # files are mapped read-only
    return resample(tensor, grid, rule).contiguous().numpy()


def relative_index(grid: tuple[int, int]) -> tuple[Array, Array]:
    """Row and column of the distance table for each pair of patches, both [h*w, h*w]."""
    rows, columns = (a.reshape(-1) for a in np.indices(grid))
    return (
        rows[:, None] - rows[None, :] + grid[0] - 1,
        columns[:, None] - columns[None, :] + grid[1] - 1,
    )


def _fitted_bias(
    found: FoundPosition,
    array: Array,
    grid: tuple[int, int],
    rule: ResampleRule,
    resample: Resample,
) -> Array:
    (h, w), c = found.grid, found.prefix
    bias = array.reshape(-1, *array.shape[-2:])  # [heads, N, N]
    rows, columns = relative_index((h, w))
    table = np.zeros((2 * h - 1, 2 * w - 1, len(bias)), bias.dtype)
    patches = np.moveaxis(bias[:, c:, c:], 0, -1)
    table[rows, columns] = patches
    edges = (bias[:, :c, c:], np.swapaxes(bias[:, c:, :c], 1, 2))
    if (table[rows, columns] != patches).any() or any((e != e[..., :1]).any() for e in edges):
        raise UnsupportedError(
            f"the attention bias {found.name} cannot change its size: pairs of patches at one "
            "distance have different values, so no table of relative distances explains it",
            hint="Export it from the source model at the size that you need.",
        )
    size = (2 * grid[0] - 1, 2 * grid[1] - 1)
    new = _resampled(table, size, rule, resample)
    rows, columns = relative_index(grid)
    n = grid[0] * grid[1]
    result = np.empty((len(bias), c + n, c + n), bias.dtype)
    result[:, :c, :c] = bias[:, :c, :c]
    result[:, :c, c:] = bias[:, :c, c : c + 1]
    result[:, c:, :c] = bias[:, c : c + 1, :c]
    result[:, c:, c:] = np.moveaxis(new[rows, columns], -1, 0)
    return result.reshape(*array.shape[:-2], c + n, c + n)
