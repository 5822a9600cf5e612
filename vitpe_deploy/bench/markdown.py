"""The report as Markdown to paste, made from the document and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitpe_deploy.bench.documents import AgreementRecord, BenchReport, ComparisonRow, ResultRow

_MANY = 6
"""With more rows than this, comparisons are shown with the first row of their group alone."""


UNJUDGED = {
    "baseline": "was measured for the baseline, and not now",
    "now": "is measured now, and not in the baseline",
}
"""Why a row has no verdict."""


def markdown(report: BenchReport) -> str:
    """Host, results, comparisons, baseline, failures and warnings."""
    parts = [_host(report), _results(report.results), _comparisons(report), _baseline(report)]
    parts += [_layers(report), _failed(report), _warnings(report)]
    return "\n\n".join(part for part in parts if part)


def _host(report: BenchReport) -> str:
    host = report.host
    quota = "" if host.cpu_quota is None else f", quota {host.cpu_quota:g} CPUs"
    peak = "not measured" if host.gemm_peak_gflops is None else f"{host.gemm_peak_gflops:.0f}"
    versions = ", ".join(
        f"{name} {version}"
        for name, version in host.versions.items()
        if name not in ("python", "numpy")
    )
    return (
        f"{host.cpu}, {host.cores_used} CPUs{quota}, {', '.join(host.isa) or 'ISA not known'}; "
        f"fp32 GEMM peak {peak} GFLOP/s; {host.os}; {versions}{_harness(report)}"
    )


def _harness(report: BenchReport) -> str:
    found = report.harness
    if found is None:
        return ""
    sizes = (
        "not known" if n is None else f"{n / 2**20:.0f} MiB"
        for n in (found.parent_rss_bytes, found.child_rss_bytes)
    )
    parent, child = sizes
    return (
        f"; harness {found.sample_overhead_ms * 1e3:.1f} us per sample, resident {parent} "
        f"and {child} per child before an engine"
    )


def _results(rows: Sequence[ResultRow]) -> str:
    lines = [
        "| artifact | engine | executed | size | batch | threads | median ms | p95 | cv "
        "| images/s | of peak | load ms | RSS loaded MB | peak RSS MB | max rel | top-1 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    labelled = any(row.accuracy is not None for row in rows)
    if labelled:
        lines = [f"{lines[0]} labels top-1 (PyTorch) |", f"{lines[1]}---|"]
    for row in rows:
        latency = row.latency_ms
        timing = (
            ["", "", ""]
            if latency is None
            else [f"**{latency.median:.2f}**", f"{latency.p95:.2f}", f"{latency.cv:.1%}"]
        )
        streams = f" ({row.streams} at a time)" if row.mode == "throughput" else ""
        share = "" if row.share_of_peak is None else f"{row.share_of_peak:.0%}"
        cells = [
            Path(row.artifact).name,
            f"{row.runtime} {row.device}",
            row.precision_executed,
            "x".join(map(str, row.resolution)),
            str(row.batch),
            str(row.threads),
            *timing,
            f"{row.throughput_ips:.1f}{streams}",
            share,
            f"{row.load_ms:.0f}",
            _megabytes(row.rss_loaded_bytes),
            _megabytes(row.peak_rss_bytes),
            *_agreement(row.agreement),
            *([_accuracy(row)] if labelled else []),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _megabytes(value: int | None) -> str:
    return "" if value is None else f"{value / 2**20:.0f}"


def _accuracy(row: ResultRow) -> str:
    found = row.accuracy
    if found is None:
        return ""
    reference = "" if found.reference_top1 is None else f" ({found.reference_top1:.1%})"
    return f"{found.top1:.1%}{reference} of {found.images}"


def _agreement(found: AgreementRecord | None) -> tuple[str, str]:
    if found is None:
        return "not known", ""
    if found.max_rel is None:
        return f"**wrong**: {found.problem}", ""
    error = f"{found.max_rel:.1e}"
    top1 = "" if found.top1 is None else f"{found.top1:.0%}"
    if found.passed:
        return error, top1
    if found.criterion == "max_rel":
        return f"**wrong: {error}, limit {found.limit:.0e}**", top1
    value = found.top1 if found.criterion == "top1" else found.cosine
    return f"**wrong: {found.criterion} {value:.3f}, at least {found.limit:g}**", top1


def shown_comparisons(report: BenchReport) -> tuple[ComparisonRow, ...]:
    """All pairs, or with many rows those with the first row of their group."""
    found = report.comparisons
    if len(report.results) <= _MANY:
        return found
    firsts = {c.a for c in found} - {c.b for c in found}
    return tuple(c for c in found if c.a in firsts)


def _comparisons(report: BenchReport) -> str:
    shown = shown_comparisons(report)
    if not shown:
        return ""
    wrong = {
        row.id for row in report.results if row.agreement is not None and not row.agreement.passed
    }
    lines = ["| b | against a | b/a | 95 % interval | b is |", "|---|---|---|---|---|"]
    for row in shown:
        low, high = row.ci95
        verdict = "unsure: measure longer" if row.verdict == "unsure" else str(row.verdict)
        verdict += ", **but wrong**" if row.b in wrong else ""
        lines.append(
            f"| {row.b} | {row.a} | {row.ratio_median:.3f} | {low:.3f} to {high:.3f} | {verdict} |"
        )
    return "\n".join(lines)


def _baseline(report: BenchReport) -> str:
    lines = []
    if report.baseline:
        lines += ["| row | baseline ms | now/then | 95 % interval | verdict |",
                  "|---|---|---|---|---|"]  # fmt: skip
    for row in report.baseline:
        low, high = row.ci95
        said = "; ".join(["**regressed**" if row.regressed else row.verdict, *row.changes])
        lines.append(
            f"| {row.id} | {row.baseline_ms:.2f} | {row.ratio_median:.3f} "
            f"| {low:.3f} to {high:.3f} | {said} |"
        )
    lines += [""] if report.baseline and report.unjudged else []
    lines += [f"- not judged: {row.id}: {UNJUDGED[row.only_in]}" for row in report.unjudged]
    return "\n".join(lines)


def _layers(report: BenchReport) -> str:
    lines = []
    for found in report.layers:
        worst = max((row.max_rel or 0.0 for row in found.rows), default=0.0)
        said = f"all {len(found.rows)} blocks inside tolerance, worst max rel {worst:.1e}"
        if not found.fails and found.first_failing_block is not None:
            said = f"worst max rel {worst:.1e}, agreement decides"
        elif found.fails:
            said = f"**wrong from block {found.first_failing_block}**"
        lines.append(f"- layers of {Path(found.artifact).name} in {found.runtime}: {said}")
    return "\n".join(lines)


def _failed(report: BenchReport) -> str:
    return "\n".join(f"- not measured: {row.id}: {row.message}" for row in report.failed)


def _warnings(report: BenchReport) -> str:
    lines = [f"- {text}" for text in report.warnings]
    lines += [f"- {row.id}: {text}" for row in report.results for text in row.warnings]
    return "\n".join(["Warnings:", *lines]) if lines else ""
