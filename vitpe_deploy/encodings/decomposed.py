"""Decomposed relative positions (Li et al. 2022, MViTv2, equation 4; ViTDet and SAM).

The bias of a pair depends on the query: q . R_h[row offset] + q . R_w[column offset], with q
before the scaling by 1/sqrt(d). At another grid each axis table is resampled linearly. Tokens in
front of the patches (SAM has none) get no bias.

Letters used in shapes: B batch, M heads, N tokens, d head_dim, h and w patch grid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
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
from vitpe_deploy.encodings.relative_index import offset_index
from vitpe_deploy.encodings.resample import (
    ResampleRule,
    interpolate_rows,
    resample_rows,
    resample_rows_in_graph,
)


class Decomposed(PositionEncoding):
    """Tables ``rel_pos_h`` [layers, 2h-1, d] and ``rel_pos_w`` [layers, 2w-1, d].

    Args of the encoding:
        rule: how an axis is read at another size.
        shared: one pair of tables for all layers; SAM has one per layer.
        std: standard deviation of the initial tables.
    """

    kind: ClassVar[str] = "decomposed"
    networks: ClassVar[tuple[Network, ...]] = ("vit",)

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        rule: ResampleRule = ResampleRule("bilinear", antialias=False),
        shared: bool = False,
        std: float = 0.5,
    ) -> None:
        super().__init__(spec)
        self.rule = rule
        self.shared = shared
        layers = 1 if shared else spec.depth
        h, w = spec.grid
        self.rel_pos_h = positional_noise(layers, 2 * h - 1, spec.head_dim, std=std)
        self.rel_pos_w = positional_noise(layers, 2 * w - 1, spec.head_dim, std=std)

    def _axes(
        self, h: int, w: int, resize: Callable[[Tensor, int, ResampleRule], Tensor]
    ) -> Positions:
        """``rel_h`` [layers, h, h, d] (query row, key row) and ``rel_w`` [layers, w, w, d]."""
        return {
            name: self._spread(resize(self._rows(table), 2 * count - 1, self.rule), count)
            for name, table, count in (
                ("rel_h", self.rel_pos_h, h),
                ("rel_w", self.rel_pos_w, w),
            )
        }

    def _rows(self, table: Tensor) -> Tensor:
        """Offsets first: [layers, n, d] -> [n, layers * d]."""
        return table.transpose(0, 1).flatten(1)

    def _spread(self, rows: Tensor, count: int) -> Tensor:
        """[2n-1, layers * d] -> [layers, n, n, d], read by the offset of each pair."""
        pairs = rows.index_select(0, offset_index(count, rows.device).flatten())
        pairs = torch.unflatten(pairs, 1, (self.rel_pos_h.shape[0], -1)).transpose(0, 1)
        return torch.unflatten(pairs, 1, (count, count))

    def positions(self, grid: Grid) -> Positions:
        """Axis tables through torch's linear interpolation."""
        return self._axes(*grid, interpolate_rows)

    def fit(self, grid: Grid) -> Positions:
        """Axis tables through exact weights; the originals at the native grid."""
        return self._axes(*grid, resample_rows)

    def in_graph(self, h: int, w: int) -> Positions:
        """One MatMul and one Gather per axis."""
        return self._axes(h, w, resample_rows_in_graph)

    def query_bias(self, q: Tensor, positions: Positions, layer: int) -> Tensor | None:
        """Bias of unscaled queries. q: [B, M, N, d] -> [B, M, N, N]."""
        index = 0 if self.shared else layer
        rel_h, rel_w = positions["rel_h"][index], positions["rel_w"][index]
        h, w = rel_h.shape[0], rel_w.shape[0]
        leading = self.spec.leading_tokens
        patches = torch.unflatten(q[:, :, leading:], 2, (h, w))  # [B, M, h, w, d]
        by_row = patches @ rel_h.transpose(1, 2)  # [B, M, h, w, key row]
        by_column = (patches.transpose(2, 3) @ rel_w.transpose(1, 2)).transpose(2, 3)
        bias = by_row.unsqueeze(-1) + by_column.unsqueeze(-2)  # [B, M, h, w, key row, key column]
        bias = bias.flatten(4).flatten(2, 3)
        return F.pad(bias, (leading, 0, leading, 0)) if leading else bias

    def describe(self) -> EncodingDescription:
        """Native grid and the rule of each axis."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.leading_tokens,
            f"{self.rule}, per axis",
            {"shared": self.shared},
        )


ENCODING = Decomposed
