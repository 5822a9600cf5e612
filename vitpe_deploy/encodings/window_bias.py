"""Learned relative bias of a window: one table row per offset (Liu et al. 2021, "Swin", eq. 4).

The window is the grid here. It does not change with the size of the image, so an export usually
has nothing to fit. When the window itself is changed, the table of (2h-1) x (2w-1) offsets is
resampled as a picture with one channel per head (section 3.2 there: bicubic).
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

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
from vitpe_deploy.encodings.relative_index import gather_grid
from vitpe_deploy.encodings.resample import (
    ResampleRule,
    interpolate_grid,
    resample_grid,
    resample_grid_in_graph,
)

SWIN_RULE = ResampleRule("bicubic", antialias=False)


class WindowBias(PositionEncoding):
    """A table [(2h-1) * (2w-1), M], gathered and added to the scaled logits."""

    kind: ClassVar[str] = "window-bias"
    networks: ClassVar[tuple[Network, ...]] = ("swin",)

    def __init__(
        self, spec: EncodingSpec, *, std: float = 0.5, rule: ResampleRule = SWIN_RULE
    ) -> None:
        super().__init__(spec)
        self.rule = rule
        self.table = positional_noise(prod(_offsets(spec.grid)), spec.num_heads, std=std)

    def positions(self, grid: Grid) -> Positions:
        """The table's own rows; through torch's interpolation for another window."""
        return _spread(interpolate_grid(self._picture(), _offsets(grid), self.rule), grid)

    def fit(self, grid: Grid) -> Positions:
        """Bias [1, M, h*w, h*w] of a window; nothing is resampled at the native one."""
        return _spread(resample_grid(self._picture(), _offsets(grid), self.rule), grid)

    def in_graph(self, h: int, w: int) -> Positions:
        """Two MatMuls, and Gathers by indices from Range."""
        table = resample_grid_in_graph(self._picture(), *_offsets((h, w)), self.rule)
        return _spread(table, (h, w))

    def _picture(self) -> Tensor:
        """The table [2h-1, 2w-1, M]."""
        return self.table.reshape(*_offsets(self.spec.grid), self.spec.num_heads)

    def attention_bias(self, positions: Positions, layer: int) -> Tensor:
        """[1, M, h*w, h*w]."""
        return positions["bias"]

    def describe(self) -> EncodingDescription:
        """Native window and the resample rule."""
        return EncodingDescription(self.kind, self.spec.grid, 0, str(self.rule))


def _offsets(window: Grid) -> Grid:
    """How many offsets there are along each axis of a window."""
    return 2 * window[0] - 1, 2 * window[1] - 1


def _spread(table: Tensor, window: Grid) -> Positions:
    """[2h-1, 2w-1, M] -> the bias of every pair."""
    return {"bias": gather_grid(table.permute(2, 0, 1), *window).unsqueeze(0)}


ENCODING = WindowBias
