"""The tables of a report: cells with the text that is read and the value that is sorted by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitpe_deploy.bench.documents import BenchReport, ResultRow
from vitpe_deploy.bench.markdown import UNJUDGED, shown_comparisons
from vitpe_deploy.bench.outcome import is_wrong
from vitpe_deploy.report.names import group_name, short_names


@dataclass(frozen=True, slots=True)
class Cell:
    """``value`` is a number where the column is one; ``kind`` a class of the style sheet."""

    text: str
    value: float | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A title; ``kind`` is ``number``, and ``more`` where paper has no room for it."""

    title: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Titles and rows."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def _table(titles: Sequence[str], rows: Sequence[tuple[Cell, ...]], more: Sequence[str]) -> Table:
    """Without the columns that hold nothing; ``more`` are titles that paper leaves out."""
    kept = [k for k in range(len(titles)) if any(row[k].text for row in rows)]
    columns = []
    for k in kept:
        number = all(row[k].kind == "number" for row in rows if row[k].text)
        words = ["number"] * number + ["more"] * (titles[k] in more)
        columns.append(Column(titles[k], " ".join(words)))
    cells = [
        tuple(replace(row[k], kind=f"{row[k].kind} more".strip()) if titles[k] in more else row[k]
              for k in kept)
        for row in rows
    ]  # fmt: skip
    return Table(tuple(columns), tuple(cells))


def results(report: BenchReport) -> Table:
    """One line per row of the report, the most important columns first."""
    names = short_names(report.results) if report.results else []
    return _table(
        (
            "row", "median ms", "agrees", "p95", "p99", "min", "cv", "images/s", "of peak",
            "max rel", "top-1", "labels top-1", "executed", "size", "batch", "threads", "load ms",
            "first ms", "RSS loaded MB", "RSS peak MB", "file MB", "samples", "outliers",
        ),
        [_result(row, name) for row, name in zip(report.results, names, strict=True)],
        ("p99", "min", "batch", "threads", "load ms", "first ms", "RSS loaded MB", "samples",
         "outliers"),
    )  # fmt: skip


def _result(row: ResultRow, name: str) -> tuple[Cell, ...]:
    latency, agreement = row.latency_ms, row.agreement
    wrong = is_wrong(row)
    side = row.resolution[0] * row.resolution[1]
    agrees = "not compared" if agreement is None else "WRONG" if wrong else "yes"
    return (
        Cell(name),
        _number(None if latency is None else latency.median, ".2f"),
        Cell(agrees, None, "wrong" if wrong else "unknown" if agreement is None else "good"),
        _number(None if latency is None else latency.p95, ".2f"),
        _number(None if latency is None else latency.p99, ".2f"),
        _number(None if latency is None else latency.min, ".2f"),
        _number(None if latency is None else latency.cv, ".1%"),
        _number(row.throughput_ips, ".1f"),
        _number(row.share_of_peak, ".0%"),
        _number(None if agreement is None else agreement.max_rel, ".1e"),
        _number(None if agreement is None else agreement.top1, ".1%"),
        _number(None if row.accuracy is None else row.accuracy.top1, ".1%"),
        Cell(row.precision_executed),
        Cell("x".join(map(str, row.resolution)), side),
        _number(row.batch, "d"),
        _number(row.threads, "d"),
        _number(row.load_ms, ".0f"),
        _number(row.first_ms, ".1f"),
        _megabytes(row.rss_loaded_bytes),
        _megabytes(row.peak_rss_bytes),
        _number(row.size_bytes / 1e6, ".1f"),
        _number(len(row.samples_ms), "d"),
        _number(len(row.outliers), "d"),
    )


def comparisons(report: BenchReport) -> Table:
    """Ratios of rows that were timed against each other; a wrong row is called that."""
    named = _named(report.results)
    wrong = {row.id for row in report.results if is_wrong(row)}
    return _table(
        ("b", "b is", "b/a", "against a", "95 % interval", "group"),
        [
            (
                Cell(named[c.b][0]),
                Cell(
                    comparison_words(c.verdict, wrong=c.b in wrong),
                    None,
                    "wrong" if c.b in wrong else "",
                ),
                _number(c.ratio_median, ".3f"),
                Cell(named[c.a][0]),
                Cell(f"{c.ci95[0]:.3f} to {c.ci95[1]:.3f}", c.ci95[0]),
                Cell(named[c.a][1]),
            )
            for c in shown_comparisons(report)
        ],
        (),
    )


def comparison_words(verdict: str, *, wrong: bool) -> str:
    """The verdict as people read it."""
    said = "unsure: measure longer" if verdict == "unsure" else verdict
    return f"{said}, but WRONG" if wrong else said


def baseline(report: BenchReport) -> Table:
    """Now against then."""
    named = _named(report.results)
    return _table(
        ("row", "baseline ms", "now/then", "95 % interval", "verdict"),
        [
            (
                Cell(" ".join(named[row.id])),
                _number(row.baseline_ms, ".2f"),
                _number(row.ratio_median, ".3f"),
                Cell(f"{row.ci95[0]:.3f} to {row.ci95[1]:.3f}", row.ci95[0]),
                Cell(
                    "; ".join(["REGRESSED" if row.regressed else row.verdict, *row.changes]),
                    None,
                    "wrong" if row.regressed else "",
                ),
            )
            for row in report.baseline
        ]
        + [
            (
                Cell(row.id),
                Cell(""),
                Cell(""),
                Cell(""),
                Cell(f"not judged: {UNJUDGED[row.only_in]}"),
            )
            for row in report.unjudged
        ],
        (),
    )


def warnings(report: BenchReport) -> list[str]:
    """Those of the machine, then those of rows, rows that say the same together."""
    said: dict[str, list[str]] = {}
    for row, name in zip(
        report.results, short_names(report.results) if report.results else [], strict=True
    ):
        for text in row.warnings:
            said.setdefault(text, []).append(name)
    return [*report.warnings, *(f"{', '.join(names)}: {text}" for text, names in said.items())]


def host(report: BenchReport) -> list[tuple[str, str]]:
    """The machine, as terms and what is known of them."""
    machine, harness = report.host, report.harness
    memory, peak = machine.memory_bytes, machine.gemm_peak_gflops
    found = [
        ("CPU", machine.cpu),
        ("CPUs used", str(machine.cores_used)),
        ("CPU quota", "none" if machine.cpu_quota is None else f"{machine.cpu_quota:g}"),
        ("instruction sets", ", ".join(machine.isa) or "not known"),
        ("memory", "not known" if memory is None else f"{memory / 2**30:.1f} GiB"),
        ("fp32 GEMM peak", "not measured" if peak is None else f"{peak:.0f} GFLOP/s"),
        ("system", machine.os),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items())),
    ]
    if harness is not None:
        parent, child = (
            "not known" if n is None else f"{n / 2**20:.0f} MiB"
            for n in (harness.parent_rss_bytes, harness.child_rss_bytes)
        )
        found.append(
            (
                "harness",
                f"{harness.sample_overhead_ms * 1e3:.1f} µs per sample; resident memory "
                f"{parent}, and {child} in every child before it loads an engine",
            )
        )
    return found


def _named(rows: Sequence[ResultRow]) -> dict[str, tuple[str, str]]:
    """Name and group of every row by its id."""
    names = short_names(rows) if rows else []
    return {row.id: (name, group_name(row)) for row, name in zip(rows, names, strict=True)}


def _number(value: float | int | None, style: str) -> Cell:
    return Cell("") if value is None else Cell(format(value, style), float(value), "number")


def _megabytes(value: int | None) -> Cell:
    return _number(None if value is None else value / 2**20, ".0f")
