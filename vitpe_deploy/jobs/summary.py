"""What came of the jobs: one document, one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitpe_deploy.bench.documents import BenchReport, FailedRow
from vitpe_deploy.exit_codes import worst
from vitpe_deploy.jobs.run import Done

_SAID = {0: "ok", 1: "FAILED", 2: "REFUSED", 3: "WRONG", 4: "SLOWER"}

_COLUMNS = {
    "export": ("job", "result", "file", "MB", "worst max rel", "s"),
    "bench": ("job", "result", "row", "median ms", "p95", "images/s", "agrees", "max rel"),
}


def document(command: str, jobs: Sequence[Done]) -> dict[str, Any]:
    """A ``vitpe.jobs/1`` document: every job's own report in it, or its error."""
    return {
        "schema": "vitpe.jobs/1",
        "command": command,
        "jobs": [
            {
                "name": done.job.name,
                "argv": list(done.job.argv),
                "exit_code": done.exit_code,
                "seconds": done.seconds,
                "kept": done.kept,
                "report": None if done.error is not None else done.document,
                "error": done.error,
            }
            for done in jobs
        ],
        "exit_code": worst([done.exit_code for done in jobs]),
    }


def markdown(command: str, jobs: Sequence[Done]) -> str:
    """One table over all jobs, and how many came to what."""
    columns = _COLUMNS[command]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for done in jobs:
        rows = list(_rows(command, done)) or [()]
        for cells in rows:
            whole = [done.job.name, _said(done), *cells]
            whole += [""] * (len(columns) - len(whole))
            lines.append(f"| {' | '.join(whole)} |")
    bad = sum(done.exit_code != 0 for done in jobs)
    kept = sum(done.kept for done in jobs)
    lines += ["", f"{len(jobs)} jobs: {len(jobs) - bad} ok, {bad} not, {kept} kept"]
    return "\n".join(lines)


def _said(done: Done) -> str:
    said = _SAID.get(done.exit_code, f"exit {done.exit_code}")
    return said if done.error is None else f"{said}: {done.error['message']}".replace("|", "\\|")


def _rows(command: str, done: Done) -> Iterator[tuple[str, ...]]:
    if done.error is not None:
        return
    found = done.document
    if command == "export":
        for record in found.get("artifacts", []):
            parity = [row for row in found["parity"] if row["artifact"] == record["path"]]
            worst_rel = [row["max_rel"] for row in parity if row["max_rel"] is not None]
            yield (
                Path(record["path"]).name,
                f"{record['size_bytes'] / 1e6:.1f}",
                f"{max(worst_rel):.1e}" if worst_rel else "not compared",
                f"{done.seconds:.1f}",
            )
        return
    for row in found.get("results", []):
        latency, agreement = row["latency_ms"], row["agreement"]
        yield (
            row["id"],
            "" if latency is None else f"{latency['median']:.2f}",
            "" if latency is None else f"{latency['p95']:.2f}",
            f"{row['throughput_ips']:.1f}",
            "not compared" if agreement is None else "yes" if agreement["passed"] else "WRONG",
            "" if agreement is None or agreement["max_rel"] is None
            else f"{agreement['max_rel']:.1e}",
        )  # fmt: skip
    for row in found.get("failed", []):
        yield (row["id"], f"not measured: {row['message']}")


def plans(command: str, jobs: Sequence[Done]) -> str:
    """What ``--dry-run`` says of every job."""
    lines = []
    for done in jobs:
        lines.append(f"{done.job.name}: {_said(done)}")
        if done.error is not None:
            continue
        if command == "export":
            files = [path for file in done.document["files"] for path in file["paths"][:1]]
            lines += [f"  would write  {path}" for path in files]
        else:
            groups = done.document["groups"]
            lines += [f"  would time   {row}" for group in groups for row in group["rows"]]
            lines.append(f"  about {done.document['estimate_s']:.0f} s")
    return "\n".join(lines)


def merged(jobs: Sequence[Done]) -> BenchReport | None:
    """The benchmarks of all jobs as one report; rows carry the names of their jobs.

    A job without a report is a failed row. Gives None when no job has one. Machine and harness are
    those of the first.
    """
    reports = [
        (done.job.name, BenchReport.model_validate(done.document))
        for done in jobs
        if done.error is None
    ]
    if not reports:
        return None
    first = reports[0][1]
    results, comparisons, baseline, unjudged = [], [], [], []
    failed = [
        FailedRow(
            id=done.job.name,
            kind=str(done.error.get("kind", "failed")),
            message=str(done.error.get("message", "")),
            hint=str(done.error.get("hint", "")),
        )
        for done in jobs
        if done.error is not None
    ]
    for name, report in reports:
        results += [r.model_copy(update={"id": f"{name}: {r.id}"}) for r in report.results]
        comparisons += [
            c.model_copy(update={"a": f"{name}: {c.a}", "b": f"{name}: {c.b}"})
            for c in report.comparisons
        ]
        failed += [f.model_copy(update={"id": f"{name}: {f.id}"}) for f in report.failed]
        baseline += [b.model_copy(update={"id": f"{name}: {b.id}"}) for b in report.baseline]
        unjudged += [u.model_copy(update={"id": f"{name}: {u.id}"}) for u in report.unjudged]
    return first.model_copy(
        update={
            "results": tuple(results),
            "comparisons": tuple(comparisons),
            "failed": tuple(failed),
            "baseline": tuple(baseline),
            "unjudged": tuple(unjudged),
            "layers": tuple(v for _, report in reports for v in report.layers),
            "warnings": tuple(dict.fromkeys(w for _, report in reports for w in report.warnings)),
        }
    )
