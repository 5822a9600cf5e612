"""Axial rotary positions: half of the channel pairs turn with the row, half with the column.

The families agree on the frequencies base^(-4k/d) and differ in the rest:

=========  ========================  =====  ==========  ===========  ============================
name       coordinate of index i     base   first axis  layout       published in
=========  ========================  =====  ==========  ===========  ============================
eva02      i / n * reference         10000  row         interleaved  Fang et al. 2023, EVA-02
rope-vit   i                         100    column      interleaved  Heo et al. 2024, section 3.2
dinov3     2 pi ((2i + 1) / n - 1)   100    row         half         Simeoni et al. 2025
=========  ========================  =====  ==========  ===========  ============================

n is the number of patches on the axis, reference that of the pre-training grid. DINOv3 writes the
frequency as 2 pi over a period base^(4k/d).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

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
from vitpe_deploy.encodings.sinusoid import check_temperature, frequencies
from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import closest

Coordinates: TypeAlias = Literal["eva02", "rope-vit", "dinov3"]


@dataclass(frozen=True, slots=True)
class _Family:
    base: float
    layout: Layout
    column_first: bool


_FAMILIES: Mapping[str, _Family] = {
    "eva02": _Family(10000.0, "interleaved", column_first=False),
    "rope-vit": _Family(100.0, "interleaved", column_first=True),
    "dinov3": _Family(100.0, "half", column_first=False),
}


class Rope2D(PositionEncoding):
    """Turns q and k by row and column coordinates.

    Args of the encoding:
        coordinates: the family; decides the coordinate rule and the defaults of the rest.
        base: temperature of the frequencies.
        layout: channel pairs, ``interleaved`` or ``half``.
        reference_grid: EVA-02's pre-training grid, rows first; the native grid when left out.
    """

    kind: ClassVar[str] = "rope-2d"
    networks: ClassVar[tuple[Network, ...]] = ("vit",)

    frequencies: Tensor

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        coordinates: Coordinates = "rope-vit",
        base: float | None = None,
        layout: Layout | None = None,
        reference_grid: Grid | None = None,
    ) -> None:
        super().__init__(spec)
        if coordinates not in _FAMILIES:
            raise UsageError(
                f"rope-2d coordinates {coordinates!r} are not known",
                hint=f"{closest(coordinates, _FAMILIES)}Choose from: {', '.join(_FAMILIES)}.",
            )
        if reference_grid is not None and coordinates != "eva02":
            raise UsageError(
                f"reference_grid belongs to coordinates 'eva02', got {coordinates!r}",
                hint="Leave reference_grid out.",
            )
        family = _FAMILIES[coordinates]
        self.coordinates: Coordinates = coordinates
        self.base = family.base if base is None else base
        self.layout: Layout = family.layout if layout is None else layout
        self.column_first = family.column_first
        self.reference_grid = spec.grid if reference_grid is None else reference_grid
        check_layout(self.layout)
        check_temperature(self.base)
        check_head_dim(self.kind, spec.head_dim, 4)
        self.register_buffer(
            "frequencies", frequencies(spec.head_dim // 4, self.base).float(), persistent=False
        )

    def _coordinate(self, index: Tensor, count: int, reference: int) -> Tensor:
        """Coordinates of patch ``index`` on an axis of ``count`` patches, by the family's rule."""
        if self.coordinates == "eva02":
            return index / count * reference
        if self.coordinates == "rope-vit":
            return index
        centre = (index + 0.5) / count  # in (0, 1)
        return 2.0 * math.pi * (2.0 * centre - 1.0)

    def positions(self, grid: Grid) -> Positions:
        """Angles of each patch one by one, then their cos and sin [N, d/2]."""
        h, w = grid
        raster = torch.arange(h * w, device=self.frequencies.device)
        row = self._coordinate((raster // w).to(self.frequencies.dtype), h, self.reference_grid[0])
        column = self._coordinate(
            (raster % w).to(self.frequencies.dtype), w, self.reference_grid[1]
        )
        angles = [torch.outer(axis, self.frequencies) for axis in (row, column)]
        if self.column_first:
            angles.reverse()
        angle = torch.cat(angles, dim=1)  # [h*w, d/2]
        return with_leading_rows(angle.cos(), angle.sin(), self.spec.leading_tokens)

    def fit(self, grid: Grid) -> Positions:
        """Cosines and sines [N, d/2], recomputed."""
        return self.in_graph(*grid)

    def in_graph(self, h: int, w: int) -> Positions:
        """Cosines and sines of h + w coordinates, spread over the grid."""
        freq = self.frequencies
        angles = [
            self._coordinate(
                torch.arange(count, dtype=freq.dtype, device=freq.device), count, reference
            ).unsqueeze(1)
            * freq
            for count, reference in zip((h, w), self.reference_grid, strict=True)
        ]  # [h, d/4], [w, d/4]
        rows, columns = angles
        cos = self._spread(rows.cos(), columns.cos(), h, w)
        sin = self._spread(rows.sin(), columns.sin(), h, w)
        return with_leading_rows(cos, sin, self.spec.leading_tokens)

    def _spread(self, rows: Tensor, columns: Tensor, h: int, w: int) -> Tensor:
        """Parts [h, d/4] and [w, d/4] -> [h*w, d/2]."""
        parts = [rows.unsqueeze(1).expand(h, w, -1), columns.unsqueeze(0).expand(h, w, -1)]
        if self.column_first:
            parts.reverse()
        return torch.cat(parts, dim=2).flatten(0, 1)

    def rotate(
        self, q: Tensor, k: Tensor, positions: Positions, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Turn q and k: [B, M, N, d] -> the same shapes."""
        cos, sin = positions["cos"], positions["sin"]
        return rotate(q, cos, sin, self.layout), rotate(k, cos, sin, self.layout)

    def describe(self) -> EncodingDescription:
        """Family, base and layout; recomputed at every size."""
        params: dict[str, Any] = {
            "coordinates": self.coordinates,
            "base": self.base,
            "layout": self.layout,
        }
        if self.coordinates == "eva02":
            params["reference_grid"] = list(self.reference_grid)
        return EncodingDescription(
            self.kind, self.spec.grid, self.spec.leading_tokens, "recompute", params
        )


ENCODING = Rope2D
