"""request -> source -> positions fitted -> traced -> passes -> artifact -> parity.

The steps are those that the user sees. Files are staged and renamed at the very end, so that a
failure anywhere leaves the output folder as it was; a parity failure keeps the files and marks
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from exporters.onnx_file import write_onnx
from exporters.passes import run_passes
from exporters.passes.base import PassContext
from exporters.plan import Plan, PlannedGraph, make_plan
from exporters.proof import PassChecker, SpelledGraph, StagedArtifact, prove, verdict_of
from exporters.quantize.staging import IrChange, Precise
from exporters.retarget import retarget
from exporters.trace import TracedGraph, trace
from vitpe_deploy import __version__
from vitpe_deploy.files import StagedFiles, refuse_existing, sha256_of, total_size
from vitpe_deploy.limits import KEY as LIMITS_KEY
from vitpe_deploy.limits import limits_to_text
from vitpe_deploy.manifest import Manifest, SourceRecord, TensorRecord, manifest_path
from vitpe_deploy.progress import Progress, Silent
from vitpe_deploy.request import ExportRequest, Format, Precision, Target
from vitpe_deploy.results import (
    ArtifactRecord,
    CandidateRecord,
    ExportReport,
    LayerVerdict,
    ParityRow,
    PassRecord,
    Refusal,
    Steps,
)
from vitpe_deploy.sources.onnx_graph import LoadedGraph

if TYPE_CHECKING:
    from vitpe_deploy.sources.base import LoadedModel, Source

TOTAL_STEPS = 6


@dataclass(slots=True)
class _Clock:
    """Seconds by step, added up over all graphs of an export."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def last(self, *names: str) -> float:
        return sum(self.seconds.get(n, 0.0) for n in names)


def run_export(
    request: ExportRequest, source: Source, *, progress: Progress | None = None
) -> ExportReport:
    """Export, verify and write. Gives the report; its verdict says whether parity held.

    Raises:
        VitpeError: anything that kept files from being written; nothing is left behind.
    """
    return _Export(request, source, progress or Silent()).run()


