"""Fixed 1-D sinusoidal positions (Vaswani et al. 2017, section 3.5) over the raster index.

Channel 2k is the sine, channel 2k+1 the cosine of position times temperature^(-2k/D). Patches are
counted in raster order from 0, so a row of text is the grid (1, length); prefix tokens get zeros.
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
from vitpe_deploy.encodings.sinusoid import (
    TEMPERATURE,
    CoordinateMode,
    check_mode,
    check_temperature,
    coordinates,
    sinusoid,
)
from vitpe_deploy.errors import UsageError


class SinCos1D(PositionEncoding):
    """A computed table [1, prefix + h*w, D], added to the tokens.

    Args of the encoding:
        mode: at another number of patches, ``extrapolate`` counts on, ``rescale`` spreads the
            trained range over them.
        temperature: sets the slowest frequency, nearly 1/temperature radians per position.
        scaling_factor: multiplies the table.
    """

    kind: ClassVar[str] = "sincos-1d"
    networks: ClassVar[tuple[Network, ...]] = ("vit", "text")

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        mode: CoordinateMode = "extrapolate",
        temperature: float = TEMPERATURE,
        scaling_factor: float = 1.0,
    ) -> None:
        super().__init__(spec)
        if spec.embed_dim % 2:
            raise UsageError(
                f"sincos-1d needs an even embed_dim, got {spec.embed_dim}",
                hint="Sines and cosines come in pairs.",
            )
        check_mode(mode)
        check_temperature(temperature)
        self.mode: CoordinateMode = mode
        self.temperature = temperature
        self.scaling_factor = scaling_factor
        self.native = spec.grid[0] * spec.grid[1]

    def positions(self, grid: Grid) -> Positions:
        """The published formula, channel by channel, in float64: [1, prefix + h*w, D]."""
        count = grid[0] * grid[1]
        position = torch.arange(count, dtype=torch.float64)
        if self.mode == "rescale":
            position = (position + 0.5) * self.native / count - 0.5
        channels = []
        for channel in range(0, self.spec.embed_dim, 2):
            angle = position / self.temperature ** (channel / self.spec.embed_dim)
            channels += [torch.sin(angle), torch.cos(angle)]
        return self._join(torch.stack(channels, dim=1).float())

    def fit(self, grid: Grid) -> Positions:
        """The table for one grid, evaluated in float64."""
        return self._join(self._table(grid[0] * grid[1], torch.float64).float())

    def in_graph(self, h: int, w: int) -> Positions:
        """Range, Mul, Sin, Cos."""
        return self._join(self._table(h * w, torch.float32))

    def _table(self, count: int, dtype: torch.dtype) -> Tensor:
        """Patch rows [h*w, D]."""
        position = coordinates(count, self.native, self.mode, dtype)
        return sinusoid(position, self.spec.embed_dim, temperature=self.temperature)

    def _join(self, patches: Tensor) -> Positions:
        """Zero rows for the prefix in front of [h*w, D], times the factor."""
        table = patches.unsqueeze(0)
        if self.scaling_factor != 1.0:
            table = table * self.scaling_factor
        if self.spec.prefix_tokens:
            zeros = torch.zeros(1, self.spec.prefix_tokens, self.spec.embed_dim)
            table = torch.cat([zeros, table], dim=1)
        return {"table": table}

    def tokens(self, x: Tensor, positions: Positions) -> Tensor:
        """Tokens plus table."""
        return x + positions["table"]

    def describe(self) -> EncodingDescription:
        """Mode, temperature and factor; nothing is resampled."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.prefix_tokens,
            self.mode,
            {
                "mode": self.mode,
                "temperature": self.temperature,
                "scaling_factor": self.scaling_factor,
            },
        )


ENCODING = SinCos1D
