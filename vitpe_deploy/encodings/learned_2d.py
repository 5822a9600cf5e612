"""Learned absolute positions by row and column (Dosovitskiy et al. 2021, appendix D.4; DETR).

Two small tables instead of one large: a patch gets the vector of its row and that of its column,
side by side or added. At another grid each table is resampled on its own axis.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

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
    interpolate_rows,
    resample_rows,
    resample_rows_in_graph,
)
from vitpe_deploy.errors import UsageError

Mode: TypeAlias = Literal["concat", "add"]


class Learned2D(PositionEncoding):
    """Tables ``rows`` [h, D'] and ``columns`` [w, D'], D' = D/2 (concat) or D (add).

    Args of the encoding:
        mode: ``concat`` puts the row vector in the first half of the channels, ``add`` sums.
        rule: how each axis is read at another size.
        scaling_factor: multiplies the positions when they are added to tokens.
        std: standard deviation of the initial tables; prefix tokens have rows of their own.
    """

    kind: ClassVar[str] = "learned-2d"
    networks: ClassVar[tuple[Network, ...]] = ("vit", "detr")

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        mode: Mode = "concat",
        rule: ResampleRule = ResampleRule(),
        scaling_factor: float = 1.0,
        std: float = 0.5,
    ) -> None:
        super().__init__(spec)
        if mode not in ("concat", "add"):
            raise UsageError(f"learned-2d mode {mode!r} is not known", hint="Choose concat or add.")
        if mode == "concat" and spec.embed_dim % 2:
            raise UsageError(
                f"learned-2d needs an even embed_dim to concatenate, got {spec.embed_dim}",
                hint="Use mode=add.",
            )
        self.mode: Mode = mode
        self.rule = rule
        self.scaling_factor = scaling_factor
        width = spec.embed_dim // 2 if mode == "concat" else spec.embed_dim
        h, w = spec.grid
        self.prefix = (
            positional_noise(1, spec.prefix_tokens, spec.embed_dim, std=std)
            if spec.prefix_tokens
            else None
        )
        self.rows = positional_noise(h, width, std=std)
        self.columns = positional_noise(w, width, std=std)

    def positions(self, grid: Grid) -> Positions:
        """Each patch looks up its row and its column: [1, prefix + h*w, D]."""
        h, w = grid
        rows = interpolate_rows(self.rows, h, self.rule)
        columns = interpolate_rows(self.columns, w, self.rule)
        raster = torch.arange(h * w, device=rows.device)
        return self._join(rows[raster // w], columns[raster % w])

    def fit(self, grid: Grid) -> Positions:
        """Both tables resampled, spread over the grid: [1, prefix + h*w, D]."""
        h, w = grid
        rows = resample_rows(self.rows, h, self.rule)
        return self._spread(rows, resample_rows(self.columns, w, self.rule), h, w)

    def in_graph(self, h: int, w: int) -> Positions:
        """One small MatMul per axis."""
        rows = resample_rows_in_graph(self.rows, h, self.rule)
        return self._spread(rows, resample_rows_in_graph(self.columns, w, self.rule), h, w)

    def _spread(self, rows: Tensor, columns: Tensor, h: int, w: int) -> Positions:
        by_row = rows.unsqueeze(1).expand(h, w, -1).flatten(0, 1)
        return self._join(by_row, columns.unsqueeze(0).expand(h, w, -1).flatten(0, 1))

    def _join(self, by_row: Tensor, by_column: Tensor) -> Positions:
        """by_row, by_column: [h*w, D']."""
        if self.mode == "concat":
            table = torch.cat([by_row, by_column], dim=1).unsqueeze(0)
        else:
            table = (by_row + by_column).unsqueeze(0)
        if self.prefix is not None:
            table = torch.cat([self.prefix, table], dim=1)
        return {"table": table * self.scaling_factor if self.scaling_factor != 1.0 else table}

    def tokens(self, x: Tensor, positions: Positions) -> Tensor:
        """Tokens plus table."""
        return x + positions["table"]

    def describe(self) -> EncodingDescription:
        """Native grid, prefix rows and the rule of each axis."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.prefix_tokens,
            f"{self.rule}, per axis",
            {"mode": self.mode, "scaling_factor": self.scaling_factor},
        )


ENCODING = Learned2D
