"""Is it slower than it was? Rows of two reports, matched by what they measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from vitpe_deploy.bench import statistics
from vitpe_deploy.bench.documents import BaselineRow, BenchReport, HostRecord, ResultRow
from vitpe_deploy.errors import ArtifactError, UsageError

_SAME = ("cpu", "cores_used", "cpu_quota", "isa", "memory_bytes")


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


def against_baseline(
    report: BenchReport, old: BenchReport, limit: float, *, cross_host: bool = False
) -> tuple[BaselineRow, ...]:
    """Every row that both reports have.

    Args:
        report: now.
        old: then.
        limit: what a row may be slower by, 0.05 for 5 %.
        cross_host: whether another machine is accepted.

    Raises:
        UsageError: another machine, or no row in common.
    """
    if not cross_host:
        _require_same_host(report.host, old.host)
    before = {_key(row): row for row in old.results}
    found = [
        _compare(row, before[_key(row)], limit) for row in report.results if _key(row) in before
    ]
    if not found:
        raise UsageError(
            "the baseline has no row of what was measured",
            hint=f"It has: {'; '.join(row.id for row in old.results[:3])}.",
        )
    return tuple(found)


def _require_same_host(now: HostRecord, then: HostRecord) -> None:
    for name in _SAME:
        ours, theirs = getattr(now, name), getattr(then, name)
        if ours != theirs:
            raise UsageError(
                f"the baseline is from another host: {name} {theirs}, here {ours}",
                hint="Measure the baseline here, or accept it with --cross-host.",
            )


def _key(row: ResultRow) -> tuple[object, ...]:
    return (
        Path(row.artifact).name, row.runtime, row.device, row.precision_executed, row.mode,
        row.threads, row.batch, row.resolution,
    )  # fmt: skip


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
    )


def regressions(rows: Sequence[BaselineRow]) -> tuple[BaselineRow, ...]:
    """Those past the limit."""
    return tuple(row for row in rows if row.regressed)
