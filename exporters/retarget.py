"""A file in place of a trace: the graph of an ONNX file, changed to what was asked for."""

from __future__ import annotations

import dataclasses

import onnx
import onnx_ir as ir

from exporters.plan import PlannedGraph
from exporters.respell.plain import spell_out
from exporters.simplify import attach_weights, detach_weights
from exporters.trace import TracedGraph
from vitpe_deploy.errors import ExportFailedError
from vitpe_deploy.request import Dynamic, ExportRequest, Resolution, Target
from vitpe_deploy.retarget.dynamic import with_symbols
from vitpe_deploy.retarget.read import PictureGraph
from vitpe_deploy.retarget.static import at_size, copied
from vitpe_deploy.sources.onnx_graph import LoadedGraph


def retarget(loaded: LoadedGraph, graph: PlannedGraph, request: ExportRequest) -> TracedGraph:
    """The graph of a file at a size, or with symbolic dimensions, at the opset asked for.

    Raises:
        UnsupportedError: the graph cannot change its size; the node is named.
        ExportFailedError: onnx cannot convert the graph to the opset.
    """
    model = _sized(loaded, graph, request)
    if loaded.graph.own and request.target is Target.PORTABLE:
        spell_out(model)
    return TracedGraph(at_opset(model, request.opset), ())


def _sized(loaded: LoadedGraph, graph: PlannedGraph, request: ExportRequest) -> ir.Model:
    source = loaded.graph
    if graph.size is None:
        return with_symbols(source, request.dynamic, loaded.rule, batch=request.batch)
    if loaded.analysis is None and not request.dynamic.batch:
        return copied(source).model
    if not request.dynamic.batch:
        return at_size(source, graph.size, request.batch, loaded.rule)
    model = at_size(source, graph.size, source.batch or 1, loaded.rule)
    fixed = _as_graph(source, model, graph.size)
    return with_symbols(fixed, Dynamic.BATCH, loaded.rule)


def _as_graph(source: PictureGraph, model: ir.Model, size: Resolution) -> PictureGraph:
    (value,) = (v for v in model.graph.inputs if v.name == source.source.name)
    return dataclasses.replace(
        source, model=model, source=value, declared=size, batch=source.batch or 1
    )


def at_opset(model: ir.Model, opset: int) -> ir.Model:
    """The same graph at another version of the default operators."""
    if model.opset_imports.get("") == opset:
        return model
    weights = detach_weights(model.graph)
    try:
        proto = ir.to_proto(model)
    finally:
        attach_weights(model.graph, weights)
    del proto.graph.value_info[:]
    try:
        converted = onnx.version_converter.convert_version(proto, opset)
    except Exception as problem:  # the converter raises whatever its C++ code threw
        said = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:160]
        raise ExportFailedError(
            f"onnx cannot convert opset {model.opset_imports.get('')} to {opset}: {said}",
            hint=f"Use --opset {model.opset_imports.get('')}, the file's own.",
        ) from problem
    del converted.graph.value_info[:]
    result = ir.from_proto(converted)
    attach_weights(result.graph, weights)
    for old, new in zip(model.graph.outputs, result.graph.outputs, strict=True):
        new.shape, new.type = old.shape, old.type
    return result
