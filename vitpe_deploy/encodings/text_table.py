"""Learned absolute positions of text: ``--pe learned-1d`` as a text tower places it.

Token i reads row i of a table of ``context_length`` rows (Radford et al. 2021, "CLIP", section
2.4), times a scale factor. A picture's table is resampled when the grid changes
(:mod:`vitpe_deploy.encodings.learned_1d`); a sentence is not: word 3 of a short text is word 3
of a long one, so shorter text reads the first rows and longer text is refused, unless the table
was stretched first (:func:`stretch_rows`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
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
from vitpe_deploy.text_length import (
    KEPT_POSITIONS,
    STRETCH,
    check_max_length,
    stretched_length,
    too_long,
)


def stretch_rows(rows: Tensor) -> Tensor:
    """The stretch of a position table by Zhang et al. 2024 ("Long-CLIP", section 3.1).

    Row j < 20 is row j. Row j >= 20 lies at ``c = 20 + (j - 20) / 4`` on the straight line
    between the rows around c; the last three lie behind the last row, on the line through the
    last two. Rows 20 + 4k repeat row 20 + k bit for bit.

    Args:
        rows: [L, D] with L > 20.

    Returns:
        [20 + 4 * (L - 20), D].

    Raises:
        SizeError: L is 20 or less.
    """
    length = rows.shape[0]
    j = torch.arange(stretched_length(length) - KEPT_POSITIONS, device=rows.device)
    base = KEPT_POSITIONS + j // STRETCH  # [4 * (L - 20)], the row at or before c
    fraction = (j % STRETCH).to(rows.dtype).unsqueeze(1) / STRETCH
    slope_from = base.clamp(max=length - 2)  # behind the last row the last slope goes on
    slope = rows[slope_from + 1] - rows[slope_from]
    return torch.cat([rows[:KEPT_POSITIONS], rows[base] + fraction * slope])


class TextTable(PositionEncoding):
    """A table [1, context_length, D] times ``scaling_factor``, added to the tokens.

    Args:
        spec: ``grid`` is ``(1, context_length)``, without prefix tokens.
        std: standard deviation of the initial table.
        scaling_factor: multiplies the table when it is added.
        stretched_from: rows of the table that this one was stretched from.
    """

    kind: ClassVar[str] = "learned-1d"
    networks: ClassVar[tuple[Network, ...]] = ("text",)

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        std: float = 0.5,
        scaling_factor: float = 1.0,
        stretched_from: int | None = None,
    ) -> None:
        super().__init__(spec)
        self.scaling_factor = scaling_factor
        self.stretched_from = stretched_from
        self.table = positional_noise(1, self.max_length, spec.embed_dim, std=std)

    @property
    def max_length(self) -> int:
        """Rows of the table."""
        return self.spec.grid[1]

    def with_max_length(self, max_length: int) -> TextTable:
        """A new encoding of ``max_length`` rows: the first ones of this table, or its stretch.

        Raises:
            SizeError: longer than the table, and not the one length that the stretch gives.
        """
        stretch = check_max_length(
            max_length, self.max_length, stretched=self.stretched_from is not None
        )
        rows = self.table.detach()[0]
        rows = stretch_rows(rows) if stretch else rows[:max_length]
        result = TextTable(
            replace(self.spec, grid=(1, max_length)),
            scaling_factor=self.scaling_factor,
            stretched_from=self.max_length if stretch else self.stretched_from,
        )
        result.table = torch.nn.Parameter(rows.clone().unsqueeze(0), self.table.requires_grad)
        return result.train(self.training)

    def positions(self, grid: Grid) -> Positions:
        """Rows 0 .. L-1 for ``grid = (1, L)``, looked up by position id as published."""
        self._refuse_longer(grid[1])
        ids = torch.arange(grid[1], device=self.table.device)
        return self._scaled(F.embedding(ids, self.table[0]).unsqueeze(0))

    def fit(self, grid: Grid) -> Positions:
        """The first L rows [1, L, D], scaled."""
        self._refuse_longer(grid[1])
        return self._scaled(self.table[:, : grid[1]])

    def in_graph(self, h: int, w: int) -> Positions:
        """A Slice by length.

        Not a Gather by position ids: OpenVINO answers an index behind the table with zeros, where
        a slice that came out too short fails in the addition, in every engine.
        """
        return self._scaled(self.table[:, :w])

    def tokens(self, x: Tensor, positions: Positions) -> Tensor:
        """Tokens plus the table."""
        return x + positions["table"]

    def describe(self) -> EncodingDescription:
        """Rows, scale factor, and the rule for other lengths."""
        rule = "slice"
        if self.stretched_from is not None:
            rule = f"long-clip stretch {self.stretched_from} -> {self.max_length}, slice"
        return EncodingDescription(
            self.kind, self.spec.grid, 0, rule, {"scaling_factor": self.scaling_factor}
        )

    def _scaled(self, rows: Tensor) -> Positions:
        return {"table": rows if self.scaling_factor == 1.0 else rows * self.scaling_factor}

    def _refuse_longer(self, length: int) -> None:
        if length > self.max_length:
            raise too_long(length, self.max_length, stretchable=self.stretched_from is None)
