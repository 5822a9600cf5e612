"""The report as Markdown to paste, made from the document and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitpe_deploy.bench.documents import AgreementRecord, BenchReport, ResultRow

_MANY = 6
"""With more rows than this, comparisons are shown with the first row of their group alone."""


def markdown(report: BenchReport) -> str:
    """Host, results, comparisons, baseline, failures and warnings."""
    parts = [_host(report), _results(report.results)]
    parts += [_comparisons(report), _baseline(report), _failed(report), _warnings(report)]
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
        f"fp32 GEMM peak {peak} GFLOP/s; {host.os}; {versions}"
    )


def _results(rows: Sequence[ResultRow]) -> str:
    lines = [
        "| artifact | engine | executed | size | batch | threads | median ms | p95 | cv "
        "| images/s | of peak | load ms | peak RSS MB | max rel | top-1 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        latency = row.latency_ms
        timing = (
            ["", "", ""]
            if latency is None
            else [f"**{latency.median:.2f}**", f"{latency.p95:.2f}", f"{latency.cv:.1%}"]
        )
        streams = f" ({row.streams} at a time)" if row.mode == "throughput" else ""
        share = "" if row.share_of_peak is None else f"{row.share_of_peak:.0%}"
        memory = "" if row.peak_rss_bytes is None else f"{row.peak_rss_bytes / 2**20:.0f}"
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
            memory,
            *_agreement(row.agreement),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _agreement(found: AgreementRecord | None) -> tuple[str, str]:
    if found is None:
        return "not known", ""
    if found.max_rel is None:
        return f"**wrong**: {found.problem}", ""
    error = f"{found.max_rel:.1e}"
    return error if found.passed else f"**{error}, limit {found.limit:.0e}**", (
        "" if found.top1 is None else f"{found.top1:.0%}"
    )


def _comparisons(report: BenchReport) -> str:
    shown = report.comparisons
    if len(report.results) > _MANY:
        firsts = {c.a for c in shown} - {c.b for c in shown}
        shown = tuple(c for c in shown if c.a in firsts)
    if not shown:
        return ""
    lines = ["| b | against a | b/a | 95 % interval | b is |", "|---|---|---|---|---|"]
    for row in shown:
        low, high = row.ci95
        verdict = "unsure: measure longer" if row.verdict == "unsure" else row.verdict
        lines.append(
            f"| {row.b} | {row.a} | {row.ratio_median:.3f} | {low:.3f} to {high:.3f} | {verdict} |"
        )
    return "\n".join(lines)


def _baseline(report: BenchReport) -> str:
    if not report.baseline:
        return ""
    lines = ["| row | baseline ms | now/then | 95 % interval | verdict |", "|---|---|---|---|---|"]
    for row in report.baseline:
        low, high = row.ci95
        said = "**regressed**" if row.regressed else row.verdict
        lines.append(
            f"| {row.id} | {row.baseline_ms:.2f} | {row.ratio_median:.3f} "
            f"| {low:.3f} to {high:.3f} | {said} |"
        )
    return "\n".join(lines)


def _failed(report: BenchReport) -> str:
    return "\n".join(f"- not measured: {row.id}: {row.message}" for row in report.failed)


def _warnings(report: BenchReport) -> str:
    lines = [f"- {text}" for text in report.warnings]
    lines += [f"- {row.id}: {text}" for row in report.results for text in row.warnings]
    return "\n".join(["Warnings:", *lines]) if lines else ""
