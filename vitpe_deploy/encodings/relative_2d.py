"""Global relative bias of a patch grid (Bao et al. 2022, BEiT; Swin's bias over a whole picture).

A flat table holds one value per head for each of the (2h-1)(2w-1) offsets of two patches, row
offset first. Three more rows serve the tokens in front of the patches, in BEiT's order: cls query
to patch, patch to cls key, cls to cls. BEiT has one such token; when there are more (distillation,
registers) they share these rows.
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
    Positions,
    positional_noise,
)
from vitpe_deploy.encodings.geometric_grid import geometric_matrix, geometric_offsets
from vitpe_deploy.encodings.relative_bias import Placement, RelativeBias
from vitpe_deploy.encodings.relative_index import gather_grid, grid_index, with_leading_tokens
from vitpe_deploy.encodings.resample import (
    ResampleRule,
    interpolate_grid,
    resample_grid,
    resample_grid_in_graph,
)
from vitpe_deploy.errors import UnsupportedError, UsageError

Resample: TypeAlias = Literal["bicubic", "geometric"]

_LEADING_ROWS = 3


class Relative2D(RelativeBias):
    """A table [layers, (2h-1)(2w-1) + 3, M]; without leading tokens the last three rows are absent.

    Args of the encoding:
        resample: at another grid, ``bicubic`` reads the table as a (2h-1) x (2w-1) picture,
            ``geometric`` places its rows by :mod:`vitpe_deploy.encodings.geometric_grid`.
        rule: the picture's rule; bicubic unless told otherwise.
        shared, placement: see :class:`RelativeBias`.
        std: standard deviation of the initial table.
    """

    kind: ClassVar[str] = "relative-2d"
    networks: ClassVar[tuple[Network, ...]] = ("vit",)

    def __init__(
        self,
        spec: EncodingSpec,
        *,
        resample: Resample = "bicubic",
        rule: ResampleRule = ResampleRule(antialias=False),
        shared: bool = True,
        placement: Placement = "after",
        std: float = 0.5,
    ) -> None:
        super().__init__(spec, shared=shared, placement=placement)
        if resample not in ("bicubic", "geometric"):
            raise UsageError(
                f"relative-2d resample {resample!r} is not known",
                hint="Choose bicubic or geometric.",
            )
        self.resample: Resample = resample
        self.rule = rule
        h, w = spec.grid
        self.leading_rows = _LEADING_ROWS if spec.leading_tokens else 0
        rows = (2 * h - 1) * (2 * w - 1) + self.leading_rows
        self.table = positional_noise(self.layers, rows, spec.num_heads, std=std)

    def _split(self) -> tuple[Tensor, Tensor]:
        """The picture [2h-1, 2w-1, layers * M] and the rows of leading tokens [3, layers * M]."""
        h, w = self.spec.grid
        rows = self.table.transpose(0, 1).flatten(1)
        count = (2 * h - 1) * (2 * w - 1)
        return torch.unflatten(rows[:count], 0, (2 * h - 1, 2 * w - 1)), rows[count:]

    def fitted_table(self, grid: Grid) -> Tensor:
        """The table of another grid, always from the original: [layers, (2h-1)(2w-1) + 3, M]."""
        offsets, leading = self._split()
        rows = torch.cat([self._fitted(offsets, grid).flatten(0, 1), leading])
        return torch.unflatten(rows, 1, (self.layers, -1)).transpose(0, 1)

    def _fitted(self, table: Tensor, grid: Grid) -> Tensor:
        """table: [2h0-1, 2w0-1, K] -> [2h-1, 2w-1, K]."""
        size = (2 * grid[0] - 1, 2 * grid[1] - 1)
        if self.resample == "bicubic":
            return resample_grid(table, size, self.rule)
        if tuple(grid) == tuple(self.spec.grid):
            return table  # an axis that stays is re-read as well, but only when the other changes
        rows, columns = (
            torch.from_numpy(geometric_matrix(old, new)).to(table.device)
            for old, new in zip(table.shape[:2], size, strict=True)
        )
        return torch.einsum("ij,jkd,lk->ild", rows, table.double(), columns).to(table.dtype)

    def positions(self, grid: Grid) -> Positions:
        """The interpolated table read by the flat index of every pair: [layers, M, N, N]."""
        h, w = grid
        table, leading = self._split()
        size = (2 * h - 1, 2 * w - 1)
        if self.resample == "bicubic":
            table = interpolate_grid(table, size, self.rule)
        elif tuple(grid) != tuple(self.spec.grid):
            table = _read_uneven(table, size)
        pairs = table.flatten(0, 1)[grid_index(h, w, table.device)]  # [h*w, h*w, layers * M]
        return self._framed(pairs.permute(2, 0, 1), leading)

    def fit(self, grid: Grid) -> Positions:
        """The fitted table spread over all pairs: [layers, M, N, N]."""
        table, leading = self._split()
        fitted = self._fitted(table, grid).permute(2, 0, 1)
        return self._framed(gather_grid(fitted, *grid), leading)

    def in_graph(self, h: int, w: int) -> Positions:
        """Two MatMuls on the table and two Gathers.

        Raises:
            UnsupportedError: BEiT's geometric grid, whose ratio has no closed form in h and w.
        """
        if self.resample == "geometric":
            raise UnsupportedError(
                "relative-2d with resample 'geometric' cannot follow a dynamic size: the ratio q "
                "of its grid solves q^0 + ... + q^(n-1) = m, which has no closed form in the size",
                hint="Export one file per size (--buckets), or use resample 'bicubic'.",
            )
        table, leading = self._split()
        table = resample_grid_in_graph(table, 2 * h - 1, 2 * w - 1, self.rule)
        return self._framed(gather_grid(table.permute(2, 0, 1), h, w), leading)

    def _framed(self, bias: Tensor, leading: Tensor) -> Positions:
        """bias: [layers * M, h*w, h*w], leading: [3, layers * M]."""
        return self.placed(with_leading_tokens(bias, self.spec.leading_tokens, leading))

    def describe(self) -> EncodingDescription:
        """Native grid and how the table is resampled."""
        return EncodingDescription(
            self.kind,
            self.spec.grid,
            self.spec.leading_tokens,
            "geometric" if self.resample == "geometric" else str(self.rule),
            {"shared": self.shared, "placement": self.placement, "resample": self.resample},
        )


def _read_uneven(table: Tensor, size: tuple[int, int]) -> Tensor:
    """Read the two neighbours of each new offset on the uneven grid, first rows, then columns.

    table: [rows, columns, K] -> [*size, K].
    """
    for axis, new in enumerate(size):
        knots = torch.from_numpy(geometric_offsets(table.shape[axis], new)).to(table)
        target = torch.arange(new).to(table) - new // 2
        right = torch.searchsorted(knots, target).clamp(1, len(knots) - 1)
        step = knots[right] - knots[right - 1]
        share = ((target - knots[right - 1]) / step).clamp(0, 1)
        share = share.reshape(-1, *[1] * (2 - axis))
        table = torch.lerp(
            table.index_select(axis, right - 1), table.index_select(axis, right), share
        )
    return table


ENCODING = Relative2D
