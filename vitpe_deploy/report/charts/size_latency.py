"""File size against latency, with accuracy as colour: what a smaller file costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitpe_deploy.bench.documents import BenchReport, ResultRow
from vitpe_deploy.report import svg
from vitpe_deploy.report.names import group_name, groups, short_names
from vitpe_deploy.report.scale import linear, short

TITLE = "File size against latency"
ABSENT = "Rows in latency mode give it."

STEPS = 5
"""Colours of the style sheet, ``q0`` (far from PyTorch) to ``q4`` (equal)."""

_EQUAL, _FAR = -6.0, -1.0
"""Decimal exponents of the error that are drawn as equal and as far off."""

_KEYS = 246.0
"""Where the legend begins."""

_ENGINES = ("onnxruntime", "openvino", "torch")


def draw(report: BenchReport) -> list[tuple[str, str]]:
    """One figure of the largest group: rows of other sizes are no alternatives."""
    rows = [row for row in report.results if row.latency_ms is not None]
    if not rows:
        return []
    group = max(groups(rows), key=len)
    labelled = all(row.accuracy is not None for row in group)
    what = "top-1 on the labels" if labelled else "agreement with PyTorch"
    return [(f"{group_name(group[0])}; colour: {what}", _drawn(group, labelled=labelled))]


def colour(row: ResultRow, best: float, worst: float, *, labelled: bool) -> str:
    """The class of a row's colour; ``qx`` where nothing is known."""
    if labelled and row.accuracy is not None:
        share = 1.0 if best <= worst else (row.accuracy.top1 - worst) / (best - worst)
    elif row.agreement is None:
        return "qx"
    else:
        error = row.agreement.max_rel
        exponent = 0.0 if error is None else math.log10(max(error, 1e-12))
        share = (exponent - _FAR) / (_EQUAL - _FAR)
    return f"q{min(STEPS - 1, max(0, round(share * (STEPS - 1))))}"


def accuracy_words(row: ResultRow) -> str:
    """The number behind the colour."""
    if row.accuracy is not None:
        return f"top-1 {row.accuracy.top1:.1%}"
    if row.agreement is None:
        return "not compared"
    if row.agreement.max_rel is None:
        return "wrong"
    return f"max rel {row.agreement.max_rel:.0e}"


def _drawn(rows: Sequence[ResultRow], *, labelled: bool) -> str:
    sizes = [row.size_bytes / 1e6 for row in rows]
    medians = [row.latency_ms.median for row in rows if row.latency_ms is not None]
    axes = svg.Axes(
        linear(0.0, max(sizes) * 1.1, 42, 348),
        linear(0.0, max(medians) * 1.1, 200, 26),
        "file size in MB",
        "median ms",
    )
    top1 = [row.accuracy.top1 for row in rows if row.accuracy is not None]
    best, worst = (max(top1), min(top1)) if top1 else (1.0, 0.0)
    parts = axes.drawn()
    keys = _key(labelled=labelled)
    taken: list[svg.Point] = []
    for number, (row, size, median, name) in enumerate(
        zip(rows, sizes, medians, short_names(rows), strict=True), 1
    ):
        place = axes.at(size, median)
        kind = f"dot {colour(row, best, worst, labelled=labelled)}"
        shape = _ENGINES.index(row.runtime) if row.runtime in _ENGINES else 3
        words = f"{name}: {short(median)} ms, {size:.1f} MB, {accuracy_words(row)}"
        parts.append(svg.mark(shape, place, kind, words, size=5.5))
        beside = _free(place, taken)
        taken.append(beside)
        parts.append(svg.text(beside[0], beside[1] + 4, str(number), "label", "middle"))
        y = _KEYS + 20 + 16 * (number - 1)
        keys.append(svg.text(8, y + 3.5, f"{number}", "label"))
        keys.append(svg.mark(shape, (30, y), kind, size=4.5))
        keys.append(svg.text(40, y + 3.5, f"{name}, {accuracy_words(row)}", "label"))
        if row.agreement is not None and not row.agreement.passed:
            parts.append(svg.cross(place))
            keys.append(svg.cross((30, y)))
    return svg.figure(_KEYS + 20 + 16 * len(rows), TITLE, [*parts, *keys])


def _free(place: svg.Point, taken: Sequence[svg.Point]) -> svg.Point:
    """Where the number of a point runs into no other: beside it, or further out."""
    for away in (12.0, 24.0, 36.0, 48.0):
        for side in (1, -1):
            x, y = place[0] + side * away, place[1]
            inside = 44 <= x <= svg.WIDTH - 8
            if inside and not any(abs(x - a) < 11 and abs(y - b) < 10 for a, b in taken):
                return x, y
    return place[0] - 12, place[1]


def _key(*, labelled: bool) -> list[str]:
    """What the colours mean, from far to equal."""
    low, high = ("fewer right", "more right") if labelled else ("far off", "equal to PyTorch")
    parts = [svg.text(8, _KEYS + 3.5, low, "tick")]
    parts += [svg.rectangle(66 + 16 * k, _KEYS - 5, 16, 10, f"q{k}") for k in range(STEPS)]
    parts.append(svg.text(66 + 16 * STEPS + 6, _KEYS + 3.5, high, "tick"))
    return parts
