"""``vitpe-export FILE.onnx --target portable``: one of our files, respelled and proved again.

read -> standard operators -> opset -> explicit attention -> passes -> file -> parity with the
original file. Inputs, outputs, numbers of weights and everything that the manifest says of the
model stay; target, opset, files, and what parity found are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from exporters.clock import Clock
from exporters.onnx_file import write_onnx
from exporters.passes import PASSES, PassRun, run_passes
from exporters.passes.attention import SpellAttention
from exporters.passes.base import PassContext
from exporters.passes.masked_attention import MaskedAttention
from exporters.passes.rotary import FuseRotary
from exporters.passes.separate_projections import SeparateProjections
from exporters.passes.standard_attention import StandardAttention
from exporters.passes.tidy import Tidy
from exporters.plan import Plan, PlannedGraph, check_flags, engines_for
from exporters.respell.plain import spell_out
from exporters.respell.recognise import recognise, with_shapes
from exporters.retarget import at_opset
from exporters.simplify import simplify
from vitpe_deploy.engine_parity import Question, References, in_engine, verdict_of
from vitpe_deploy.errors import SourceError, UsageError
from vitpe_deploy.files import StagedFiles, total_size
from vitpe_deploy.manifest import Manifest, manifest_path
from vitpe_deploy.parity import (
    Array,
    Outputs,
    agreement_cases,
    make_case,
    row_words,
    warn_of_noise,
)
from vitpe_deploy.parity import Target as ParityTarget
from vitpe_deploy.progress import Progress, Silent
from vitpe_deploy.request import ExportRequest, Format, Precision, Resolution, Tolerance
from vitpe_deploy.results import (
    ArtifactRecord,
    ExportReport,
    ParityRow,
    PassRecord,
    Steps,
    Verdict,
)
from vitpe_deploy.runtimes import Runtime, open_runtime
from vitpe_deploy.sources.onnx_graph import ORIGINAL
from vitpe_deploy.sources.own_file import OwnFile

_STEPS = 4
_WORST_FIRST: tuple[Verdict, ...] = ("failed", "unverified", "passed")
_USED = (
    SpellAttention,
    FuseRotary,
    SeparateProjections,
    MaskedAttention,
    StandardAttention,
    Tidy,
)
_SKIPPED = tuple(p.name for p in PASSES if p not in _USED and not p.required)


def plan_respelling(request: ExportRequest, source: OwnFile) -> Plan:
    """The one file that is written, and the sizes and batches it is compared at.

    Raises:
        UsageError: flags that contradict, or that have no meaning for a file.
        UnsupportedError: an opset that graphs are not written at.
    """
    manifest, verify = source.manifest, request.verify
    for flag, given in (
        ("--layers", verify.layers),
        ("--verify-passes", verify.passes),
        ("--skip-pass", bool(request.skip_passes)),
        ("--embed-preprocess", request.pixel_order is not None),
        ("--int8-method", request.int8_method != "auto"),
        ("--allow-floor", request.allow_floor),
        ("--interpolation, --antialias or --align-corners", bool(request.model.resample)),
    ):
        if given:
            raise UsageError(
                f"{flag} has no meaning for a file that is respelled",
                hint="Leave it out, or name the source model instead of the file.",
            )
    size = manifest.size()
    check_flags(request, symbolic_size=size is None)
    cases = list(
        dict.fromkeys(
            (Resolution(*row.resolution), row.batch)
            for row in manifest.parity
            if row.resolution is not None
        )
    )
    if not cases:
        native = manifest.native_resolution
        some = size or (Resolution(*native) if native is not None else None)
        if some is None:
            raise UsageError(
                f"{source.path.name} names no size to compare at",
                hint="Verify it first: vitpe-verify.",
            )
        cases = [(some, manifest.batch or 1)]
    cases += [(other, manifest.batch or 1) for other in verify.resolutions]
    stem = source.path.stem.removesuffix(f"-{manifest.target}")
    graph = PlannedGraph(size, cases[0][0], cases[0][1], tuple(dict.fromkeys(cases)), stem)
    return Plan(tuple(output.name for output in manifest.outputs), (graph,))


def run_respelling(
    request: ExportRequest, source: OwnFile, *, progress: Progress | None = None
) -> ExportReport:
    """Respell, verify and write. Gives the report, as an export does.

    Raises:
        VitpeError: anything that kept the file from being written; nothing is left behind.
    """
    return _Respelling(request, source, progress or Silent()).run()


class _OpenFile:
    """The original as the reference. See :class:`vitpe_deploy.parity.Reference`."""

    def __init__(self, engine: Runtime) -> None:
        self._engine = engine

    def outputs(
        self, size: Resolution, inputs: Sequence[Array], names: Sequence[str]
    ) -> list[Outputs]:
        """Run the original."""
        (entry,) = self._engine.inputs
        found = [self._engine.run({entry.name: x}) for x in inputs]
        return [{name: outputs[name] for name in names} for outputs in found]


class _Respelling:
    """One file on its way through the steps."""

    def __init__(self, request: ExportRequest, source: OwnFile, progress: Progress) -> None:
        self.request = request
        self.source = source
        self.original = source.manifest
        self.progress = progress
        self.clock = Clock()
        self.plan = plan_respelling(request, source)

    def run(self) -> ExportReport:
        """All steps."""
        model = self._read()
        model, runs = self._respell(model)
        (graph,) = self.plan.graphs
        name = graph.file_name(Format.ONNX, self.request.target)
        with StagedFiles(self.request.output_dir) as staging:
            with self.clock.step("write"):
                written = write_onnx(model, staging.path(name), dict(self._metadata))
                for extra in written.paths[1:]:
                    staging.path(extra.name)
            rows = self._prove(written.paths[0])
            manifest = self._manifest(model, written.paths, written.sha256, rows)
            staging.path(manifest_path(written.paths[0]).name).write_text(
                manifest.as_json(), encoding="utf-8"
            )
            self.progress.begin(4, _STEPS, "Write")
            with self.clock.step("write"):
                staging.commit(replace=self.request.force)
            path = str(self.request.output_dir / name)
            self.progress.line(path, value=f"{manifest.size_bytes / 1e6:.1f} MB")
            self.progress.end("")
        return self._report(path, manifest, model, rows, runs)

    def _read(self) -> ir.Model:
        self.progress.begin(1, _STEPS, "Read file")
        path = self.source.path
        with self.clock.step("load"):
            try:
                model = ir.external_data.load_to_model(ir.load(path))
                onnx.checker.check_model(str(path))
            except Exception as problem:  # parsers of onnx share no base class
                said = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:160]
                raise SourceError(f"{path} is not an ONNX model: {said}") from problem
        self._metadata = {k: v for k, v in model.metadata_props.items() if k.startswith("vitpe.")}
        said = f"{len(model.graph)} nodes, target {self.original.target}"
        self.progress.end(said, self.clock.total("load"))
        return model

    def _respell(self, model: ir.Model) -> tuple[ir.Model, tuple[PassRun, ...]]:
        self.progress.begin(2, _STEPS, "Respell")
        request, before = self.request, len(model.graph)
        with self.clock.step("optimise"):
            spelled = spell_out(model)
            model = with_shapes(at_opset(model, request.opset))
            found = recognise(model)
            symbolic = self.original.dynamic != "none"
            half = self.original.precision == Precision.FP16
            context = PassContext(request.target, request.opset, symbolic, half)
            runs = run_passes(model, context, skip=_SKIPPED)
        if request.simplify:
            with self.clock.step("simplify"):
                model = simplify(model)
        self.progress.end(
            f"{before} -> {len(model.graph)} nodes: {spelled} spelled out, attention {found}",
            self.clock.total("optimise", "simplify"),
        )
        return model, runs

    def _prove(self, path: Path) -> tuple[ParityRow, ...]:
        self.progress.begin(3, _STEPS, "Parity")
        verify = self.request.verify
        if not verify.enabled:
            self.progress.end("skipped (--no-verify)")
            return ()
        manifest = self.original
        cases = [
            make_case(
                size, batch, layout=manifest.layout(), preprocess=manifest.preprocessing(),
                images=verify.images,
            )
            for size, batch in self.plan.graphs[0].cases
        ]  # fmt: skip
        if manifest.min_agreement is not None:
            cases = agreement_cases(
                cases,
                manifest.calibration,
                layout=manifest.layout(),
                preprocess=manifest.preprocessing(),
                images=verify.images,
            )
            warn_of_noise(cases, self.progress)
        tolerance = verify.tolerance
        if manifest.precision != Precision.FP32:
            tolerance = Tolerance(manifest.tolerance["rtol"], manifest.tolerance["atol"])
        rows: list[ParityRow] = []
        with (
            self.clock.step("parity"),
            open_runtime("onnxruntime", self.source.path, threads=self.request.threads) as engine,
        ):
            names = self.plan.outputs
            question = Question(
                artifact=str(self.request.output_dir / path.name),
                cases=cases,
                expected=References(_OpenFile(engine), names, self.progress, called=ORIGINAL),
                names=names,
                tolerance=tolerance,
                min_agreement=manifest.min_agreement,
            )
            for runtime in engines_for(Format.ONNX, verify.runtimes):
                target = ParityTarget(path, runtime, verify.device, self.request.threads)
                found = in_engine(target, question).rows
                rows += found
                worst = min(found, key=lambda row: (row.passed, row.cosine or 0.0))
                self.progress.line(
                    worst.problem or row_words(worst),
                    label=runtime,
                    good=all(r.passed for r in found),
                )
        self.progress.end("")
        if manifest.verdict == "unverified":
            self.progress.note(
                f"warning: {self.source.path.name} was written with --no-verify, so that being "
                f"equal to it proves nothing; vitpe-verify {path.name} compares with its source"
            )
        return tuple(rows)

    def _manifest(
        self, model: ir.Model, files: Sequence[Path], sha256: str, rows: Sequence[ParityRow]
    ) -> Manifest:
        present = {v.name for n in model.graph for v in n.outputs}
        own = tuple(row.model_copy(update={"artifact": files[0].name}) for row in rows)
        return self.original.model_copy(
            update={
                "files": tuple(p.name for p in files),
                "sha256": sha256,
                "size_bytes": total_size(files),
                "target": self.request.target.value,
                "opset": model.opset_imports[""],
                "reference": ORIGINAL,
                "layer_values": tuple(n for n in self.original.layer_values if n in present),
                "parity": own,
                "layers": (),
                "verdict": self._verdict(rows),
            }
        )

    def _verdict(self, rows: Sequence[ParityRow]) -> Verdict:
        """The worse of two: what is equal to a file has the verdict of that file at best."""
        found: tuple[Verdict, ...] = (self.original.verdict, verdict_of(rows, ()))
        return next((worse for worse in _WORST_FIRST if worse in found), "unverified")

    def _report(
        self,
        path: str,
        manifest: Manifest,
        model: ir.Model,
        rows: Sequence[ParityRow],
        runs: Sequence[PassRun],
    ) -> ExportReport:
        record = ArtifactRecord(
            path=path,
            format="onnx",
            precision=manifest.precision,
            resolution=manifest.resolution,
            dynamic=manifest.dynamic,
            target=manifest.target,
            opset=manifest.opset,
            size_bytes=manifest.size_bytes,
            sha256=manifest.sha256,
            nodes=len(model.graph),
        )
        passes = tuple(
            PassRecord(
                artifact=path,
                name=run.name,
                changed=run.outcome.changed,
                refused=tuple(run.outcome.refused),
            )
            for run in runs
        )
        return ExportReport(
            model=manifest.model,
            encoding=manifest.encoding,
            resample_rule=manifest.resample_rule,
            weights=manifest.weights,
            reference=ORIGINAL,
            artifacts=(record,),
            parity=tuple(rows),
            passes=passes,
            steps_s=Steps(**{k: round(v, 4) for k, v in self.clock.seconds.items()}),
            verdict=manifest.verdict,
        )
