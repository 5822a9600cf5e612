"""From values to places in a figure, and the round numbers that belong on an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Values ``low`` to ``high`` onto ``start`` to ``end``, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; values outside are put at the edge."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> tuple[float, ...]:
        """Round values inside, about ``count`` of them."""
        return log_ticks(self.low, self.high) if self.log else ticks(self.low, self.high, count)


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """A linear scale whose ends are never the same value."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    return Scale(low, high, start, end)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """A logarithmic scale, a tenth wider than the values on both sides.

    Raises:
        ValueError: values that have no logarithm.
    """
    if low <= 0:
        raise ValueError(f"a logarithmic scale starts above 0, got {low}")
    return Scale(low / 1.1, high * 1.1, start, end, log=True)


def ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten from ``low`` to ``high``."""
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in _STEPS if s * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(k * step, 12) for k in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten, with their doubles and halves where there are few of them."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        found = tuple(s * 10.0**e for e in exponents for s in steps if low <= s * 10.0**e <= high)
        if len(found) >= 3:
            break
    while len(found) > 6:
        found = found[::2]
    return found


def short(value: float) -> str:
    """A number as an axis shows it: ``0.5``, ``12``, ``1e-06``."""
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}"
    return f"{value:.4g}"
