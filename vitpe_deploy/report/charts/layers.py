"""Error per layer: where an artifact leaves PyTorch, block by block."""

from __future__ import annotations

from pathlib import Path

from vitpe_deploy.bench.documents import BenchReport
from vitpe_deploy.report import svg
from vitpe_deploy.report.scale import linear, logarithmic
from vitpe_deploy.results import LayerVerdict

TITLE = "Error per layer"
ABSENT = "Blocks were not compared; --layers gives it."

_LEAST = 1e-9
"""A block that is equal to the last bit is drawn here: zero has no logarithm."""


def draw(report: BenchReport) -> list[tuple[str, str]]:
    """One figure with a line per artifact and engine."""
    verdicts = [v for v in report.layers if v.rows]
    return (
        [("largest difference over largest value, each block", _drawn(verdicts))]
        if (verdicts)
        else []
    )


def _values(verdict: LayerVerdict) -> list[tuple[int, float]]:
    return [
        (row.block, max(row.max_rel, _LEAST)) for row in verdict.rows if row.max_rel is not None
    ]


def _drawn(verdicts: list[LayerVerdict]) -> str:
    points = [point for verdict in verdicts for point in _values(verdict)]
    limits = sorted({row.limit for v in verdicts for row in v.rows})
    errors = [error for _, error in points] + limits
    last = max((block for block, _ in points), default=1)
    axes = svg.Axes(
        linear(0, max(1, last), 42, 352),
        logarithmic(min(errors), max(errors), 200, 26),
        "block",
        "max rel",
        x_ticks=tuple(range(0, max(1, last) + 1, 1 + last // 12)),
    )
    parts = axes.drawn()
    for limit in limits[:1]:
        parts.append(svg.line(axes.at(0, limit), axes.at(axes.x.high, limit), "limit"))
        x, y = axes.at(axes.x.high, limit)
        parts.append(svg.text(x, y - 4, "limit", "tick", "end"))
    names = []
    for number, verdict in enumerate(verdicts):
        kind = f"s{number % svg.SERIES}"
        places = [axes.at(block, error) for block, error in _values(verdict)]
        parts.append(svg.polyline(places, f"stroke {kind}"))
        parts += [svg.mark(number, place, f"dot {kind}", size=3) for place in places]
        bad = verdict.first_failing_block if verdict.fails else None
        said = "" if bad is None else f", wrong from block {bad}"
        many = len({v.artifact for v in verdicts}) > 1
        file = f"{Path(verdict.artifact).name} " if many else ""
        names.append(f"{file}{verdict.runtime}{said}")
    keys, height = svg.legend(names, 246)
    return svg.figure(246 + height, TITLE, [*parts, *keys])
