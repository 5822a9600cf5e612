"""What a file is: its positions and native size, and what must change for another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitpe_deploy.request import Resolution
from vitpe_deploy.retarget.find_positions import FoundPosition
from vitpe_deploy.retarget.info import Findings
from vitpe_deploy.retarget.probes import Probes
from vitpe_deploy.retarget.read import PictureGraph
from vitpe_deploy.retarget.walk import walk

_GRID_OF_A_FREE_FILE = (14, 14)
"""Where a file with symbolic axes is thought through first; any size would do."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """A graph, the sizes it was thought through at, and what was found."""

    graph: PictureGraph
    probes: Probes
    found: Findings

    @property
    def positions(self) -> tuple[FoundPosition, ...]:
        """All sets of positions, those that the graph resizes itself first."""
        return (*self.found.resized, *self.found.positions)

    @property
    def prefix(self) -> int:
        """Rows in front of those of patches, as far as positions tell."""
        return max((p.prefix for p in self.positions), default=0)


def analyse(
    graph: PictureGraph,
    *,
    batch: int | None = None,
    any_batch: bool = False,
    any_size: bool = True,
    wanted: Sequence[tuple[Resolution, int]] = (),
) -> Analysis:
    """Think a graph through at its own size, at some that are unlike it, and at those wanted.

    Args:
        graph: the file.
        batch: batch of a file whose batch is symbolic, where it is to be fixed.
        any_size: whether height and width may change.
        any_batch: whether the batch may change.
        wanted: further sizes and batches, each a whole number of patches.

    Raises:
        UnsupportedError: the graph cannot change its size; the node is named.
    """
    patch = graph.patch
    rows, columns = _GRID_OF_A_FREE_FILE
    native = graph.declared or Resolution(rows * patch[0], columns * patch[1])
    probes = Probes(
        patch,
        native,
        graph.batch or batch or 1,
        any_batch=any_batch,
        any_size=any_size,
        wanted=wanted,
    )
    height, width = probes.pixels()
    channels = np.full(len(probes), graph.channels, dtype=np.int64)
    found = walk(graph.model, graph.source, [probes.batches(), channels, height, width], probes)
    return Analysis(graph, probes, found)


def find_positions(graph: PictureGraph) -> tuple[FoundPosition, ...]:
    """The sets of positions of a file, each with the node that reads it.

    Raises:
        UnsupportedError: the graph depends on its size in a way that cannot be told.
    """
    return analyse(graph).positions