class _Export:
    """One export on its way through the steps."""

    def __init__(self, request: ExportRequest, source: Source, progress: Progress) -> None:
        self.request = request
        self.source = source
        self.progress = progress
        self.clock = _Clock()
        self.facts = source.facts()
        self.plan: Plan = make_plan(request, self.facts)
        refuse_existing(self.plan.paths(request), force=request.force)
        self._weights_sha256: Future[str] = Future()

    def run(self) -> ExportReport:
        """All steps, for all graphs of the plan."""
        loaded = self._load()
        artifacts: list[ArtifactRecord] = []
        parity: list[ParityRow] = []
        layers: list[LayerVerdict] = []
        passes: list[PassRecord] = []
        candidates: list[CandidateRecord] = []
        rule: str | None = None
        for graph in self.plan.graphs:
            with StagedFiles(self.request.output_dir) as staging:
                rule = self._fit_rule(loaded, graph)
                traced = self._trace(loaded, graph)
                spelled = self._optimise(traced, loaded)
                manifests = [
                    self._stage(kind, graph, loaded, spelled, rule, staging)
                    for kind in self.request.formats
                ]
                proved = self._prove(graph, loaded, manifests)
                for (staged, manifest), (rows, verdicts) in zip(manifests, proved, strict=True):
                    final = _with_proof(manifest, rows, verdicts)
                    staging.path(manifest_path(staged.path).name).write_text(
                        final.as_json(), encoding="utf-8"
                    )
                    parity += rows
                    layers += verdicts
                    passes += _pass_records(staged)
                    candidates += manifest.candidates
                    artifacts.append(self._record(staged, final))
                self._commit(staging, artifacts[-len(manifests) :])
        verdict = verdict_of(parity, layers)
        return ExportReport(
            model=self.facts.spec,
            encoding=self.facts.encoding,
            resample_rule=rule,
            weights=loaded.weights,
            reference=loaded.reference,
            artifacts=tuple(artifacts),
            parity=tuple(parity),
            layers=tuple(layers),
            passes=tuple(passes),
            candidates=tuple(candidates),
            steps_s=Steps(**{k: round(v, 4) for k, v in self.clock.seconds.items()}),
            verdict=verdict,
        )

    def _load(self) -> LoadedModel:
        self.progress.begin(1, TOTAL_STEPS, "Load model")
        with self.clock.step("load"):
            loaded = self.source.load()
            loaded.require_finite()
            self.facts = loaded.facts
            self.plan = make_plan(self.request, self.facts)
            # Hashed while the tracer keeps the other cores idle.
            hasher = ThreadPoolExecutor(max_workers=1)
            self._weights_sha256 = hasher.submit(loaded.weights_sha256)
            hasher.shutdown(wait=False)
        native = "" if self.facts.native is None else f", native {self.facts.native}"
        self.progress.end(
            f"{_count(loaded.num_parameters)} params ({loaded.weights}){native}",
            self.clock.seconds["load"],
        )
        return loaded

    def _fit_rule(self, loaded: LoadedModel, graph: PlannedGraph) -> str | None:
        self.progress.begin(2, TOTAL_STEPS, "Fit positions")
        with self.clock.step("fit"):
            fits = loaded.position_fits(graph.size)
        self.progress.end("; ".join(map(str, dict.fromkeys(fits))), self.clock.last("fit"))
        return next((fit.rule for fit in fits if fit.rule), None)

    def _trace(self, loaded: LoadedModel, graph: PlannedGraph) -> TracedGraph:
        self.progress.begin(3, TOTAL_STEPS, "Trace")
        request = self.request
        before = self.clock.last("trace")
        if isinstance(loaded, LoadedGraph):
            with self.clock.step("trace"):
                traced = retarget(loaded, graph, request)
            self.progress.end(f"{len(traced.model.graph)} nodes", self.clock.last("trace") - before)
            return traced
        with self.clock.step("fit"):
            module = loaded.explicit(graph.size)
        with self.clock.step("trace"):
            traced = trace(
                loaded,
                module,
                size=graph.trace_size,
                batch=graph.trace_batch,
                dynamic=request.dynamic,
                outputs=self.plan.outputs,
                override=request.model.resample,
                opset=request.opset,
            )
        self.progress.end(f"{len(traced.model.graph)} nodes", self.clock.last("trace") - before)
        return traced

    def _optimise(self, traced: TracedGraph, loaded: LoadedModel) -> dict[Target, SpelledGraph]:
        """A finished graph for each target that a format needs."""
        self.progress.begin(4, TOTAL_STEPS, "Optimise")
        targets = list(
            dict.fromkeys(_target_of(kind, self.request) for kind in self.request.formats)
        )
        before = self.clock.last("optimise", "simplify")
        spelled = {}
        for target in targets:
            # Each target starts from a clone, the last one too: names that passes give out are
            # counted per graph, and a file must not depend on which others are written with it.
            spelled[target] = self._spell(traced.model.clone(), traced, target, loaded)
        runs = spelled[targets[0]].runs
        changed = ", ".join(
            f"{r.name.replace('-', ' ')} {r.outcome.changed}" for r in runs if r.outcome.changed
        )
        one = spelled[targets[0]]
        self.progress.end(
            f"{one.nodes_before} -> {len(one.model.graph)} nodes" + (changed and f": {changed}"),
            self.clock.last("optimise", "simplify") - before,
        )
        return spelled

    def _spell(
        self, model: ir.Model, traced: TracedGraph, target: Target, loaded: LoadedModel
    ) -> SpelledGraph:
        request = self.request
        nodes_before = len(model.graph)
        context = PassContext(target, request.opset, request.dynamic is not request.dynamic.NONE)
        with self.clock.step("optimise"):
            runs = run_passes(
                model,
                context,
                skip=request.skip_passes,
                after_each=self._pass_checker(loaded) if request.verify.passes else None,
            )
        if request.simplify:
            from exporters.simplify import simplify

            with self.clock.step("simplify"):
                model = simplify(model)
        present = {value.name for node in model.graph for value in node.outputs}
        kept = tuple(name for name in traced.layer_values if name in present)
        return SpelledGraph(model, runs, nodes_before, kept)

    def _pass_checker(self, loaded: LoadedModel) -> PassChecker:
        return PassChecker(self.request, loaded, self.plan, self.progress)

    def _stage(
        self,
        kind: Format,
        graph: PlannedGraph,
        loaded: LoadedModel,
        spelled: dict[Target, SpelledGraph],
        rule: str | None,
        staging: StagedFiles,
    ) -> tuple[StagedArtifact, Manifest]:
        """Write one artifact into the staging folder. Gives it with its unproved manifest."""
        target = _target_of(kind, self.request)
        chosen = spelled[target]
        name = graph.file_name(kind, self.request.target)
        precise = Precise(self.request, self.plan.outputs, name)
        if kind is Format.ONNX and self.request.precision is not Precision.FP32:
            with self.clock.step("quantize"):
                chosen = precise.onnx(chosen, graph, loaded)
        with self.clock.step("write"):
            manifest = self._manifest(kind, target, graph, loaded, chosen, rule)
            props = manifest.metadata_props()
            if self.plan.limits:
                props[LIMITS_KEY] = limits_to_text(self.plan.limits)
            if kind is Format.ONNX:
                written = write_onnx(chosen.model, staging.path(name), props)
                for extra in written.paths[1:]:
                    staging.path(extra.name)
                staged = StagedArtifact(
                    kind,
                    target,
                    written.paths[0],
                    written.paths,
                    written.sha256,
                    chosen,
                    len(chosen.model.graph),
                )
            else:
                staged = self._stage_ir(
                    target, name, chosen, props, staging, precise.ir_change(graph, loaded)
                )
            manifest = manifest.model_copy(
                update={
                    "files": tuple(p.name for p in staged.files),
                    "sha256": staged.sha256,
                    "size_bytes": total_size(staged.files),
                    **precise.manifest_fields(),
                }
            )
        return staged, manifest

    def _stage_ir(
        self,
        target: Target,
        name: str,
        chosen: SpelledGraph,
        props: dict[str, str],
        staging: StagedFiles,
        change: IrChange | None,
    ) -> StagedArtifact:
        from exporters.openvino_ir import convert

        xml = staging.path(name)
        onnx_path = xml.with_suffix(".onnx.tmp")
        written = write_onnx(chosen.model, onnx_path, {})
        try:
            half = self.request.precision is Precision.FP16
            files, operations = convert(
                onnx_path,
                xml,
                props,
                change=change,
                half_weights=half,
                limits=self.plan.limits,
            )
        finally:
            for path in written.paths:
                path.unlink(missing_ok=True)
        staging.path(files[1].name)
        return StagedArtifact(
            Format.OPENVINO, target, xml, files, sha256_of(xml), chosen, operations
        )

    def _manifest(
        self,
        kind: Format,
        target: Target,
        graph: PlannedGraph,
        loaded: LoadedModel,
        chosen: SpelledGraph,
        rule: str | None,
    ) -> Manifest:
        facts, request = self.facts, self.request
        span = request.size_range
        return Manifest(
            version=__version__,
            files=(),
            format=kind.value,
            sha256="",
            size_bytes=0,
            model=facts.spec,
            source=None if self.source.anonymous else SourceRecord.from_request(request.model),
            weights=loaded.weights,
            weights_sha256=self._weights_sha256.result(),
            reference=loaded.reference,
            encoding=facts.encoding,
            encoding_params=dict(facts.encoding_params),
            resample_rule=rule,
            native_resolution=None
            if facts.native is None
            else (facts.native.height, facts.native.width),
            resolution=None if graph.size is None else (graph.size.height, graph.size.width),
            resolution_range=None if span is None else (span.low, span.high, span.step),
            patch_size=facts.grid_divisor,
            prefix_tokens=facts.prefix_tokens,
            dynamic=request.dynamic.value,
            batch=None if request.dynamic.batch else request.batch,
            precision=request.precision.value,
            target=target.value,
            opset=chosen.model.opset_imports.get("", request.opset),
            inputs=tuple(_tensor_record(v) for v in chosen.model.graph.inputs),
            outputs=tuple(_tensor_record(v) for v in chosen.model.graph.outputs),
            layer_values=chosen.layer_values,
            kept_tokens=chosen.kept_tokens,
            preprocess=facts.preprocess.as_dict(),
            labels=facts.labels,
            input_layout=facts.input.as_dict(),
            tolerance={
                "rtol": request.verify.tolerance.rtol,
                "atol": request.verify.tolerance.atol,
            },
            verdict="unverified",
        )

    def _prove(
        self,
        graph: PlannedGraph,
        loaded: LoadedModel,
        staged: Sequence[tuple[StagedArtifact, Manifest]],
    ) -> list[tuple[list[ParityRow], list[LayerVerdict]]]:
        self.progress.begin(5, TOTAL_STEPS, "Parity")
        if not self.request.verify.enabled:
            self.progress.end("skipped (--no-verify)")
            return [([], []) for _ in staged]
        with self.clock.step("parity"):
            results = prove(self.request, self.plan, graph, loaded, staged, self.progress)
        self.progress.end("")
        return results

    def _label(self, staged: StagedArtifact) -> str:
        return str(self.request.output_dir / staged.path.name)

    def _record(self, staged: StagedArtifact, manifest: Manifest) -> ArtifactRecord:
        return ArtifactRecord(
            path=self._label(staged),
            format=staged.kind.value,
            precision=self.request.precision.value,
            resolution=manifest.resolution,
            dynamic=self.request.dynamic.value,
            target=staged.target.value,
            opset=manifest.opset,
            size_bytes=manifest.size_bytes,
            sha256=staged.sha256,
            nodes=staged.nodes,
        )

    def _commit(self, staging: StagedFiles, records: Sequence[ArtifactRecord]) -> None:
        self.progress.begin(6, TOTAL_STEPS, "Write")
        with self.clock.step("write"):
            staging.commit()
        for record in records:
            self.progress.line(record.path, value=f"{record.size_bytes / 1e6:.1f} MB")
        self.progress.end("")


