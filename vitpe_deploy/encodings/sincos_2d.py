"""Fixed 2-D sinusoidal positions: half of the channels for each axis, nothing learned.

The layouts in use differ in the order of axes and channels, so they go by the name of the code
that made them known:

* ``mae`` - MAE (He et al. 2022), MoCo v3 and most self-supervised ViTs. Sines, then cosines, per
  axis. The *first* half encodes the *column*: the published function names its halves height and
  width but builds its mesh width first, and the weights were trained with that.
* ``detr`` - DETR (Carion et al. 2020). Row half first, sine and cosine interleaved, coordinates
  normalised to ``2 pi (i + 1) / (n + 1e-6)``, so a larger grid is a finer one.
* ``interleaved`` - row half first, sine and cosine interleaved, coordinates counted from 0.

At a new size ``extrapolate`` evaluates the formula on the new grid as published, and ``rescale``
reads it at (i + 1/2) n_old / n_new - 1/2 on the trained one.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, TypeAlias, get_args

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
from vitpe_deploy.encodings.sinusoid import (
    TEMPERATURE,
    CoordinateMode,
    check_mode,
    check_temperature,
    coordinates,
    sinusoid,
)
from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import closest

Layout: TypeAlias = Literal["mae", "detr", "interleaved"]

_DETR_EPS = 1e-6
"""Added to the number of rows and columns by DETR before it divides."""


class SinCos2D(PositionEncoding):
    """A computed table [1, prefix + h*w, D], added to the tokens; prefix rows are zero."""

    kind: ClassVar[str] = "sincos-2d"
    networks: ClassVar[tuple[Network, ...]] = ("vit", "detr")

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        layout: Layout = "mae",
        mode: CoordinateMode = "extrapolate",
        temperature: float = TEMPERATURE,
        scaling_factor: float = 1.0,
        learnable_scale: bool = False,
    ) -> None:
        """Check the options and keep them.

        Args:
            spec: the network; its embed_dim is a multiple of 4.
            layout: order of axes and channels.
            mode: where a new grid lies on the trained one.
            temperature: sets the slowest frequency, nearly 1/temperature radians per position.
            scaling_factor: multiplies the encoding.
            learnable_scale: whether the factor is a parameter that starts there.

        Raises:
            UsageError: an unknown name, or a width that has no quarter.
        """
        super().__init__(spec)
        if spec.embed_dim % 4:
            raise UsageError(
                f"sincos-2d needs an embed_dim that is a multiple of 4, got {spec.embed_dim}",
                hint="A sine and a cosine for each of two axes share the channels.",
            )
        if layout not in get_args(Layout):
            raise UsageError(
                f"sincos-2d layout {layout!r} is not known",
                hint=f"{closest(layout, get_args(Layout))}"
                f"Choose from: {', '.join(get_args(Layout))}.",
            )
        check_mode(mode)
        check_temperature(temperature)
        self.layout = layout
        self.mode = mode
        self.temperature = temperature
        self.scaling_factor: float | nn.Parameter = (
            nn.Parameter(torch.tensor(scaling_factor)) if learnable_scale else scaling_factor
        )

    def positions(self, grid: Grid) -> Positions:
        """The published formula, channel by channel, on a mesh of cells."""
        (h, w), (h_old, w_old) = grid, self.spec.grid
        y, x = torch.meshgrid(
            torch.arange(h, dtype=torch.float64),
            torch.arange(w, dtype=torch.float64),
            indexing="ij",
        )  # [h, w] each
        if self.mode == "rescale":
            y = (y + 0.5) * h_old / h - 0.5
            x = (x + 0.5) * w_old / w - 0.5
            h, w = h_old, w_old
        if self.layout == "detr":
            y = (y + 1) / (h + _DETR_EPS) * 2 * math.pi
            x = (x + 1) / (w + _DETR_EPS) * 2 * math.pi
        quarter = self.spec.embed_dim // 4
        omega = [self.temperature ** (-k / quarter) for k in range(quarter)]
        if self.layout == "mae":
            channels = [
                turn(axis * o) for axis in (x, y) for turn in (torch.sin, torch.cos) for o in omega
            ]
        else:
            channels = [
                turn(axis * o) for axis in (y, x) for o in omega for turn in (torch.sin, torch.cos)
            ]
        return self._join(torch.stack(channels, dim=-1).flatten(0, 1).float())

    def fit(self, grid: Grid) -> Positions:
        """The table for one grid, evaluated in float64."""
        return self._join(self._table(*grid, torch.float64).float())

    def in_graph(self, h: int, w: int) -> Positions:
        """The table from symbolic sizes: one column of sines per axis, expanded over the other."""
        return self._join(self._table(h, w, torch.float32))

    def _table(self, h: int, w: int, dtype: torch.dtype) -> Tensor:
        """Patch rows [h*w, D] in raster order, unscaled."""
        half = self.spec.embed_dim // 2
        rows = self._axis(h, self.spec.grid[0], dtype).unsqueeze(1).expand(h, w, half)
        columns = self._axis(w, self.spec.grid[1], dtype).unsqueeze(0).expand(h, w, half)
        halves = (columns, rows) if self.layout == "mae" else (rows, columns)
        return torch.cat(halves, dim=-1).flatten(0, 1)

    def _axis(self, n_new: int, n_old: int, dtype: torch.dtype) -> Tensor:
        """One axis [n_new, D/2]."""
        at = coordinates(n_new, n_old, self.mode, dtype)
        if self.layout == "detr":
            cells = torch.scalar_tensor(n_old if self.mode == "rescale" else n_new, dtype=dtype)
            at = (at + 1) * (2 * math.pi) / (cells + _DETR_EPS)
        return sinusoid(
            at,
            self.spec.embed_dim // 2,
            temperature=self.temperature,
            interleaved=self.layout != "mae",
        )

    def _join(self, patches: Tensor) -> Positions:
        """Zero rows for the prefix in front of [h*w, D], times the factor."""
        if isinstance(self.scaling_factor, Tensor) or self.scaling_factor != 1:
            patches = patches * self.scaling_factor
        table = patches.unsqueeze(0)
        if self.spec.prefix_tokens:
            zeros = torch.zeros(1, self.spec.prefix_tokens, self.spec.embed_dim)
            table = torch.cat([zeros, table], dim=1)
        return {"table": table}

    def tokens(self, x: Tensor, positions: Positions) -> Tensor:
        """Tokens plus table."""
        return x + positions["table"]

    def describe(self) -> EncodingDescription:
        """Layout, mode, temperature and factor; nothing is resampled."""
        factor = self.scaling_factor
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.prefix_tokens,
            None,
            {
                "layout": self.layout,
                "mode": self.mode,
                "temperature": self.temperature,
                "scaling_factor": factor.item() if isinstance(factor, Tensor) else factor,
            },
        )


ENCODING = SinCos2D
