"""Telling positions apart by how they meet what depends on the picture.

In a ViT, a tensor that does not depend on the picture's values is a weight or a position. Weights
multiply by matrix products or have one number per channel. What has one row per token is a
position, and how it meets the tokens says which kind:

1. added to tokens [B, N, D]: an absolute table [1, N, D] or [N, D], or as a picture [1, h, w, D]
   or [1, D, h, w];
2. added to attention logits [B, M, N, N], or handed to attention as its bias: [1|W, M, N, N] or
   [M, N, N], where W counts windows;
3. multiplied with queries and keys [B, M, N, d], in pairs whose squares sum to 1: cosines and
   sines [.., N, d/2], or [.., N, d] with every pair twice, or [N * M, d/2] token by token.

A bias of nothing but zeros and huge negatives is a mask (causal, or of shifted windows).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitpe_deploy.plot.similarity import Array, Grid
from vitpe_deploy.plot.values import PositionSet, Rotation, leading_tokens

_MASKED = -99.0
"""Swin masks with -100, others with the smallest float."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A tensor without the picture met one with it, by this operation."""

    how: Literal["add", "multiply", "attend"]
    value: Array


def may_be_position(shape: tuple[int, ...]) -> bool:
    """Whether a tensor has room for one row per token; a cheap test before values are read."""
    return len(shape) >= 2 and sum(n > 1 for n in shape) >= 2


def positions_among(meetings: Iterable[Meeting], grid: Grid, frames: int = 1) -> PositionSet:
    """The positions among what met, in the order of the layers."""
    table: Array | None = None
    biases: list[Array] = []
    rotations: list[Rotation] = []
    pending: Array | None = None
    for meeting in meetings:
        value = meeting.value
        if meeting.how == "multiply":
            turn = _as_turn(value, grid, frames)
            if turn is None:
                continue
            pair = None if pending is None else _pair(pending, turn)
            pending = turn if pair is None else None
            if pair is not None and not (rotations and _same(pair, rotations[-1])):
                rotations.append(pair)
            continue
        found = _as_table(value, grid, frames) if meeting.how == "add" else None
        if found is not None:
            table = found if table is None else table
            continue
        bias = _as_bias(value, grid, frames)
        if bias is not None:
            biases.append(bias)
    return PositionSet(grid, table, tuple(biases), tuple(rotations), frames=frames)


def _as_table(value: Array, grid: Grid, frames: int) -> Array | None:
    """[L + t*h*w, D], cases of 1."""
    if value.ndim == 4 and value.shape[0] == 1:
        if value.shape[1:3] == grid and value.shape[3] > 1:
            return value.reshape(-1, value.shape[3])
        if value.shape[2:] == grid and value.shape[1] > 1:
            return value.reshape(value.shape[1], -1).T
        return None
    if value.ndim == 3 and value.shape[0] == 1:
        value = value[0]
    if value.ndim != 2 or value.shape[1] < 2:
        return None
    return None if leading_tokens(value.shape[0], grid, frames) is None else value


def _as_bias(value: Array, grid: Grid, frames: int) -> Array | None:
    """[M, N, N], cases of 2; of several windows the first, which no seam cuts."""
    if value.dtype == bool or value.ndim not in (3, 4) or value.shape[-1] != value.shape[-2]:
        return None
    tokens = value.shape[-1]
    if tokens < 2 or (
        leading_tokens(tokens, grid, frames) is None and math.isqrt(tokens) ** 2 != tokens
    ):
        return None
    masked = value <= _MASKED
    if masked.any() and np.all(masked | (value == 0)):
        return None
    bias = value[0] if value.ndim == 4 else value
    return np.where(bias <= _MASKED, np.nan, bias)


def _as_turn(value: Array, grid: Grid, frames: int) -> Array | None:
    """[M, N, P], cases of 3; only values that cosines can have."""
    if value.ndim < 2 or value.shape[-1] < 2:
        return None
    if not np.all(np.abs(value) <= 1 + 1e-5):
        return None
    heads = 1 if leading_tokens(value.shape[-2], grid, frames) is not None else None
    if heads is None and value.ndim == 2:
        heads = _heads_of(value.shape[0], grid, frames)
    if heads is None:
        return None
    if heads > 1:
        value = value.reshape(-1, heads, value.shape[1]).swapaxes(0, 1)
    turn = value.reshape(-1, *value.shape[-2:])
    width = turn.shape[-1]
    if width % 2 == 0:
        if np.array_equal(turn[..., ::2], turn[..., 1::2]):
            return turn[..., ::2]
        if np.array_equal(turn[..., : width // 2], turn[..., width // 2 :]):
            return turn[..., : width // 2]
    return turn


def _heads_of(rows: int, grid: Grid, frames: int) -> int | None:
    """Heads of a table with a row per token and head, where that number fits tokens alone."""
    most = rows // (frames * grid[0] * grid[1])
    fits = (
        heads
        for heads in range(2, most + 1)
        if rows % heads == 0 and leading_tokens(rows // heads, grid, frames) is not None
    )
    return next(fits, None)


def _pair(first: Array, second: Array) -> Rotation | None:
    """The two as cosine and sine. Cosines are larger on average: slow pairs hardly turn."""
    if first.shape != second.shape or not np.allclose(first**2 + second**2, 1, atol=1e-4):
        return None
    cos, sin = (first, second) if first.mean() > second.mean() else (second, first)
    return Rotation(cos, sin)


def _same(a: Rotation, b: Rotation) -> bool:
    return np.array_equal(a.cos, b.cos) and np.array_equal(a.sin, b.sin)
