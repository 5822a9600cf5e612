"""Learned relative bias over time, height and width (Liu et al. 2022, "Video Swin Transformer").

As in section 3.2 there: a table row for every offset of two tokens of a window, time outermost,
(2t-1) (2h-1) (2w-1) rows, one table per layer. The number of time steps belongs to the model.
Height and width of the window may change at export: then each time offset is resampled as a
picture, and offsets in time stay what they are.
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
from vitpe_deploy.encodings.relative_index import grid_index, offset_index
from vitpe_deploy.encodings.resample import (
    ResampleRule,
    interpolate_grid,
    resample_grid,
    resample_grid_in_graph,
)

PICTURE_RULE = ResampleRule("bicubic", antialias=False)


def volume_index(t: int, h: int, w: int, device: torch.device | None = None) -> Tensor:
    """Row of a flat table for all pairs of a video window, as Video Swin numbers them.

    The pair with shifted offsets a, b, c reads row ``(a (2h - 1) + b) (2w - 1) + c``.

    Args:
        t: time steps.
        h: rows, may be a ``torch.SymInt``.
        w: columns, may be a ``torch.SymInt``.
        device: where the index lives.

    Returns:
        [t*h*w, t*h*w] with values 0..(2t-1)(2h-1)(2w-1)-1.
    """
    time = offset_index(t, device) * ((2 * h - 1) * (2 * w - 1))  # [t, t]
    index = time.reshape(t, 1, t, 1) + grid_index(h, w, device).unsqueeze(1)  # [t, hw, t, hw]
    return index.reshape(t * h * w, t * h * w)


class Relative3D(PositionEncoding):
    """Tables [layers, (2t-1) * (2h-1) * (2w-1), M], gathered and added to the scaled logits."""

    kind: ClassVar[str] = "relative-3d"
    networks: ClassVar[tuple[Network, ...]] = ("video",)

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        shared: bool = False,
        std: float = 0.5,
        rule: ResampleRule = PICTURE_RULE,
    ) -> None:
        """Make the tables.

        Args:
            spec: its grid is the rows and columns of a window, its frames the time steps.
            shared: one table for all layers.
            std: of the random rows.
            rule: how rows and columns of offsets are resampled.
        """
        super().__init__(spec)
        self.shared = shared
        self.rule = rule
        t, h, w = self._offsets(spec.grid)
        layers = 1 if shared else spec.depth
        self.table = positional_noise(layers, t * h * w, spec.num_heads, std=std)

    def _offsets(self, grid: Grid) -> tuple[int, int, int]:
        return 2 * self.spec.frames - 1, 2 * grid[0] - 1, 2 * grid[1] - 1

    def _picture(self) -> Tensor:
        """The tables with everything but rows and columns as channels: [2h-1, 2w-1, L*T*M]."""
        table = self.table.reshape(-1, *self._offsets(self.spec.grid), self.spec.num_heads)
        return table.permute(2, 3, 0, 1, 4).flatten(2)

    def _spread(self, picture: Tensor, grid: Grid) -> Positions:
        """[2h-1, 2w-1, L*T*M] -> bias [L, M, n, n]."""
        t, h, w = self._offsets(grid)
        heads, n = self.spec.num_heads, self.spec.frames * grid[0] * grid[1]
        table = picture.reshape(h * w, -1, t, heads)
        table = table.permute(1, 3, 2, 0).flatten(2)  # [L, M, T*h*w]
        index = volume_index(self.spec.frames, *grid, device=table.device).flatten()
        return {"bias": table.index_select(2, index).reshape(-1, heads, n, n)}

    def positions(self, grid: Grid) -> Positions:
        """The tables' own rows; through torch's interpolation for another window."""
        return self._spread(
            interpolate_grid(self._picture(), self._offsets(grid)[1:], self.rule), grid
        )

    def fit(self, grid: Grid) -> Positions:
        """Bias [L, M, t*h*w, t*h*w]; nothing is resampled at the native window."""
        return self._spread(
            resample_grid(self._picture(), self._offsets(grid)[1:], self.rule), grid
        )

    def in_graph(self, h: int, w: int) -> Positions:
        """Two MatMuls, and a Gather by an index from Range."""
        _, rows, columns = self._offsets((h, w))
        return self._spread(
            resample_grid_in_graph(self._picture(), rows, columns, self.rule), (h, w)
        )

    def attention_bias(self, positions: Positions, layer: int) -> Tensor:
        """[1, M, t*h*w, t*h*w] of one layer."""
        bias = positions["bias"]
        return bias if self.shared else bias[layer : layer + 1]

    def describe(self) -> EncodingDescription:
        """Native window and the resample rule."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            0,
            str(self.rule),
            {"time_steps": self.spec.frames, "shared": self.shared},
        )


ENCODING = Relative3D
