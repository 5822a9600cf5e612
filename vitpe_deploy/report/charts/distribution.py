"""Latency distribution: one lane per row, all samples, outliers included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitpe_deploy.bench.documents import BenchReport, ResultRow
from vitpe_deploy.report import svg
from vitpe_deploy.report.names import group_name, groups, short_names
from vitpe_deploy.report.scale import linear, short

TITLE = "Latency distribution"
ABSENT = "Rows in latency mode give it."

_BINS = 90
_LANE, _RIDGE, _LEFT, _RIGHT = 46.0, 24.0, 8.0, 352.0


def draw(report: BenchReport) -> list[tuple[str, str]]:
    """One figure per group of rows that were timed against each other, with its caption."""
    rows = [row for row in report.results if row.latency_ms is not None]
    return [(group_name(group[0]), _lanes(group)) for group in groups(rows)]


def _lanes(rows: Sequence[ResultRow]) -> str:
    """Ridges over one axis of milliseconds; what lies beyond it is counted at its end."""
    samples = [np.asarray(row.samples_ms) for row in rows]
    low = min(float(values.min()) for values in samples)
    high = max(float(np.percentile(values, 99)) for values in samples)
    room = 0.05 * (high - low) or 0.1 * high
    scale = linear(max(0.0, low - room), high + room, _LEFT, _RIGHT)
    edges = np.linspace(scale.low, scale.high, _BINS + 1)
    height = _LANE * len(rows) + 34
    parts = []
    for value in scale.ticks():
        parts.append(svg.line((scale(value), 4), (scale(value), height - 30), "grid"))
        parts.append(svg.text(scale(value), height - 17, short(value), "tick", "middle"))
    parts.append(svg.text(svg.WIDTH / 2, height - 3, "ms", "title", "middle"))
    for number, (values, name) in enumerate(zip(samples, short_names(rows), strict=True)):
        floor = _LANE * (number + 1)
        counts, _ = np.histogram(values, bins=edges)
        smooth = np.convolve(counts, (0.25, 0.5, 0.25), mode="same")
        tallest = float(smooth.max()) or 1.0
        middles = (edges[:-1] + edges[1:]) / 2
        line = [
            (scale(float(x)), floor - _RIDGE * float(n) / tallest)
            for x, n in zip(middles, smooth, strict=True)
        ]
        kind = f"s{number % svg.SERIES}"
        parts.append(svg.area(line, floor, f"fill {kind}"))
        parts.append(svg.polyline(line, f"stroke {kind}"))
        median, p95 = float(np.median(values)), float(np.percentile(values, 95))
        parts.append(svg.line((scale(median), floor), (scale(median), floor - _RIDGE), "median"))
        parts.append(svg.line((scale(p95), floor), (scale(p95), floor - 8), "median"))
        beyond = int((values > scale.high).sum())
        more = f", {beyond} beyond" if beyond else ""
        label = f"{name}: {median:.2f} ms, p95 {p95:.2f}{more}"
        parts.append(svg.text(_LEFT, floor - _RIDGE - 7, label, "label"))
    return svg.figure(height, f"{TITLE}: {group_name(rows[0])}", parts)
