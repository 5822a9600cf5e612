"""Rotary positions along one axis (Su et al. 2021, RoFormer, section 3.2.2).

The position of a patch is its raster index, so a row of text is the grid (1, length). Angles are
recomputed at every size; tokens in front of the patches are not rotated.
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
)
from vitpe_deploy.encodings.rotary import (
    Layout,
    check_head_dim,
    check_layout,
    rotate,
    with_leading_rows,
)
from vitpe_deploy.encodings.sinusoid import TEMPERATURE, check_temperature, frequencies


class Rope1D(PositionEncoding):
    """Turns q and k by raster index times frequency.

    Args of the encoding:
        base: the wavelengths run from 2 pi towards 2 pi base.
        layout: channel pairs, ``interleaved`` as in RoFormer or ``half`` as in GPT-NeoX.
    """

    kind: ClassVar[str] = "rope-1d"
    networks: ClassVar[tuple[Network, ...]] = ("vit", "text")

    frequencies: Tensor

    def __init__(
        self, spec: EncodingSpec, *, base: float = TEMPERATURE, layout: Layout = "interleaved"
    ) -> None:
        super().__init__(spec)
        check_layout(layout)
        check_temperature(base)
        check_head_dim(self.kind, spec.head_dim, 2)
        self.base = base
        self.layout: Layout = layout
        self.register_buffer(
            "frequencies", frequencies(spec.head_dim // 2, base).float(), persistent=False
        )

    def positions(self, grid: Grid) -> Positions:
        """Unit complex numbers exp(i m theta_k), split into their parts [N, d/2]."""
        index = torch.arange(grid[0] * grid[1], device=self.frequencies.device)
        angle = torch.outer(index.to(self.frequencies.dtype), self.frequencies)
        turn = torch.polar(torch.ones_like(angle), angle)
        return with_leading_rows(turn.real, turn.imag, self.spec.leading_tokens)

    def fit(self, grid: Grid) -> Positions:
        """Cosines and sines [N, d/2], recomputed."""
        return self.in_graph(*grid)

    def in_graph(self, h: int, w: int) -> Positions:
        """Range, Mul, Cos, Sin; shared by all layers."""
        freq = self.frequencies
        index = torch.arange(h * w, dtype=freq.dtype, device=freq.device)
        angle = index.unsqueeze(1) * freq  # [h*w, d/2]
        return with_leading_rows(angle.cos(), angle.sin(), self.spec.leading_tokens)

    def rotate(
        self, q: Tensor, k: Tensor, positions: Positions, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Turn q and k: [B, M, N, d] -> the same shapes."""
        cos, sin = positions["cos"], positions["sin"]
        return rotate(q, cos, sin, self.layout), rotate(k, cos, sin, self.layout)

    def describe(self) -> EncodingDescription:
        """Base and layout; recomputed at every size."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.leading_tokens,
            "recompute",
            {"base": self.base, "layout": self.layout},
        )


ENCODING = Rope1D
