"""One HTML file from a ``vitpe.bench/1`` document: no network, no other file, no library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from types import ModuleType
from typing import Any

from vitpe_deploy.bench.documents import BenchReport
from vitpe_deploy.errors import MissingExtraError
from vitpe_deploy.report import tables
from vitpe_deploy.report.charts import distribution, layers, peak, resolution, size_latency
from vitpe_deploy.report.verdict import checklist, verdict

_TEMPLATES = "templates"
_CHARTS: tuple[ModuleType, ...] = (distribution, resolution, size_latency, peak, layers)


@dataclass(frozen=True, slots=True)
class Section:
    """A figure with its title: drawings with captions, or why there is none."""

    title: str
    drawings: tuple[tuple[str, str], ...]
    absent: str


def render(report: BenchReport, *, title: str = "vitpe-bench") -> str:
    """The page as text.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as problem:
        raise MissingExtraError("jinja2", "report") from problem
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_read("report.html"))
    return template.render(
        title=title,
        style=_read("report.css"),
        script=_read("report.js"),
        verdict=verdict(report),
        checks=checklist(report),
        sections=[_section(chart) for chart in _drawn(report)],
        results=tables.results(report),
        comparisons=tables.comparisons(report),
        baseline=tables.baseline(report),
        failed=report.failed,
        warnings=tables.warnings(report),
        host=tables.host(report),
    )


def _drawn(report: BenchReport) -> list[tuple[ModuleType, list[tuple[str, str]]]]:
    found = []
    for chart in _CHARTS:
        draw: Callable[[BenchReport], list[tuple[str, str]]] = chart.draw
        found.append((chart, draw(report)))
    return found


def _section(drawn: tuple[ModuleType, list[tuple[str, str]]]) -> Section:
    chart, drawings = drawn
    about: Any = chart
    return Section(about.TITLE, tuple(drawings), about.ABSENT)


def _read(name: str) -> str:
    """A file of the package."""
    place = resources.files("vitpe_deploy.report") / _TEMPLATES / name
    return place.read_text(encoding="utf-8")
