"""What was found in a model (:class:`PositionSet`) and what is drawn of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from vitpe_deploy.plot.similarity import Array, Grid
from vitpe_deploy.request import Resolution

Kind: TypeAlias = Literal["similarity", "matrix", "bias", "frequencies"]

KINDS: tuple[Kind, ...] = ("similarity", "matrix", "bias", "frequencies")

MAX_LEADING = 32
"""More tokens than this in front of the patches are not prefix tokens but another grid."""

BIAS = "bias of the attention logit"
DECOMPOSED = "standard deviation of the bias over queries N(0, 1)"
NATIVE = "native"
RECOMPUTED = "recomputed"
AS_IN_FILE = "as in the file"


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of one layer: [M, N, P] each; M is 1 when all heads share them."""

    cos: Array
    sin: Array


@dataclass(frozen=True, slots=True)
class PositionSet:
    """Everything positional that a network reads at one size.

    Attributes:
        grid: patches, rows first; of the window where attention sees windows.
        table: [L + t*h*w, D], what is added to the tokens.
        biases: [M, N, N] of each layer that has one.
        rotations: cos and sin of each layer; a single one when all layers share it.
        resolution: of the picture, where the grid follows it.
        frames: t, time steps.
        note: where these positions come from: ``native`` or the resample rule.
        bias_meaning: what a number of ``biases`` is.
    """

    grid: Grid
    table: Array | None = None
    biases: tuple[Array, ...] = ()
    rotations: tuple[Rotation, ...] = ()
    resolution: Resolution | None = None
    frames: int = 1
    note: str = NATIVE
    bias_meaning: str = BIAS

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The pictures that can be made of it, the most telling one first."""
        found: list[Kind] = []
        if self.table is not None:
            # On a line, a map per position is the matrix in pieces.
            found += ["matrix", "similarity"] if self.grid[0] == 1 else ["similarity", "matrix"]
        if self.biases:
            found.append("bias")
        if self.rotations:
            found.append("frequencies")
            found += [] if self.table is not None else ["similarity", "matrix"]
        return tuple(found)

    def placed(self, tokens: int) -> tuple[Grid, int]:
        """The grid that this many tokens lie on, and how many of them are in front of it.

        Fewer tokens than the picture has are a square window.
        """
        leading = leading_tokens(tokens, self.grid, self.frames)
        if leading is not None:
            return self.grid, leading
        side = math.isqrt(tokens)
        return (side, tokens // side), 0


class PositionReader(Protocol):
    """Where positions come from: a reference network, a watched model or an ONNX file."""

    name: str
    encoding: str | None

    def sets(self, resolutions: Sequence[Resolution]) -> tuple[PositionSet, ...]:
        """Positions before resampling, where they are known, then at each size.

        Raises:
            VitpeError: a size that is not possible, or nothing that could be found.
        """


def leading_tokens(tokens: int, grid: Grid, frames: int = 1) -> int | None:
    """How many tokens come before the patches; None when the numbers do not fit."""
    extra = tokens - frames * grid[0] * grid[1]
    return extra if 0 <= extra <= MAX_LEADING else None


@dataclass(frozen=True, slots=True)
class Panel:
    """One grid's part of a picture.

    Attributes:
        grid: patches, rows first.
        resolution: of the picture in pixels, where the grid follows it.
        note: ``native`` or the resample rule.
        prefix_tokens: rows in front of the patches; only ``matrix`` shows them.
        values: ``similarity`` [h, w, h, w]; ``matrix`` [N, N]; ``bias`` [M, h, w];
            ``frequencies`` [P, h, w], cosines.
        query: row and column of the patch that a bias belongs to.
        steps: ``frequencies`` only, [P, 2]: radians to the next row and to the next column.
    """

    grid: Grid
    resolution: Resolution | None
    note: str
    prefix_tokens: int
    values: Array
    query: Grid | None = None
    steps: Array | None = None

    @property
    def label(self) -> str:
        """``grid 9x9 (144x144 px), bicubic antialias``."""
        size = f" ({self.resolution} px)" if self.resolution is not None else ""
        return f"grid {self.grid[0]}x{self.grid[1]}{size}, {self.note}"

    def as_document(self) -> dict[str, Any]:
        """Plain numbers; what is not a number is null."""
        return {
            "resolution": None if self.resolution is None else self.resolution.as_list(),
            "grid": list(self.grid),
            "note": self.note,
            "prefix_tokens": self.prefix_tokens,
            "query": None if self.query is None else list(self.query),
            "values": _plain(self.values),
            "radians_per_patch": None if self.steps is None else _plain(self.steps),
        }


@dataclass(frozen=True, slots=True)
class PositionPlot:
    """A picture as numbers: before resampling first, then after.

    Attributes:
        model: name of the network or file.
        encoding: kind of positions, as far as it is known.
        kind: what is shown.
        meaning: what one number is.
        layer: the layer shown; None where all share their positions.
        heads: the heads shown, one per map of ``bias``; empty where heads share their positions.
        chosen: parts of the file name that say which of several pictures this is.
        panels: one per grid.
    """

    model: str
    encoding: str | None
    kind: Kind
    meaning: str
    layer: int | None
    heads: tuple[int, ...]
    chosen: tuple[str, ...]
    panels: tuple[Panel, ...]

    @property
    def stem(self) -> str:
        """File name without its ending."""
        sizes = [str(p.resolution) for p in self.panels[1:] if p.resolution is not None]
        return "-".join([self.model, self.kind, *self.chosen, *sizes])

    def as_document(self, files: Sequence[Path] = ()) -> dict[str, Any]:
        """The ``vitpe.plot/1`` document that ``--json`` prints."""
        return {
            "schema": "vitpe.plot/1",
            "model": self.model,
            "encoding": self.encoding,
            "kind": self.kind,
            "meaning": self.meaning,
            "grid": list(self.panels[0].grid),
            "layer": self.layer,
            "heads": list(self.heads),
            "panels": [panel.as_document() for panel in self.panels],
            "files": [{"path": str(f), "format": f.suffix.lstrip(".")} for f in files],
        }


def _plain(values: Array) -> list[Any]:
    """Six decimals are more than a picture shows."""
    rounded = np.round(values.astype(np.float64), 6).astype(object)
    rounded[~np.isfinite(values)] = None
    listed: list[Any] = rounded.tolist()
    return listed
