"""Is what was staged equal to PyTorch? The fifth step of an export, and ``--verify-passes``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from exporters.onnx_file import write_onnx
from exporters.passes import PASSES, PassRun
from exporters.passes.unread_tokens import KEPT_TOKENS
from exporters.plan import Plan, PlannedGraph, engines_for
from exporters.trace import ATTENTION_DOMAIN
from exporters.trim import give_back_memory
from vitpe_deploy.engine_parity import Question, References, in_engine
from vitpe_deploy.errors import ParityError
from vitpe_deploy.layer_parity import Blocks, layer_words
from vitpe_deploy.manifest import Manifest
from vitpe_deploy.parity import (
    NOT_FINITE,
    Outputs,
    ParityCase,
    Reference,
    agreement_cases,
    check,
    make_case,
    row_words,
    warn_of_noise,
)
from vitpe_deploy.parity import Target as ParityTarget
from vitpe_deploy.pixels import reference_for
from vitpe_deploy.progress import Progress
from vitpe_deploy.request import (
    DEFAULT_RTOL,
    ExportRequest,
    Format,
    Precision,
    Target,
    Tolerance,
)
from vitpe_deploy.results import LayerVerdict, ParityRow

if TYPE_CHECKING:
    from vitpe_deploy.sources.base import LoadedModel


@dataclass(frozen=True, slots=True)
class SpelledGraph:
    """A finished graph of one target."""

    model: ir.Model
    runs: tuple[PassRun, ...]
    nodes_before: int
    layer_values: tuple[str, ...]

    @property
    def kept_tokens(self) -> tuple[int, int] | None:
        """Tokens that the last block still computes, when not all."""
        for run in self.runs:
            if KEPT_TOKENS in run.outcome.facts:
                start, end = run.outcome.facts[KEPT_TOKENS]
                return start, end
        return None


@dataclass(frozen=True, slots=True)
class StagedArtifact:
    """One artifact in the staging folder, not yet proved."""

    kind: Format
    target: Target
    path: Path
    files: tuple[Path, ...]
    sha256: str
    spelled: SpelledGraph
    nodes: int


@dataclass(frozen=True, slots=True)
class Answers:
    """All that PyTorch has to say about one graph, asked before any engine runs.

    An engine holds the weights of its file once or twice; with what is here, the model they came
    from need not be in memory beside it.

    Attributes:
        cases: what the engines are run on.
        outputs: the reference outputs of each case.
        activations: of the blocks in the first case, where layers are compared.
        first_block: by place of the case, where its outputs stop being numbers.
    """

    cases: tuple[ParityCase, ...]
    outputs: tuple[list[Outputs], ...]
    activations: list[Outputs]
    first_block: Mapping[int, str]

    def __call__(self, case: ParityCase) -> list[Outputs]:
        """The reference outputs of a case."""
        return self.outputs[next(k for k, known in enumerate(self.cases) if known is case)]


def ask(
    request: ExportRequest,
    plan: Plan,
    graph: PlannedGraph,
    loaded: LoadedModel,
    blocks: Sequence[str],
    progress: Progress,
) -> Answers:
    """Run PyTorch on everything that the artifacts of a graph are compared on.

    ``blocks`` are the ``block:k`` values that the files hold, for the comparison of layers.
    """
    verify, facts = request.verify, loaded.facts
    layout = plan.layout(request, facts)
    cases = [
        make_case(
            size,
            batch,
            layout=layout,
            preprocess=facts.preprocess,
            images=verify.images,
        )
        for size, batch in graph.cases
    ]
    referee = reference_for(
        layout,
        facts.preprocess,
        loaded.referee(threads=request.threads, symbolic=request.dynamic.size),
    )
    if request.precision.by_agreement:
        cases = agreement_cases(
            cases,
            request.calibration,
            layout=layout,
            preprocess=facts.preprocess,
            images=verify.images,
        )
        warn_of_noise(cases, progress)
    expected = References(referee, plan.outputs, progress)
    outputs = tuple(expected(case) for case in cases)
    first_block = {
        place: _first_not_finite(referee, case, blocks)
        for place, (case, found) in enumerate(zip(cases, outputs, strict=True))
        if blocks and not all(np.isfinite(v).all() for named in found for v in named.values())
    }
    layers = blocks if verify.layers else ()
    activations = referee.outputs(cases[0].size, cases[0].inputs, layers) if layers else []
    return Answers(tuple(cases), outputs, activations, first_block)


def prove(
    request: ExportRequest,
    plan: Plan,
    answers: Answers,
    staged: Sequence[tuple[StagedArtifact, Manifest]],
    progress: Progress,
) -> list[tuple[list[ParityRow], list[LayerVerdict]]]:
    """Parity of every artifact in every engine that can run it."""
    verify, cases = request.verify, answers.cases
    floor = request.min_agreement if request.precision.by_agreement else None
    results: list[tuple[list[ParityRow], list[LayerVerdict]]] = []
    for artifact, manifest in staged:
        rows: list[ParityRow] = []
        verdicts: list[LayerVerdict] = []
        label = str(request.output_dir / artifact.path.name)
        question = Question(
            artifact=label,
            cases=cases,
            expected=answers,
            names=plan.outputs,
            tolerance=verify.tolerance,
            min_agreement=floor,
            blocks=_blocks(manifest, answers, decide=floor is None) if verify.layers else None,
        )
        for runtime in engines_for(artifact.kind, verify.runtimes):
            target = ParityTarget(artifact.path, runtime, verify.device, request.threads)
            found = in_engine(target, question)
            give_back_memory()
            named = name_first_block(found.rows, answers)
            rows += named
            _report_rows(progress, runtime, artifact, named)
            if found.layers is not None:
                verdicts.append(found.layers)
                report_layers(progress, found.layers, _engine_label(runtime, artifact))
        results.append((rows, verdicts))
    return results


def _blocks(manifest: Manifest, answers: Answers, *, decide: bool) -> Blocks:
    return Blocks(
        manifest.layer_values,
        lambda: answers.activations,
        kept_tokens=manifest.kept_tokens,
        decide=decide,
    )


def name_first_block(rows: Sequence[ParityRow], answers: Answers) -> tuple[ParityRow, ...]:
    """Where PyTorch's own output is not a number, say in which block that begins."""
    first = {
        (case.size.height, case.size.width, case.batch): answers.first_block[place]
        for place, case in enumerate(answers.cases)
        if place in answers.first_block
    }
    named = []
    for row in rows:
        key = (*(row.resolution or (0, 0)), row.batch)
        if row.problem == NOT_FINITE and key in first:
            row = row.model_copy(update={"problem": f"{row.problem}, {first[key]}"})
        named.append(row)
    return tuple(named)


