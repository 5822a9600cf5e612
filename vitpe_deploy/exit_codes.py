"""The exit code of several things that did not go well: that of the worst."""

from __future__ import annotations

from collections.abc import Sequence

WORST_FIRST = (1, 2, 3, 4)
"""Nothing was made, before refused, before made but wrong, before right but slower."""


def severity(code: int) -> int:
    """Smaller is worse; other codes than :data:`WORST_FIRST` stand above all of them."""
    return WORST_FIRST.index(code) if code in WORST_FIRST else -1


def worst(codes: Sequence[int]) -> int:
    """The code that stands for all of them; 0 when all are."""
    return min((code for code in codes if code), key=severity, default=0)
