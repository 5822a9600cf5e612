"""Relative bias by raster distance (Shaw et al. 2018 and Raffel et al. 2020, with one row each).

A table holds one value per head for every offset between two of N positions. The offset is taken
in raster order, so a row of text is the grid (1, length). Tokens in front of the patches have no
raster position: pairs with them get no bias.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self, TypeAlias

import torch
from torch import Tensor

from vitpe_deploy.encodings.base import (
    EncodingDescription,
    EncodingSpec,
    Grid,
    Network,
    PositionEncoding,
    Positions,
    positional_noise,
)
from vitpe_deploy.encodings.relative_bias import Placement, RelativeBias
from vitpe_deploy.encodings.relative_index import gather_line, offset_index, with_leading_tokens
from vitpe_deploy.encodings.resample import (
    ResampleRule,
    interpolate_rows,
    resample_rows,
    resample_rows_in_graph,
)
from vitpe_deploy.errors import SizeError, UsageError

Fitting: TypeAlias = Literal["resample", "slice"]


class Relative1D(RelativeBias):
    """A distance table [layers, 2N-1, M]; row N-1 is the offset 0.

    Args of the encoding:
        fitting: at another N, ``resample`` stretches the table (pictures), ``slice`` keeps the
            distances and refuses longer inputs (text).
        rule: how ``resample`` reads between rows.
        shared, placement: see :class:`RelativeBias`.
        std: standard deviation of the initial table.
    """

    kind: ClassVar[str] = "relative-1d"
    networks: ClassVar[tuple[Network, ...]] = ("vit", "text")

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        fitting: Fitting = "resample",
        rule: ResampleRule = ResampleRule(antialias=False),
        shared: bool = True,
        placement: Placement = "after",
        std: float = 0.5,
    ) -> None:
        super().__init__(spec, shared=shared, placement=placement)
        if fitting not in ("resample", "slice"):
            raise UsageError(
                f"relative-1d fitting {fitting!r} is not known", hint="Choose resample or slice."
            )
        self.fitting: Fitting = fitting
        self.rule = rule
        self.native = spec.grid[0] * spec.grid[1]
        self.table = positional_noise(self.layers, 2 * self.native - 1, spec.num_heads, std=std)

    @classmethod
    def placed_in(cls, network: Network) -> type[PositionEncoding]:
        """Text slices its table unless told otherwise."""
        return _TextRelative1D if network == "text" else cls

    def _rows(self) -> Tensor:
        """The table with distances first: [2N-1, layers * M]."""
        return self.table.transpose(0, 1).flatten(1)

    def _sliced(self, count: int) -> Tensor:
        """Rows of the offsets -(n-1)..n-1; longer inputs have offsets that were never learned."""
        if count > self.native:
            raise SizeError(
                f"relative-1d has distances for {self.native} positions, got {count}",
                hint=f"Use at most {self.native}.",
            )
        return self._rows()[self.native - count : self.native + count - 1]

    def positions(self, grid: Grid) -> Positions:
        """The interpolated table read by the full index: [layers, M, N, N]."""
        count = grid[0] * grid[1]
        if self.fitting == "slice":
            rows = self._sliced(count)
        else:
            rows = interpolate_rows(self._rows(), 2 * count - 1, self.rule)
        return self._framed(rows[offset_index(count, rows.device)].permute(2, 0, 1))

    def fit(self, grid: Grid) -> Positions:
        """The resampled or sliced table, spread over all pairs: [layers, M, N, N]."""
        count = grid[0] * grid[1]
        if self.fitting == "slice":
            rows = self._sliced(count)
        else:
            rows = resample_rows(self._rows(), 2 * count - 1, self.rule)
        return self._framed(gather_line(rows.t(), count))

    def in_graph(self, h: int, w: int) -> Positions:
        """One MatMul on the table, then a Gather; or a Slice and a Gather."""
        count = h * w
        if self.fitting == "slice":
            torch._check(count <= self.native, lambda: f"longer than {self.native} positions")
            rows = self._rows()[self.native - count : self.native + count - 1]
        else:
            rows = resample_rows_in_graph(self._rows(), 2 * count - 1, self.rule)
        return self._framed(gather_line(rows.t(), count))

    def _framed(self, bias: Tensor) -> Positions:
        """bias: [layers * M, h*w, h*w]."""
        zeros = bias.new_zeros(3, self.layers * self.spec.num_heads)
        return self.placed(with_leading_tokens(bias, self.spec.leading_tokens, zeros))

    def describe(self) -> EncodingDescription:
        """Native grid and how the distance table is fitted."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.leading_tokens,
            str(self.rule) if self.fitting == "resample" else "slice",
            {"shared": self.shared, "placement": self.placement, "fitting": self.fitting},
        )


class _TextRelative1D(Relative1D):
    """The distance between two words means the same in a short text as in a long one."""

    @classmethod
    def build(cls, spec: EncodingSpec) -> Self:
        """As every encoding, with ``fitting="slice"``."""
        return cls(spec, **{"fitting": "slice", **spec.params})


ENCODING = Relative1D
