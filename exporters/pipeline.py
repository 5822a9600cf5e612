"""request -> source -> positions fitted -> traced -> passes -> artifact -> parity.

The steps are those that the user sees. Files of all sizes are staged and renamed together at the
very end, so that a failure anywhere leaves the output folder as it was; a parity failure keeps the
files and marks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from exporters.clock import Clock
from exporters.onnx_file import forget_weights
from exporters.passes import run_passes
from exporters.passes.base import PassContext
from exporters.plan import Plan, PlannedGraph, make_plan
from exporters.proof import PassChecker, SpelledGraph, StagedArtifact, ask, prove
from exporters.records import (
    artifact_record,
    bucket_index,
    candidate_records,
    pass_records,
    with_proof,
)
from exporters.retarget import retarget
from exporters.trace import TracedGraph, trace
from exporters.trim import trim_memory
from exporters.writer import ArtifactWriter, target_of
from vitpe_deploy.engine_parity import verdict_of
from vitpe_deploy.files import StagedFiles, refuse_existing, total_size
from vitpe_deploy.layer_parity import require_blocks
from vitpe_deploy.manifest import Manifest, manifest_path
from vitpe_deploy.progress import Progress, Silent
from vitpe_deploy.request import ExportRequest, Precision, Target
from vitpe_deploy.results import (
    ArtifactRecord,
    ExportReport,
    LayerVerdict,
    ParityRow,
    Steps,
)
from vitpe_deploy.sources.onnx_graph import LoadedGraph

if TYPE_CHECKING:
    from vitpe_deploy.sources.base import LoadedModel, Source

TOTAL_STEPS = 6


def run_export(
    request: ExportRequest,
    source: Source,
    *,
    progress: Progress | None = None,
    staging: StagedFiles | None = None,
) -> ExportReport:
    """Export, verify and write. Gives the report; its verdict says whether parity held.

    Args:
        request: what is asked for.
        source: where the model comes from.
        progress: told what happens.
        staging: where files stay that are to appear together with others; whoever opened it
            commits it. Without one the files appear at the end.

    Raises:
        VitpeError: anything that kept files from being written; nothing is left behind.
    """
    export = _Export(request, source, progress or Silent())
    if staging is not None:
        return export.run(staging, commit=False)
    with StagedFiles(request.output_dir) as own:
        return export.run(own)


@dataclass(frozen=True, slots=True)
class _Proved:
    """One artifact in the staging folder, with what parity found."""

    staged: StagedArtifact
    manifest: Manifest
    rows: Sequence[ParityRow]
    layers: Sequence[LayerVerdict]


class _Export:
    """One export on its way through the steps."""

    def __init__(self, request: ExportRequest, source: Source, progress: Progress) -> None:
        self.request = request
        self.source = source
        self.progress = progress
        self.clock = Clock()
        self.facts = source.facts()
        self.plan: Plan = make_plan(request, self.facts)
        refuse_existing(self.plan.paths(request), force=request.force)
        self._weights_sha256: Future[str] = Future()
        self._loaded: LoadedModel | None = None

    @property
    def loaded(self) -> LoadedModel:
        """The model, between its loading and the last question to PyTorch."""
        if self._loaded is None:
            raise RuntimeError("the model is not in memory")
        return self._loaded

    def run(self, staging: StagedFiles, *, commit: bool = True) -> ExportReport:
        """All steps, for all graphs of the plan, whose files appear at once."""
        self._loaded = self._load()
        weights, reference = self.loaded.weights, self.loaded.reference
        writer = ArtifactWriter(
            self.request, self.source, self.plan, self.clock, self._weights_sha256
        )
        found: list[_Proved] = []
        rule: str | None = None
        with writer.sharing(staging):
            for graph in self.plan.graphs:
                rule = self._fit_rule(graph)
                found += self._graph(graph, writer, rule, staging)
        proved = [self._finish(one, staging) for one in found]
        indexes = self._index(proved, staging)
        artifacts = [artifact_record(self.request, p.staged, p.manifest) for p in proved]
        self._write(staging, artifacts, commit=commit)
        parity = [row for p in proved for row in p.rows]
        layers = [verdict for p in proved for verdict in p.layers]
        passes = [r for p in proved for r in pass_records(self.request, p.staged)]
        candidates = [c for p in proved for c in candidate_records(self.request, p.manifest)]
        return ExportReport(
            model=self.facts.spec,
            encoding=self.facts.encoding,
            resample_rule=rule,
            weights=weights,
            reference=reference,
            artifacts=tuple(artifacts),
            indexes=tuple(indexes),
            parity=tuple(parity),
            layers=tuple(layers),
            passes=tuple(passes),
            candidates=tuple(candidates),
            steps_s=Steps(**{k: round(v, 4) for k, v in self.clock.seconds.items()}),
            verdict=verdict_of(parity, layers),
        )

    def _graph(
        self,
        graph: PlannedGraph,
        writer: ArtifactWriter,
        rule: str | None,
        staging: StagedFiles,
    ) -> list[_Proved]:
        """One graph traced, optimised, written in every format, and proved.

        Weights are held by the model, by the graph and by engines; each is let go of as soon as
        nothing asks for it any more, so that no two engines and no copy of ours meet in memory.
        """
        spelled = self._optimise(self._trace(graph), graph)
        staged: list[tuple[StagedArtifact, Manifest]] = []
        targets = [target_of(kind, self.request) for kind in self.request.formats]
        for place, (kind, target) in enumerate(zip(self.request.formats, targets, strict=True)):
            staged.append(writer.stage(kind, graph, self.loaded, spelled, rule, staging))
            if target not in targets[place + 1 :]:
                forget_weights(spelled[target].model)
                forget_weights(staged[-1][0].spelled.model)
        found = self._prove(graph, staged)
        return [
            _Proved(artifact, manifest, rows, layers)
            for (artifact, manifest), (rows, layers) in zip(staged, found, strict=True)
        ]

    def _finish(self, proved: _Proved, staging: StagedFiles) -> _Proved:
        """Write the manifest, now that every file has its final size."""
        staged = proved.staged
        manifest = with_proof(proved.manifest, proved.rows, proved.layers)
        manifest = manifest.model_copy(update={"size_bytes": total_size(staged.files)})
        path = staging.path(manifest_path(staged.path).name)
        path.write_text(manifest.as_json(), encoding="utf-8")
        return _Proved(staged, manifest, proved.rows, proved.layers)

    def _index(self, done: Sequence[_Proved], staging: StagedFiles) -> list[str]:
        """Write what lists the buckets of each format. Gives the paths."""
        files = self.plan.buckets
        if files is None:
            return []
        written = []
        for kind in self.request.formats:
            name = files.index_name(kind.value)
            manifests = [p.manifest for p in done if p.staged.kind is kind]
            index = bucket_index(manifests, files.data_name(kind.value))
            staging.path(name).write_text(index.as_json(), encoding="utf-8")
            written.append(str(self.request.output_dir / name))
        return written

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

    def _fit_rule(self, graph: PlannedGraph) -> str | None:
        self.progress.begin(2, TOTAL_STEPS, "Fit positions")
        with self.clock.step("fit"):
            fits = self.loaded.position_fits(graph.size)
        self.progress.end("; ".join(map(str, dict.fromkeys(fits))), self.clock.total("fit"))
        return next((fit.rule for fit in fits if fit.rule), None)

    def _trace(self, graph: PlannedGraph) -> TracedGraph:
        self.progress.begin(3, TOTAL_STEPS, "Trace")
        request, loaded = self.request, self.loaded
        before = self.clock.total("trace")
        if isinstance(loaded, LoadedGraph):
            with self.clock.step("trace"):
                traced = retarget(loaded, graph, request)
            self.progress.end(
                f"{len(traced.model.graph)} nodes", self.clock.total("trace") - before
            )
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
        self.progress.end(f"{len(traced.model.graph)} nodes", self.clock.total("trace") - before)
        return traced

    def _optimise(self, traced: TracedGraph, graph: PlannedGraph) -> dict[Target, SpelledGraph]:
        """A finished graph for each target that a format needs."""
        self.progress.begin(4, TOTAL_STEPS, "Optimise")
        targets = list(
            dict.fromkeys(target_of(kind, self.request) for kind in self.request.formats)
        )
        before = self.clock.total("optimise", "simplify")
        spelled = {}
        for target in targets:
            # Each target starts from a clone, the last one too: names that passes give out are
            # counted per graph, and a file must not depend on which others are written with it.
            spelled[target] = self._spell(traced.model.clone(), traced, target, graph)
        runs = spelled[targets[0]].runs
        changed = ", ".join(
            f"{r.name.replace('-', ' ')} {r.outcome.changed}" for r in runs if r.outcome.changed
        )
        one = spelled[targets[0]]
        self.progress.end(
            f"{one.nodes_before} -> {len(one.model.graph)} nodes" + (changed and f": {changed}"),
            self.clock.total("optimise", "simplify") - before,
        )
        return spelled

    def _spell(
        self, model: ir.Model, traced: TracedGraph, target: Target, graph: PlannedGraph
    ) -> SpelledGraph:
        request = self.request
        nodes_before = len(model.graph)
        context = PassContext(
            target,
            request.opset,
            symbolic=request.dynamic is not request.dynamic.NONE,
            half=request.precision is Precision.FP16,
        )
        with self.clock.step("optimise"):
            runs = run_passes(
                model,
                context,
                skip=request.skip_passes,
                after_each=self._pass_checker(graph) if request.verify.passes else None,
            )
        if request.simplify:
            from exporters.simplify import simplify

            with self.clock.step("simplify"):
                model = simplify(model)
        present = {value.name for node in model.graph for value in node.outputs}
        kept = tuple(name for name in traced.layer_values if name in present)
        if request.verify.layers:
            require_blocks(kept, self.facts.name)
        return SpelledGraph(model, runs, nodes_before, kept)

    def _pass_checker(self, graph: PlannedGraph) -> PassChecker:
        return PassChecker(self.request, self.loaded, self.plan, graph, self.progress)

    def _prove(
        self, graph: PlannedGraph, staged: Sequence[tuple[StagedArtifact, Manifest]]
    ) -> list[tuple[list[ParityRow], list[LayerVerdict]]]:
        self.progress.begin(5, TOTAL_STEPS, "Parity")
        if not self.request.verify.enabled:
            self.progress.end("skipped (--no-verify)")
            return [([], []) for _ in staged]
        with self.clock.step("parity"):
            blocks = tuple(dict.fromkeys(b for _, m in staged for b in m.layer_values))
            answers = ask(self.request, self.plan, graph, self.loaded, blocks, self.progress)
            if graph is self.plan.graphs[-1]:
                self._loaded = None
                trim_memory()
            results = prove(self.request, self.plan, answers, staged, self.progress)
        self.progress.end("")
        return results

    def _write(
        self, staging: StagedFiles, records: Sequence[ArtifactRecord], *, commit: bool
    ) -> None:
        self.progress.begin(6, TOTAL_STEPS, "Write")
        if not commit:
            self.progress.end("waits for the other tower")
            return
        with self.clock.step("write"):
            staging.commit(replace=self.request.force)
        for record in records:
            self.progress.line(record.path, value=f"{record.size_bytes / 1e6:.1f} MB")
        self.progress.end("")


def _count(number: int) -> str:
    """``22.1 M``, or ``31.5 k`` below a million."""
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number / 1e3:.1f} k"
