"""Seconds by step of an export."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """Seconds by step, added up over all graphs of an export."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time of the ``with`` to a step."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def total(self, *names: str) -> float:
        """Seconds of several steps so far."""
        return sum(self.seconds.get(n, 0.0) for n in names)