def _first_not_finite(referee: Reference, case: ParityCase, blocks: Sequence[str]) -> str:
    for outputs in referee.outputs(case.size, case.inputs, blocks):
        bad = next((name for name in blocks if not np.isfinite(outputs[name]).all()), None)
        if bad is not None:
            return f"from {bad} on"
    return "behind the last block"


class PassChecker:
    """``--verify-passes``: parity in ONNX Runtime after each pass that changed the graph.

    Passes work on float32 and are exact, so that what the precision of the file allows is not
    theirs: the tolerance is that of float32.
    """

    def __init__(
        self,
        request: ExportRequest,
        loaded: LoadedModel,
        plan: Plan,
        graph: PlannedGraph,
        progress: Progress,
    ) -> None:
        self._request = request
        self._names = plan.outputs
        self._progress = progress
        self._tolerance = (
            request.verify.tolerance
            if request.precision is Precision.FP32
            else Tolerance(DEFAULT_RTOL[Precision.FP32])
        )
        size, batch = graph.cases[0]
        self._case = make_case(size, batch, layout=loaded.facts.input, seeds=1)
        referee = loaded.referee(threads=request.threads, symbolic=request.dynamic.size)
        self._expected = References(referee, plan.outputs)

    def __call__(self, name: str, model: ir.Model) -> None:
        """Check the graph as pass ``name`` left it.

        Raises:
            ParityError: an output left tolerance; the message names the pass.
        """
        if any(node.domain == ATTENTION_DOMAIN for node in model.graph):
            return
        with tempfile.TemporaryDirectory(prefix="vitpe-pass-") as folder:
            path = Path(folder) / f"after-{name}.onnx"
            write_onnx(model, path, {})
            rows = check(
                ParityTarget(path, "onnxruntime", threads=self._request.threads),
                [self._case],
                self._expected,
                self._names,
                self._tolerance,
                artifact=path.name,
            )
        worst = _worst(rows)
        good = all(r.passed for r in rows)
        self._progress.line(f"after {name}: max rel {worst}", good=good)
        bad = next((r for r in rows if not r.passed), None)
        if bad is not None:
            required = any(kind.name == name and kind.required for kind in PASSES)
            raise ParityError(
                f"pass {name!r} changed output {bad.output!r}: max rel {worst} "
                f"(limit {bad.limit:.0e})",
                hint="Report it."
                if required
                else f"Export with --skip-pass {name}, and report it.",
            )


