"""Learned absolute positions: one table row per token (Dosovitskiy et al. 2021, section 3.1).

The rows of the patches lie on the native grid in raster order. At another grid they are
resampled as a picture with D channels; the rows of prefix tokens stay as they are. A text tower
slices its table instead and places this encoding by :mod:`vitpe_deploy.encodings.text_table`.
"""

from __future__ import annotations

from typing import ClassVar

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
from vitpe_deploy.encodings.resample import (
    ResampleRule,
    interpolate_grid,
    resample_grid,
    resample_grid_in_graph,
)
from vitpe_deploy.encodings.text_table import TextTable


class Learned1D(PositionEncoding):
    """A table [1, prefix + h*w, D], added to the tokens."""

    kind: ClassVar[str] = "learned-1d"
    networks: ClassVar[tuple[Network, ...]] = ("vit", "text", "detr")

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        std: float = 0.5,
        rule: ResampleRule = ResampleRule(),
        scaling_factor: float = 1.0,
    ) -> None:
        super().__init__(spec)
        h, w = spec.grid
        self.rule = rule
        self.scaling_factor = scaling_factor
        self.table = positional_noise(1, spec.prefix_tokens + h * w, spec.embed_dim, std=std)

    @classmethod
    def placed_in(cls, network: Network) -> type[PositionEncoding]:
        """Text slices its table: :class:`TextTable`."""
        return TextTable if network == "text" else cls

    def _split(self) -> tuple[Tensor, Tensor]:
        """Prefix rows [1, P, D] and the patch rows as a grid [h, w, D]."""
        prefix = self.spec.prefix_tokens
        return self.table[:, :prefix], torch.unflatten(self.table[0, prefix:], 0, self.spec.grid)

    def _join(self, prefix: Tensor, grid: Tensor) -> Positions:
        return self._scaled(torch.cat([prefix, grid.flatten(0, 1).unsqueeze(0)], dim=1))

    def _scaled(self, table: Tensor) -> Positions:
        return {"table": table if self.scaling_factor == 1.0 else table * self.scaling_factor}

    def positions(self, grid: Grid) -> Positions:
        """The table itself at the native grid, torch's own interpolation elsewhere."""
        if tuple(grid) == tuple(self.spec.grid):
            return self._scaled(self.table)
        prefix, patches = self._split()
        return self._join(prefix, interpolate_grid(patches, grid, self.rule))

    def fit(self, grid: Grid) -> Positions:
        """The resampled table [1, prefix + h*w, D]; bit-identical at the native grid."""
        if tuple(grid) == tuple(self.spec.grid):
            return self._scaled(self.table)
        prefix, patches = self._split()
        return self._join(prefix, resample_grid(patches, grid, self.rule))

    def in_graph(self, h: int, w: int) -> Positions:
        """``W_h . P . W_w^T`` per channel."""
        prefix, patches = self._split()
        return self._join(prefix, resample_grid_in_graph(patches, h, w, self.rule))

    def tokens(self, x: Tensor, positions: Positions) -> Tensor:
        """Tokens plus table."""
        return x + positions["table"]

    def describe(self) -> EncodingDescription:
        """Native grid, prefix rows and the resample rule."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.prefix_tokens,
            str(self.rule),
            {"scaling_factor": self.scaling_factor},
        )


ENCODING = Learned1D
