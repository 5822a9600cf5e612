"""Sizes at which a graph is thought through, and what a number is as a function of the size.

A dimension is a vector with one entry per probe. Rows h and columns w of the grid of patches and
the batch B are unlike each other in every probe but the file's own, so that a vector says what it
is made of:

    B^i (a M + c),  i in {0, 1},  M in {1, h, w, h w}

is found from two probes and must hold at all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from vitpe_deploy.request import Resolution

Vector: TypeAlias = npt.NDArray[np.int64]
Grid: TypeAlias = Literal["", "h", "w", "hw"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One size: batch, and rows and columns of patches."""

    batch: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Expression:
    """``B^i (a M + c)``."""

    factor: int
    grid: Grid
    rest: int
    batch: bool = False

    def at(self, probe: Probe) -> int:
        """Its value at one size."""
        value = self.factor * _grid_value(self.grid, probe) + self.rest
        return value * (probe.batch if self.batch else 1)

    @property
    def fixed(self) -> bool:
        """Whether no size and no batch changes it."""
        return not self.grid and not self.batch

    def __str__(self) -> str:
        names = {"": "1", "h": "h", "w": "w", "hw": "h*w"}
        if not self.grid:
            text = str(self.factor + self.rest)
        else:
            text = names[self.grid] if self.factor == 1 else f"{self.factor}*{names[self.grid]}"
            text += f" + {self.rest}" if self.rest > 0 else f" - {-self.rest}" if self.rest else ""
        if not self.batch:
            return text
        if text == "1":
            return "batch"
        return f"batch*({text})"


class Probes:
    """The file's own size first, some that are unlike it, then those that are asked for."""

    def __init__(
        self,
        patch: tuple[int, int],
        native: Resolution,
        batch: int,
        *,
        any_batch: bool,
        any_size: bool = True,
        wanted: Sequence[tuple[Resolution, int]] = (),
    ) -> None:
        self.patch = patch
        h, w = native.height // patch[0], native.width // patch[1]
        own = Probe(batch, h, w)
        steps = ((1, 3, 5), (2, 7, 4), (4, 2, 11), (6, 13, 9))
        unlike = []
        for more, dh, dw in steps:
            rows, columns = (h + dh, w + dw) if any_size else (h, w)
            if any_size and rows == columns:
                columns += 17
            unlike.append(Probe(batch + (more if any_batch else 0), rows, columns))
        asked = [Probe(b, s.height // patch[0], s.width // patch[1]) for s, b in wanted]
        self.all: tuple[Probe, ...] = (own, *unlike, *asked)
        self._unlike = len(unlike)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def own(self) -> Probe:
        """The size that the file was exported at."""
        return self.all[0]

    @property
    def own_grid(self) -> tuple[int, int]:
        """Rows and columns of patches of the file's own size."""
        return self.own.rows, self.own.columns

    def index_of_wanted(self, k: int) -> int:
        """Which entry of a vector belongs to the k-th size asked for."""
        return 1 + self._unlike + k

    def vector(self, expression: Expression) -> Vector:
        """The values of an expression at all probes."""
        return np.array([expression.at(p) for p in self.all], dtype=np.int64)

    def pixels(self) -> tuple[Vector, Vector]:
        """Height and width of the picture."""
        rows = np.array([p.rows for p in self.all], dtype=np.int64)
        columns = np.array([p.columns for p in self.all], dtype=np.int64)
        return rows * self.patch[0], columns * self.patch[1]

    def batches(self) -> Vector:
        """The batch."""
        return np.array([p.batch for p in self.all], dtype=np.int64)

    def expression(self, vector: Sequence[int] | npt.NDArray[Any]) -> Expression | None:
        """What a vector is made of, or None when it has none of the forms."""
        values = np.asarray(vector, dtype=np.int64)
        if (values == values[0]).all():
            return Expression(0, "", int(values[0]))
        grids: tuple[Grid, ...] = ("", "h", "w", "hw")
        for batch, grid in product((False, True), grids):
            found = self._fit(values, grid, batch)
            if found is not None and (self.vector(found) == values).all():
                return found
        return None

    def _fit(self, values: Vector, grid: Grid, batch: bool) -> Expression | None:
        if batch:
            batches = self.batches()
            if (values % batches).any():
                return None
            values = values // batches
        if not grid:
            return Expression(0, "", int(values[0]), batch)
        first, second = self.all[1], self.all[2]
        x0, x1 = _grid_value(grid, first), _grid_value(grid, second)
        if x0 == x1 or (values[2] - values[1]) % (x1 - x0):
            return None
        factor = int((values[2] - values[1]) // (x1 - x0))
        return Expression(factor, grid, int(values[1]) - factor * x0, batch)


def _grid_value(grid: Grid, probe: Probe) -> int:
    return {
        "": 1,
        "h": probe.rows,
        "w": probe.columns,
        "hw": probe.rows * probe.columns,
    }[grid]


def same(vector: npt.NDArray[Any]) -> bool:
    """Whether no probe changes a dimension."""
    return bool((vector == vector[0]).all())
