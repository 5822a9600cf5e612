"""Fixed sinusoids for video, factorised: a table of time steps plus a table of places.

A token at time t, row y and column x gets ``time[t] + space[y, x]`` at full width, as ViViT
(Arnab et al. 2021, section 3.4) adds its temporal and spatial tables. Time counts 1-D sinusoids
(Vaswani et al. 2017, section 3.5); space is half row, half column, each of them 1-D.

At a new size ``extrapolate`` counts on, and ``rescale`` spreads the trained rows and columns over
the new ones. The number of time steps belongs to the model.
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


class SinCos3D(PositionEncoding):
    """A computed table [1, t*h*w, D], added to the tokens."""

    kind: ClassVar[str] = "sincos-3d"
    networks: ClassVar[tuple[Network, ...]] = ("video",)

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        mode: CoordinateMode = "extrapolate",
        temperature: float = TEMPERATURE,
        scaling_factor: float = 1.0,
    ) -> None:
        """Check the options and keep them.

        Args:
            spec: its embed_dim is a multiple of 4, its frames the time steps.
            mode: where a new grid lies on the trained one.
            temperature: sets the slowest frequency, nearly 1/temperature radians per position.
            scaling_factor: multiplies the encoding.

        Raises:
            UsageError: an unknown mode, or a width that has no quarter.
        """
        super().__init__(spec)
        if spec.embed_dim % 4:
            raise UsageError(
                f"sincos-3d needs an embed_dim that is a multiple of 4, got {spec.embed_dim}",
                hint="A sine and a cosine for each of rows and columns share the channels.",
            )
        check_mode(mode)
        check_temperature(temperature)
        self.mode: CoordinateMode = mode
        self.temperature = temperature
        self.scaling_factor = scaling_factor

    def positions(self, grid: Grid) -> Positions:
        """The formula token by token, in the order of time, row, column."""
        (h, w), (h_old, w_old) = grid, self.spec.grid
        dim = self.spec.embed_dim
        steps = torch.cartesian_prod(
            *(torch.arange(n, dtype=torch.float64) for n in (self.spec.frames, h, w))
        ).reshape(-1, 3)
        t, y, x = steps.unbind(1)
        if self.mode == "rescale":
            y = (y + 0.5) * h_old / h - 0.5
            x = (x + 0.5) * w_old / w - 0.5

        def channels(axis: Tensor, width: int) -> list[Tensor]:
            angles = [axis * self.temperature ** (-2 * k / width) for k in range(width // 2)]
            return [turn(angle) for angle in angles for turn in (torch.sin, torch.cos)]

        time = torch.stack(channels(t, dim), dim=1)
        space = torch.stack(channels(y, dim // 2) + channels(x, dim // 2), dim=1)
        return {"table": ((time + space) * self.scaling_factor).float().unsqueeze(0)}

    def fit(self, grid: Grid) -> Positions:
        """The table for one grid, evaluated in float64."""
        return {"table": self._table(*grid, torch.float64).float()}

    def in_graph(self, h: int, w: int) -> Positions:
        """The table from symbolic sizes: sines per axis, added by broadcasting."""
        return {"table": self._table(h, w, torch.float32)}

    def _table(self, h: int, w: int, dtype: torch.dtype) -> Tensor:
        dim = self.spec.embed_dim
        at = torch.arange(self.spec.frames, dtype=dtype)
        time = sinusoid(at, dim, temperature=self.temperature)  # [t, D]
        rows, columns = (
            sinusoid(
                coordinates(new, old, self.mode, dtype), dim // 2, temperature=self.temperature
            )
            for new, old in zip((h, w), self.spec.grid, strict=True)
        )
        space = torch.cat(
            [
                rows.unsqueeze(1).expand(h, w, dim // 2),
                columns.unsqueeze(0).expand(h, w, dim // 2),
            ],
            dim=-1,
        ).flatten(0, 1)  # [h*w, D]
        table = time.unsqueeze(1) + space  # [t, h*w, D]
        return (table * self.scaling_factor).flatten(0, 1).unsqueeze(0)

    def tokens(self, x: Tensor, positions: Positions) -> Tensor:
        """Add the table: x + table."""
        return x + positions["table"]

    def describe(self) -> EncodingDescription:
        """Native grid and options; nothing is resampled."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            0,
            None,
            {
                "mode": self.mode,
                "time_steps": self.spec.frames,
                "temperature": self.temperature,
                "scaling_factor": self.scaling_factor,
            },
        )


ENCODING = SinCos3D
