"""The first screen of a report: one sentence, and the list of what was checked.

Every entry says what was found in words; the sign beside it repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from vitpe_deploy.bench.documents import BenchReport, ResultRow
from vitpe_deploy.bench.outcome import count_of_rows, is_wrong, problems
from vitpe_deploy.report.names import groups, short_names

State: TypeAlias = Literal["good", "look", "wrong", "unknown"]

SIGNS: dict[State, str] = {"good": "✓", "look": "!", "wrong": "✗", "unknown": "?"}

OVERHEAD = 0.01
"""What measuring may cost of the fastest row's median."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist."""

    state: State
    title: str
    found: str

    @property
    def sign(self) -> str:
        """Repeats the state where colour cannot be seen."""
        return SIGNS[self.state]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the report says in one sentence, and how far it may be believed."""

    state: State
    headline: str
    detail: str


def verdict(report: BenchReport) -> Verdict:
    """All trouble in the order of the exit codes, or what is not known; the fastest right row."""
    rows = report.results
    detail = _fastest(rows)
    found = problems(report)
    if found:
        return Verdict("wrong", "; ".join(problem.text for problem in found), detail)
    unknown = sum(row.agreement is None for row in rows)
    if unknown:
        said = f"{unknown} of {count_of_rows(len(rows))} could not be compared with PyTorch"
        return Verdict("look", said, detail)
    return Verdict("good", f"All {count_of_rows(len(rows))} agree with PyTorch", detail)


def checklist(report: BenchReport) -> tuple[Check, ...]:
    """What makes a benchmark believable, each with what this one found."""
    return tuple(_checks(report))


def _checks(report: BenchReport) -> Iterator[Check]:
    rows = report.results
    planned = len(rows) + len(report.failed)
    yield Check(
        "wrong" if report.failed else "good",
        "Every planned row ran",
        f"{len(rows)} of {planned}",
    )
    yield _agreement(rows)
    other = sum(row.precision_executed != "f32" and row.precision_asked == "f32" for row in rows)
    ignored = sum(
        row.precision_executed != row.precision_asked and row.precision_asked != "f32"
        for row in rows
    )
    executed = ", ".join(sorted({row.precision_executed for row in rows})) or "nothing"
    yield Check(
        "look" if other or ignored else "good",
        "What was asked for is what is executed",
        f"{executed} executed"
        + (f"; {count_of_rows(other + ignored)} asked for another" if other + ignored else ""),
    )
    yield _decided(report)
    doubtful = sum(bool(_about_timing(row)) for row in rows)
    yield Check(
        "look" if doubtful or report.warnings else "good",
        "The machine was quiet and steady",
        report.warnings[0]
        if report.warnings
        else (f"{count_of_rows(doubtful)} with warnings" if doubtful else "no warnings"),
    )
    yield _overhead(report)
    if report.layers:
        bad = sum(found.first_failing_block is not None for found in report.layers)
        yield Check(
            "wrong" if bad else "good",
            "Every block agrees with PyTorch",
            f"{len(report.layers) - bad} of {len(report.layers)} files in engines",
        )
    if report.baseline or report.unjudged:
        bad = sum(row.regressed for row in report.baseline)
        left_out = len(report.unjudged)
        yield Check(
            "wrong" if bad else "look" if left_out else "good",
            "Not slower than the baseline",
            f"{len(report.baseline) - bad} of {count_of_rows(len(report.baseline))}"
            + (f"; {count_of_rows(left_out)} not judged" if left_out else ""),
        )


def _agreement(rows: Sequence[ResultRow]) -> Check:
    title = "Every row agrees with PyTorch"
    passed = sum(row.agreement is not None and row.agreement.passed for row in rows)
    found = f"{passed} of {len(rows)}"
    if any(is_wrong(row) for row in rows):
        return Check("wrong", title, found)
    if passed < len(rows):
        return Check("unknown", title, f"{found} were compared")
    return Check("good", title, found)


def _decided(report: BenchReport) -> Check:
    title = "Comparisons are decided"
    unsure = sum(c.verdict == "unsure" for c in report.comparisons)
    if not report.comparisons:
        return Check("unknown", title, "no rows were timed against each other")
    total = len(report.comparisons)
    return Check(
        "look" if unsure else "good",
        title,
        f"{total - unsure} of {total}" + (": measure the others longer" if unsure else ""),
    )


def _about_timing(row: ResultRow) -> list[str]:
    return [text for text in row.warnings if "agreement" not in text and "asked for" not in text]


def _overhead(report: BenchReport) -> Check:
    title = "Measuring costs less than 1 % of a sample"
    medians = [row.latency_ms.median for row in report.results if row.latency_ms is not None]
    if report.harness is None or not medians:
        return Check("unknown", title, "not measured")
    share = report.harness.sample_overhead_ms / min(medians)
    found = f"{report.harness.sample_overhead_ms * 1e3:.1f} µs, {share:.2%} of the fastest row"
    return Check("good" if share < OVERHEAD else "look", title, found)


def _fastest(rows: Sequence[ResultRow]) -> str:
    """The fastest row that is not wrong, of every size, batch and thread count."""
    found = []
    for group in groups([row for row in rows if row.latency_ms is not None]):
        named = list(zip(group, short_names(group, same=rows), strict=True))
        right = [pair for pair in named if not is_wrong(pair[0])]
        if right:
            row, name = min(right, key=lambda pair: pair[0].latency_ms.median)  # type: ignore[union-attr]
            median = 0.0 if row.latency_ms is None else row.latency_ms.median
            found.append(f"{name} {median:.2f} ms")
    if not found:
        return ""
    shown = "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
    return f"Fastest that is not wrong: {shown}"