def _target_of(kind: Format, request: ExportRequest) -> Target:
    return Target.OPENVINO if kind is Format.OPENVINO else request.target


def _count(number: int) -> str:
    """``22.1 M``, or ``31.5 k`` below a million."""
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number / 1e3:.1f} k"


def _tensor_record(value: ir.Value) -> TensorRecord:
    shape = () if value.shape is None else value.shape
    dims = tuple(d if isinstance(d, int) else str(d.value) for d in shape)
    dtype = "float32" if value.dtype is None else np.dtype(value.dtype.numpy()).name
    return TensorRecord(name=value.name or "", shape=dims, dtype=dtype)


def _pass_records(staged: StagedArtifact) -> list[PassRecord]:
    return [
        PassRecord(
            artifact=staged.path.name,
            name=run.name,
            changed=run.outcome.changed,
            refused=tuple(Refusal(node=r.node, reason=r.reason) for r in run.outcome.refused),
        )
        for run in staged.spelled.runs
    ]


def _with_proof(
    manifest: Manifest, rows: Sequence[ParityRow], layers: Sequence[LayerVerdict]
) -> Manifest:
    own = [r.model_copy(update={"artifact": manifest.files[0]}) for r in rows]
    named = [v.model_copy(update={"artifact": manifest.files[0]}) for v in layers]
    return manifest.model_copy(
        update={"parity": tuple(own), "layers": tuple(named), "verdict": verdict_of(rows, layers)}
    )
