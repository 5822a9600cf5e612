"""Rotary positions with learned frequencies (Heo et al. 2024, RoPE-ViT, section 3.3).

Every layer, head and channel pair has a frequency vector; the angle of a patch is its dot product
with (column, row), so a head can look along any direction. Coordinates are integer indices at
every size.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitpe_deploy.encodings.base import (
    EncodingDescription,
    EncodingSpec,
    Grid,
    Network,
    PositionEncoding,
    Positions,
)
from vitpe_deploy.encodings.rotary import check_head_dim, rotate, with_leading_rows
from vitpe_deploy.encodings.sinusoid import check_temperature, frequencies


class RopeMixed(PositionEncoding):
    """Turns q and k by learned frequencies [2, depth, M, d/2], column first.

    Args of the encoding:
        base: temperature of the initial magnitudes base^(-4k/d); directions start random.
    """

    kind: ClassVar[str] = "rope-mixed"
    networks: ClassVar[tuple[Network, ...]] = ("vit",)

    def __init__(self, spec: EncodingSpec, *, base: float = 10.0) -> None:
        super().__init__(spec)
        check_head_dim(self.kind, spec.head_dim, 4)
        check_temperature(base)
        self.base = base
        magnitude = frequencies(spec.head_dim // 4, base).float()
        direction = 2 * math.pi * torch.rand(spec.depth, spec.num_heads, 1)
        across = direction + math.pi / 2  # the second half of the pairs looks at a right angle
        self.frequencies = nn.Parameter(
            torch.stack(
                [
                    torch.cat([magnitude * part(direction), magnitude * part(across)], dim=-1)
                    for part in (torch.cos, torch.sin)
                ]
            )
        )

    def positions(self, grid: Grid) -> Positions:
        """Cosines and sines of every patch's own angle: [depth, M, N, d/2]."""
        h, w = grid
        raster = torch.arange(h * w, device=self.frequencies.device)
        row, column = (axis.to(self.frequencies.dtype) for axis in (raster // w, raster % w))
        of_column, of_row = self.frequencies.unsqueeze(-2)  # 2 x [depth, M, 1, d/2]
        angle = column.unsqueeze(1) * of_column + row.unsqueeze(1) * of_row
        return with_leading_rows(angle.cos(), angle.sin(), self.spec.leading_tokens)

    def fit(self, grid: Grid) -> Positions:
        """The same from the cosines of h + w coordinates."""
        return self.in_graph(*grid)

    def in_graph(self, h: int, w: int) -> Positions:
        """cos(a + b) = cos a cos b - sin a sin b: h + w instead of h * w cosines per frequency."""
        of_column, of_row = self.frequencies.unsqueeze(-2)  # 2 x [depth, M, 1, d/2]
        columns = self._axis(w).unsqueeze(1) * of_column  # [depth, M, w, d/2]
        rows = self._axis(h).unsqueeze(1) * of_row  # [depth, M, h, d/2]
        cos_x, sin_x = (part(columns).unsqueeze(2) for part in (torch.cos, torch.sin))
        cos_y, sin_y = (part(rows).unsqueeze(3) for part in (torch.cos, torch.sin))
        cos = (cos_y * cos_x - sin_y * sin_x).flatten(2, 3)  # [depth, M, h*w, d/2]
        sin = (sin_y * cos_x + cos_y * sin_x).flatten(2, 3)
        return with_leading_rows(cos, sin, self.spec.leading_tokens)

    def _axis(self, count: int) -> Tensor:
        """Indices [count] as floats."""
        freq = self.frequencies
        return torch.arange(count, dtype=freq.dtype, device=freq.device)

    def rotate(
        self, q: Tensor, k: Tensor, positions: Positions, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Turn q and k by this layer's angles: [B, M, N, d] -> the same shapes."""
        cos, sin = positions["cos"][layer], positions["sin"][layer]
        return rotate(q, cos, sin, "interleaved"), rotate(k, cos, sin, "interleaved")

    def describe(self) -> EncodingDescription:
        """Initial base; recomputed at every size from the learned frequencies."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.leading_tokens,
            "recompute",
            {"base": self.base, "layout": "interleaved"},
        )


ENCODING = RopeMixed
