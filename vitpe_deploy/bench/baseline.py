"""Is it slower than it was? Rows of two reports, matched by what they measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from vitpe_deploy.bench import statistics
from vitpe_deploy.bench.documents import (
    BaselineRow,
    BenchReport,
    HostRecord,
    ResultRow,
    UnjudgedRow,
)
from vitpe_deploy.bench.host import Host, read_host
from vitpe_deploy.bench.outcome import count_of_rows
from vitpe_deploy.errors import ArtifactError, UsageError

_SAME = ("cpu", "cores_used", "cpu_quota", "isa", "memory_bytes")

_CAME_TO = {
    "precision_executed": "executed in",
    "threads": "threads",
    "streams": "requests at a time",
    "device_name": "device",
}
"""Fields of a row that the engine decides about, whatever was asked for."""


def read_report(path: Path, flag: str = "--baseline") -> BenchReport:
    """A document of ``vitpe-bench --json``, named by ``flag``.

    Raises:
        ArtifactError: it is missing or something else.
    """
    try:
        return BenchReport.model_validate_json(path.read_bytes())
    except OSError as problem:
        raise ArtifactError(f"{flag} {path} cannot be read: {problem.strerror}") from problem
    except ValidationError as problem:
        raise ArtifactError(
            f"{flag} {path} is not a report of vitpe-bench",
            hint="Write one with vitpe-bench ... --json > old.json",
        ) from problem


def require_comparable(
    old: BenchReport,
    planned: Iterable[str],
    *,
    cross_host: bool = False,
    fewer_rows: bool = False,
) -> None:
    """Refuse a baseline that cannot judge what is planned, before it is measured.

    Args:
        old: then.
        planned: ids of the rows.
        cross_host: whether another machine is accepted.
        fewer_rows: whether rows of the baseline may be left out.

    Raises:
        UsageError: another machine, no row in common, or rows that nothing would judge.
    """
    if not cross_host:
        _require_same_host(read_host(), old.host)
    ids = set(planned)
    left_out = [row.id for row in old.results if row.id not in ids]
    if len(left_out) == len(old.results):
        raise UsageError(
            "the baseline has no row of what is measured", hint=f"It has: {_some(left_out)}."
        )
    if left_out and not fewer_rows:
        raise UsageError(
            f"{count_of_rows(len(left_out))} of the baseline would not be judged, because nothing "
            f"measures them now: {_some(left_out)}",
            hint="Measure them too, or leave them out with --fewer-rows.",
        )


def _some(ids: Sequence[str]) -> str:
    return "; ".join(ids[:3]) + (f"; and {len(ids) - 3} more" if len(ids) > 3 else "")


def against_baseline(
    report: BenchReport, old: BenchReport, limit: float
) -> tuple[BaselineRow, ...]:
    """Every row that both reports have; rows are one when the same was asked for.

    Args:
        report: now.
        old: then.
        limit: what a row may be slower by, 0.05 for 5 %.
    """
    before = {row.id: row for row in old.results}
    return tuple(_compare(row, before[row.id], limit) for row in report.results if row.id in before)


def not_judged(report: BenchReport, old: BenchReport) -> tuple[UnjudgedRow, ...]:
    """Every row that one of the reports has alone."""
    now, then = ({row.id for row in one.results} for one in (report, old))
    return (
        *(UnjudgedRow(id=row.id, only_in="baseline") for row in old.results if row.id not in now),
        *(UnjudgedRow(id=row.id, only_in="now") for row in report.results if row.id not in then),
    )


def _require_same_host(now: Host, then: HostRecord) -> None:
    for name in _SAME:
        ours, theirs = getattr(now, name), getattr(then, name)
        if ours != theirs:
            raise UsageError(
                f"the baseline is from another host: {name} {theirs}, here {ours}",
                hint="Measure the baseline here, or accept it with --cross-host.",
            )


def _changes(row: ResultRow, old: ResultRow) -> Iterator[str]:
    """What the same request came to then and now, where that differs."""
    for name, what in _CAME_TO.items():
        ours, theirs = getattr(row, name), getattr(old, name)
        if ours != theirs:
            yield f"{what} {theirs} then, {ours} now"


def _compare(row: ResultRow, old: ResultRow, limit: float) -> BaselineRow:
    """Unpaired: the runs did not share their rounds, so each side is resampled on its own."""
    (now, now_ms), (then, then_ms) = (
        statistics.level(statistics.round_medians(r.rounds()), r.starts(), seed=seed)
        for seed, r in enumerate((row, old))
    )
    found = statistics.judged(now_ms / then_ms, now / then, len(row.rounds()))
    return BaselineRow(
        id=row.id,
        baseline_ms=then_ms,
        ratio_median=found.median,
        ci95=(found.low, found.high),
        verdict=found.verdict,
        regressed=found.median > 1 + limit and found.low > 1.0,
        changes=tuple(_changes(row, old)),
    )
