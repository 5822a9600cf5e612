"""What a walk knows of values, and what it wants changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from vitpe_deploy.retarget.find_positions import FoundPosition
from vitpe_deploy.retarget.probes import Vector, same

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Info:
    """One value at all probes.

    Attributes:
        dims: its dimensions.
        data: its numbers, for small ones that sizes are computed with.
        live: whether the content of the picture reaches it.
        dtype: number of its ONNX type.
    """

    dims: list[Vector] | None
    data: list[Array] | None
    live: bool
    dtype: int

    @property
    def varies(self) -> bool:
        """Whether shape or numbers follow the size."""
        if self.dims is not None and any(not same(d) for d in self.dims):
            return True
        return self.data is not None and not self.fixed_data

    @property
    def fixed_data(self) -> bool:
        """Whether its numbers are known and no size changes them."""
        if self.data is None:
            return False
        first = self.data[0]
        return all(a is first or (a.shape == first.shape and (a == first).all()) for a in self.data)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An integer input of a node, with its numbers at every probe: [P, n]."""

    node: ir.Node
    place: int
    numbers: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pooled:
    """A pooling whose kernel is the whole map at the file's own size."""

    node: ir.Node


@dataclass(frozen=True, slots=True)
class Spread:
    """A constant input that must be repeated over the batch."""

    node: ir.Node
    place: int


@dataclass(frozen=True, slots=True)
class Blank:
    """A constant that is the same for all pairs of tokens, as a mask that masks nothing."""

    node: ir.Node
    place: int


@dataclass(slots=True)
class Findings:
    """What a walk found.

    Attributes:
        rewrites: integer inputs whose numbers follow the size.
        positions: constants that must be resampled.
        resized: tables that the graph itself resizes.
        pooled: poolings over the whole map, whose kernel was baked in.
        spread: constants that must be repeated over the batch.
        blank: constants that one number can stand for.
        values: what is known of each value.
    """

    rewrites: list[Rewrite] = field(default_factory=list)
    positions: list[FoundPosition] = field(default_factory=list)
    resized: list[FoundPosition] = field(default_factory=list)
    pooled: list[Pooled] = field(default_factory=list)
    spread: list[Spread] = field(default_factory=list)
    blank: list[Blank] = field(default_factory=list)
    values: dict[ir.Value, Info] = field(default_factory=dict)

    @property
    def size_is_baked(self) -> bool:
        """Whether the graph as it is computes at its own size (or batch) alone."""
        return bool(self.rewrites or self.positions or self.pooled or self.spread or self.blank)
