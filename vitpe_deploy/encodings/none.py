"""No positions at all: the network sees a bag of patches."""

from __future__ import annotations

from typing import ClassVar

from vitpe_deploy.encodings.base import (
    EncodingDescription,
    Grid,
    Network,
    PositionEncoding,
    Positions,
)


class NoEncoding(PositionEncoding):
    """Nothing to fit and nothing to compute, at any grid."""

    kind: ClassVar[str] = "none"
    networks: ClassVar[tuple[Network, ...]] = ("vit", "text", "video", "detr")

    def positions(self, grid: Grid) -> Positions:
        """Empty."""
        return {}

    def fit(self, grid: Grid) -> Positions:
        """Empty."""
        return {}

    def in_graph(self, h: int, w: int) -> Positions:
        """Empty."""
        return {}

    def describe(self) -> EncodingDescription:
        """Kind only."""
        return EncodingDescription(self.kind, None, 0, None)


ENCODING = NoEncoding
