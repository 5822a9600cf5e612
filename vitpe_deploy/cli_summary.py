"""What the commands print on stdout for people: path, size, verdict, and what to paste next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitpe_deploy.cli_next import after_export, after_verify

if TYPE_CHECKING:
    from exporters.plan import Plan, PlannedGraph
    from vitpe_deploy.request import ExportRequest
    from vitpe_deploy.results import ExportReport, ParityRow, VerifyReport
    from vitpe_deploy.sources.base import ModelFacts


def header(request: ExportRequest, facts: ModelFacts, plan: Plan) -> str:
    """``vitpe-export  <model>  <encoding>  <size>  fp32  opset 20``."""
    if request.dynamic.size:
        sizes = f"dynamic {request.dynamic}"
        sizes += f" {request.size_range}" if request.size_range is not None else ""
    else:
        sizes = ",".join(str(graph.size or "dynamic") for graph in plan.graphs)
        sizes += "  dynamic batch" if request.dynamic.batch else ""
    batch = "" if request.batch == 1 else f"  batch {request.batch}"
    target = "" if request.target.value == "ort" else f"  {request.target}"
    encoding = facts.encoding or "its own positions"
    return (
        f"vitpe-export  {facts.spec}  {encoding}  {sizes}{batch}  {request.precision}"
        f"  opset {request.opset}{target}"
    )


def export_summary(report: ExportReport) -> str:
    """The last lines of an export."""
    lines = []
    for record in report.artifacts:
        rows = [r for r in report.parity if r.artifact == record.path]
        failed = [v for v in report.layers if v.artifact == record.path and _fails(v)]
        lines.append(
            f"{record.path}  {_megabytes(record.size_bytes)}  {_verdict(rows, bool(failed))}"
        )
        lines += _judged_on(rows)
    if report.verdict == "unverified" and report.parity:
        from vitpe_deploy.results import reference_words

        lines.append(f"not verified: {reference_words(report.reference)} was not verified itself")
    judged = [c for c in report.candidates if c.calibrated_on]
    if judged:
        lines.append(
            f"  calibrated on {judged[0].calibrated_on} inputs, "
            f"agreement on {judged[0].judged_on} others"
        )
    for found in report.candidates:
        agreement = found.problem or f"{found.criterion} {found.agreement:.4f}"
        spent = "" if found.latency_ms is None else f"{found.latency_ms:.2f} ms  "
        lines.append(
            f"  {'*' if found.chosen else ' '} {found.method:<18} {spent}"
            f"{_megabytes(found.size_bytes)}  {agreement}"
        )
    lines += [f"{path}  {_megabytes(_size_of(Path(path)))} in all" for path in report.indexes]
    lines.append(f"weights: {report.weights}")
    lines += after_export(report)
    return "\n".join(lines)


def verify_summary(report: VerifyReport, *, bundle: bool) -> str:
    """The last lines of a verification."""
    from vitpe_deploy.results import reference_words

    size = _megabytes(_size_of(Path(report.artifact)))
    failed = any(_fails(v) for v in report.layers)
    against = reference_words(report.reference)
    if report.stored_reference is not None:
        against += f" of {reference_words(report.stored_reference)}"
    lines = [
        f"{report.artifact}  {size}  {_verdict(report.parity, failed)}",
        f"against: {against} ({report.model})",
    ]
    lines += _judged_on(report.parity)
    lines += after_verify(report, bundle=bundle)
    return "\n".join(lines)


def _size_of(path: Path) -> int:
    """Bytes of a file, or of all that an index lists, shared weights once."""
    from vitpe_deploy.buckets import is_index
    from vitpe_deploy.pair_index import is_pair

    if is_pair(path):
        from vitpe_deploy.manifest import read_manifest
        from vitpe_deploy.pair_index import read_pair

        pair = read_pair(path)
        manifests = [read_manifest(path.with_name(name)) for name in (pair.vision, pair.text)]
        tokens = () if pair.tokenizer is None else (pair.tokenizer.file,)
        both = {path.name, *tokens, *(name for m in manifests for name in m.files)}
        return sum(path.with_name(name).stat().st_size for name in both)
    if not is_index(path):
        return path.stat().st_size
    from vitpe_deploy.bucket_index import read_index

    index = read_index(path)
    names = (path.name, index.weights, *(bucket.file for bucket in index.buckets))
    return sum(path.with_name(name).stat().st_size for name in names)


def plan_document(request: ExportRequest, facts: ModelFacts, plan: Plan) -> dict[str, Any]:
    """The ``vitpe.plan/1`` document of ``--dry-run``."""
    from exporters.plan import engines_for

    files = []
    for graph in plan.graphs:
        for kind in request.formats:
            names = plan.file_names(graph, kind, request.target)
            engines = engines_for(kind, request.verify.runtimes)
            files.append(
                {
                    "paths": [str(request.output_dir / name) for name in names],
                    "format": kind.value,
                    "resolution": None if graph.size is None else graph.size.as_list(),
                    "verify": _planned_proof(graph, engines) if request.verify.enabled else [],
                }
            )
    shared = [name for kind in request.formats for name in plan.shared_names(kind)]
    return {
        "schema": "vitpe.plan/1",
        "model": facts.spec,
        "encoding": facts.encoding,
        "dynamic": request.dynamic.value,
        "precision": request.precision.value,
        "opset": request.opset,
        "outputs": list(plan.outputs),
        "files": files,
        "shared": [str(request.output_dir / name) for name in shared],
    }


def plan_summary(document: dict[str, Any]) -> str:
    """A ``vitpe.plan/1`` document in words."""
    lines = [f"outputs: {', '.join(document['outputs'])}"]
    for file in document["files"]:
        lines += [f"would write   {path}" for path in file["paths"]]
        for case in file["verify"]:
            height, width = case["resolution"]
            lines.append(
                f"would verify  {height}x{width} batch {case['batch']}  "
                f"in {', '.join(case['runtimes'])}"
            )
        if not file["verify"]:
            lines.append("would verify  nothing (--no-verify)")
    lines += [f"would write   {path}" for path in document["shared"]]
    lines.append("Nothing was written: --dry-run.")
    return "\n".join(lines)


def _planned_proof(graph: PlannedGraph, engines: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"resolution": size.as_list(), "batch": batch, "runtimes": list(engines)}
        for size, batch in graph.cases
    ]


def _verdict(rows: Sequence[ParityRow], layers_failed: bool) -> str:
    if not rows:
        return "not verified"
    good = all(r.passed for r in rows) and not layers_failed
    engines = ", ".join(dict.fromkeys(r.runtime for r in rows))
    differences = [r.max_rel for r in rows if r.max_rel is not None]
    worst = f"max rel {max(differences):.1e}" if len(differences) == len(rows) else "not comparable"
    if rows[0].criterion != "max_rel":
        from vitpe_deploy.parity import row_words

        shown = min(rows, key=lambda r: (r.passed, r.cosine or 0.0))
        words = shown.problem or row_words(shown)
        return f"{'passed' if good else 'FAILED'}  {words} in {engines}"
    return f"{'passed' if good else 'FAILED'}  {worst} (limit {rows[0].limit:.0e}) in {engines}"


def _judged_on(rows: Sequence[ParityRow]) -> list[str]:
    """What the agreement of an int8 file was counted on, where that is less than it could be."""
    if not any(row.judged_on == "noise" for row in rows):
        return []
    some = "in part " if any(row.judged_on == "calibration" for row in rows) else ""
    return [f"  judged {some}on noise, not on calibration data"]


def _fails(verdict: Any) -> bool:
    return bool(verdict.fails)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
