"""The sizes that a file with a symbolic dimension can take, as they travel inside it.

A graph cannot refuse a size: OpenVINO reads zeros behind a table, and a patch convolution drops the
border of a size that does not fit. So the file says its limits, and whoever runs it checks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitpe_deploy.errors import SizeError

KEY = "vitpe.limits"
"""Key in the metadata of a model file."""


@dataclass(frozen=True, slots=True)
class AxisLimit:
    """One symbolic axis of the input.

    Attributes:
        axis: index of the dimension.
        name: what the dimension is called in the file.
        low: smallest size.
        high: largest size, None for no limit.
        step: sizes are ``low`` plus a multiple of this.
    """

    axis: int
    name: str
    low: int
    high: int | None
    step: int = 1

    @property
    def largest(self) -> int:
        """The last size on the step that is not above ``high``; ``low`` where there is no limit."""
        return self.low if self.high is None else self.high - (self.high - self.low) % self.step

    def check(self, size: int) -> None:
        """Refuse a size outside.

        Raises:
            SizeError: names the size, the limits and the nearest that fit.
        """
        if size < self.low or (self.high is not None and size > self.high):
            upper = "any" if self.high is None else str(self.high)
            raise SizeError(
                f"{self.name} {size} is outside what this file takes: {self.low} to {upper}",
                hint="Use a size inside, or export another file for this one.",
            )
        below = self.low + (size - self.low) // self.step * self.step
        if size != below:
            raise SizeError(
                f"{self.name} {size} is not a size of this file: {self.low} and every "
                f"{self.step} from there",
                hint=f"Use {below} or {below + self.step}.",
            )


def check_shape(limits: Iterable[AxisLimit], shape: Sequence[int]) -> None:
    """Refuse an input shape that any limit excludes.

    Raises:
        SizeError: see :meth:`AxisLimit.check`.
    """
    for limit in limits:
        if limit.axis < len(shape):
            limit.check(shape[limit.axis])


def limits_to_text(limits: Iterable[AxisLimit]) -> str:
    """As the metadata carries them."""
    return json.dumps([[li.axis, li.name, li.low, li.high, li.step] for li in limits])


def limits_from_text(text: str | None) -> tuple[AxisLimit, ...]:
    """From :func:`limits_to_text`; a file that says nothing readable has no limits."""
    try:
        rows = json.loads(text or "[]")
        return tuple(AxisLimit(int(a), str(n), int(lo), hi, int(st)) for a, n, lo, hi, st in rows)
    except (ValueError, TypeError, RecursionError):
        return ()
