"""What is not as it should be in a report: one list, for the exit code and for the headline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vitpe_deploy.bench.documents import BenchReport, ResultRow
from vitpe_deploy.errors import ParityError, RegressionError
from vitpe_deploy.exit_codes import severity, worst

LOST = 1
"""Exit code of a row that was planned and did not run."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of trouble: in words, and the exit code that says it to scripts."""

    exit_code: int
    text: str


def problems(report: BenchReport) -> tuple[Problem, ...]:
    """All kinds of trouble in a report, the worst first."""
    return tuple(sorted(_problems(report), key=lambda problem: severity(problem.exit_code)))


def exit_code(report: BenchReport) -> int:
    """Of the worst trouble; 0 without any."""
    return worst([problem.exit_code for problem in problems(report)])


def is_wrong(row: ResultRow) -> bool:
    """Whether the row was compared and does not agree."""
    return row.agreement is not None and not row.agreement.passed


def count_of_rows(count: int) -> str:
    """``1 row``, ``2 rows``."""
    return f"{count} row" if count == 1 else f"{count} rows"


def _problems(report: BenchReport) -> Iterator[Problem]:
    if report.failed:
        yield Problem(LOST, f"{count_of_rows(len(report.failed))} did not run")
    wrong = sum(map(is_wrong, report.results))
    if wrong:
        said = "does not agree" if wrong == 1 else "do not agree"
        text = f"{wrong} of {count_of_rows(len(report.results))} {said} with PyTorch"
        yield Problem(ParityError.exit_code, text)
    layers = {v.artifact for v in report.layers if v.first_failing_block is not None}
    if layers:
        files = "1 file" if len(layers) == 1 else f"{len(layers)} files"
        yield Problem(ParityError.exit_code, f"blocks of {files} are outside tolerance")
    slower = sum(row.regressed for row in report.baseline)
    if slower:
        text = f"{count_of_rows(slower)} slower than the baseline allows"
        yield Problem(RegressionError.exit_code, text)
