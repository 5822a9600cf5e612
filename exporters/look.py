"""What an export's passes would do to a model, without writing a file."""

from __future__ import annotations

from exporters.passes import run_passes
from exporters.passes.base import PassContext
from exporters.plan import make_plan
from exporters.trace import trace
from vitpe_deploy.progress import Progress, Silent
from vitpe_deploy.request import ExportRequest
from vitpe_deploy.results import PassRecord, Refusal
from vitpe_deploy.sources.base import Source

_STEPS = 3


def look_at_passes(
    request: ExportRequest, source: Source, *, progress: Progress | None = None
) -> tuple[PassRecord, ...]:
    """Load, trace and optimise as an export would, and report the passes.

    Raises:
        VitpeError: whatever keeps the model from being exported at that size.
    """
    said = progress or Silent()
    said.begin(1, _STEPS, "Load model")
    loaded = source.load()
    plan = make_plan(request, loaded.facts)
    graph = plan.graphs[0]
    said.end(loaded.weights)
    said.begin(2, _STEPS, "Trace")
    traced = trace(
        loaded,
        loaded.explicit(graph.size),
        size=graph.trace_size,
        batch=graph.trace_batch,
        dynamic=request.dynamic,
        outputs=plan.outputs,
        override=request.model.resample,
        opset=request.opset,
    )
    said.end(f"{len(traced.model.graph)} nodes")
    said.begin(3, _STEPS, "Optimise")
    symbolic = request.dynamic is not request.dynamic.NONE
    runs = run_passes(traced.model, PassContext(request.target, request.opset, symbolic))
    said.end(f"{len(traced.model.graph)} nodes")
    return tuple(
        PassRecord(
            artifact=graph.stem,
            name=run.name,
            changed=run.outcome.changed,
            refused=tuple(Refusal(node=r.node, reason=r.reason) for r in run.outcome.refused),
        )
        for run in runs
    )
