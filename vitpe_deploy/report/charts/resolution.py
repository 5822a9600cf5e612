"""Latency against resolution, one line per encoding and engine."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from vitpe_deploy.bench.documents import BenchReport, ResultRow
from vitpe_deploy.report import svg
from vitpe_deploy.report.names import short_names
from vitpe_deploy.report.scale import logarithmic

TITLE = "Latency against resolution"
ABSENT = "One size was measured; --res 224,384,518 gives it."

Line = list[tuple[float, float]]


def draw(report: BenchReport) -> list[tuple[str, str]]:
    """One figure of the batch and thread count that most rows have."""
    rows = [row for row in report.results if row.latency_ms is not None]
    if not rows:
        return []
    (batch, threads), _ = Counter((r.batch, r.threads) for r in rows).most_common(1)[0]
    lines = series([r for r in rows if (r.batch, r.threads) == (batch, threads)])
    if not lines:
        return []
    return [(f"batch {batch}, {threads} threads; both axes logarithmic", _drawn(lines))]


def series(rows: Sequence[ResultRow]) -> Mapping[str, Line]:
    """Side in pixels and median in milliseconds by name, of what has more than one size.

    The side of a size that is not square is that of the square with as many pixels.
    """
    by_key: dict[tuple[str, ...], list[ResultRow]] = defaultdict(list)
    for row in rows:
        key = (row.model, row.encoding or "", row.precision_stored, row.runtime, row.device,
               row.precision_executed)  # fmt: skip
        by_key[key].append(row)
    several = [group for group in by_key.values() if len({r.resolution for r in group}) > 1]
    if not several:
        return {}
    names = short_names([group[0].model_copy(update={"resolution": (0, 0)}) for group in several])
    found = {}
    for name, group in zip(names, several, strict=True):
        points = {
            math.sqrt(r.resolution[0] * r.resolution[1]): r.latency_ms.median
            for r in group
            if r.latency_ms is not None
        }
        found[name] = sorted(points.items())
    return found


def _apart(sides: Sequence[float]) -> tuple[float, ...]:
    """Measured sizes whose numbers do not run into each other on a logarithmic axis."""
    kept: list[float] = []
    for side in sides:
        if not kept or math.log(side / kept[-1]) > 0.09 * math.log(sides[-1] / sides[0]):
            kept.append(side)
    return tuple(kept)


def _drawn(lines: Mapping[str, Line]) -> str:
    xs = [x for line in lines.values() for x, _ in line]
    ys = [y for line in lines.values() for _, y in line]
    axes = svg.Axes(
        logarithmic(min(xs), max(xs), 42, 352),
        logarithmic(min(ys), max(ys), 200, 26),
        "side in pixels",
        "median ms",
        x_ticks=_apart(sorted(set(xs))),
    )
    parts = axes.drawn()
    for number, (name, line) in enumerate(lines.items()):
        kind = f"s{number % svg.SERIES}"
        places = [axes.at(x, y) for x, y in line]
        parts.append(svg.polyline(places, f"stroke {kind}"))
        for place, (x, y) in zip(places, line, strict=True):
            parts.append(svg.mark(number, place, f"dot {kind}", f"{name}, {x:.0f} px: {y:.2f} ms"))
    keys, height = svg.legend(list(lines), 246)
    return svg.figure(246 + height, TITLE, [*parts, *keys])