def _worst(rows: Sequence[ParityRow]) -> str:
    values = [r.max_rel for r in rows]
    if any(v is None for v in values):
        return next((r.problem or "not comparable" for r in rows if r.max_rel is None), "")
    return f"{max(v for v in values if v is not None):.1e}"


def _engine_label(runtime: str, artifact: StagedArtifact) -> str:
    """The engine, and the file type where it is not ONNX."""
    return runtime if artifact.kind is Format.ONNX else f"{runtime} {artifact.path.suffix[1:]}"


def _report_rows(
    progress: Progress, runtime: str, artifact: StagedArtifact, rows: Sequence[ParityRow]
) -> None:
    """One line per artifact and engine."""
    agreed = [r for r in rows if r.top1_agreement is not None]
    top1 = ""
    if agreed:
        total = sum(r.inputs for r in agreed)
        right = sum(round((r.top1_agreement or 0) * r.inputs) for r in agreed)
        top1 = f"  top-1 {right}/{total}"
    sizes = len({r.resolution for r in rows})
    over = f"  {sizes} sizes" if sizes > 1 else ""
    good = all(r.passed for r in rows)
    limit = rows[0].limit if rows else 0.0
    if rows and rows[0].criterion != "max_rel":
        worst = min(rows, key=lambda r: (r.passed, r.cosine or 0.0))
        progress.line(
            worst.problem or f"{row_words(worst)}{over}",
            label=_engine_label(runtime, artifact),
            good=good,
        )
        return
    label = _engine_label(runtime, artifact)
    found = f"max rel {_worst(rows)} (limit {limit:.0e}){top1}{over}"
    progress.line(found, label=label, good=good)
    if not good:
        for row in (r for r in rows if not r.passed):
            size = "x".join(map(str, row.resolution or ()))
            needed = (
                "" if row.limit_needed is None else f", would pass at --rtol {row.limit_needed:.1e}"
            )
            what = row.problem or f"max rel {row.max_rel:.1e}"
            progress.line(f"{row.output} at {size} b{row.batch}: {what}{needed}", label=label)


def report_layers(progress: Progress, verdict: LayerVerdict, label: str) -> None:
    """One line on per-layer parity, and one for each block that could not be compared."""
    progress.line(f"layers: {layer_words(verdict)}", label=label, good=not verdict.fails)
    for reason in verdict.not_comparable:
        progress.line(f"layers not compared: {reason}", label=label)
