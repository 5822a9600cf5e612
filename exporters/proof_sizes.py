"""Sizes that a file with a symbolic size is compared at: all of them sizes that it claims to take.

One size proves nothing about the others, since a graph frozen at one grid would pass, and squares
prove nothing about which axis is which: there is always a second size, and one that is not square.
"""

from __future__ import annotations

from collections.abc import Sequence

from vitpe_deploy.limits import AxisLimit
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import SizeRule


def proof_sizes(
    rule: SizeRule, native: Resolution, limits: Sequence[AxisLimit]
) -> tuple[Resolution, ...]:
    """Native, one size below it and one of another shape, or what the limits have nearest to them.

    Args:
        rule: sizes of the file without regard to a range.
        native: size of the model's own positions.
        limits: what the file takes in each axis of a picture, or in the one axis of a text.
    """
    native, below, other = rule.nearby(native)
    bounded = [limit for limit in limits if limit.high is not None]
    if len(bounded) != 2:
        return native, below, other
    height, width = (_Axis(li, step) for li, step in zip(bounded, rule.divisor, strict=True))
    first = Resolution(height.nearest(native.height), width.nearest(native.width))
    second = Resolution(height.nearest(below.height), width.nearest(below.width))
    if second == first:
        second = Resolution(height.unlike(first.height), width.unlike(first.width))
    third = Resolution(height.nearest(other.height), width.nearest(other.width))
    if third.height == third.width:
        third = Resolution(third.height, width.unlike(third.width))
    if third.height == third.width:  # the width has one value only
        third = Resolution(height.unlike(third.height), third.width)
    return tuple(dict.fromkeys((first, second, third)))


class _Axis:
    """The values of one axis inside a range."""

    def __init__(self, limit: AxisLimit, token_px: int) -> None:
        self.low, self.step, self.token_px = limit.low, limit.step, token_px
        self.last = limit.largest

    def nearest(self, wanted: int) -> int:
        """The value nearest to ``wanted``, of two the lower."""
        below = self.low + (wanted - self.low) // self.step * self.step
        nearest = below if 2 * (wanted - below) <= self.step else below + self.step
        return min(max(nearest, self.low), self.last)

    def unlike(self, value: int) -> int:
        """Another value, a quarter above where there is one: rows and columns must change."""
        quarter = max(value // self.token_px // 4, 1) * self.token_px
        return next(
            (n for n in map(self.nearest, (value + quarter, value - quarter)) if n != value),
            self.low if value == self.last else self.last,
        )
