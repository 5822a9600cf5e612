"""A graph changed to one size: constants in place of everything that follows the size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from vitpe_deploy.encodings.resample import ResampleRule, resample_grid
from vitpe_deploy.errors import InternalError
from vitpe_deploy.request import Resolution
from vitpe_deploy.retarget.analysis import Analysis, analyse
from vitpe_deploy.retarget.constants import constant_array
from vitpe_deploy.retarget.find_positions import FoundPosition
from vitpe_deploy.retarget.info import Blank, Pooled
from vitpe_deploy.retarget.nodes import Array, Nodes
from vitpe_deploy.retarget.read import PictureGraph
from vitpe_deploy.retarget.tables import Resample, fitted


def copied(graph: PictureGraph) -> PictureGraph:
    """The same graph, to be changed."""
    model = graph.model.clone()
    (source,) = (v for v in model.graph.inputs if v.name == graph.source.name)
    return replace(graph, model=model, source=source)


def at_size(
    graph: PictureGraph,
    size: Resolution,
    batch: int,
    rule: ResampleRule,
    *,
    resample: Resample = resample_grid,
) -> ir.Model:
    """A copy of a graph at one size and batch.

    Args:
        graph: the file.
        size: whole patches.
        batch: batch of the input.
        rule: of tables that the graph does not resize by itself.
        resample: how tables are resampled; another one serves as a referee.

    Raises:
        UnsupportedError: the graph cannot change its size; the node is named.
    """
    analysis = analyse(
        copied(graph),
        batch=batch,
        any_batch=batch != (graph.batch or batch),
        any_size=size != graph.declared,
        wanted=[(size, batch)],
    )
    at = analysis.probes.index_of_wanted(0)
    model, found = analysis.graph.model, analysis.found
    nodes = Nodes(model.graph, "retarget")
    for rewrite in found.rewrites:
        rewrite.node.replace_input_with(rewrite.place, nodes.constant(rewrite.numbers[at]))
    grid = (size.height // graph.patch[0], size.width // graph.patch[1])
    for position in found.positions:
        array = array_of(position.value, analysis)
        new = fitted(position, array, grid, rule, resample)
        position.node.replace_input_with(position.place, nodes.constant(new))
    for spread in found.spread:
        value = spread.node.inputs[spread.place]
        array = np.repeat(array_of(value, analysis), batch, axis=0)
        spread.node.replace_input_with(spread.place, nodes.constant(array))
    shrink_blanks(found.blank, nodes, analysis)
    widen_pools(found.pooled)
    settle(analysis, nodes, at)
    declare(analysis, [batch, graph.channels, size.height, size.width], at)
    return model


def array_of(value: ir.Value | None, analysis: Analysis) -> Array:
    """The numbers of a constant that has to change."""
    array = constant_array(value, analysis.graph.opset)
    if array is None:
        name = "?" if value is None else value.name
        raise InternalError(f"the constant {name!r} cannot be computed")
    return array


def shrink_blanks(blanks: Sequence[Blank], nodes: Nodes, analysis: Analysis) -> None:
    """One number in place of many equal ones; where zeros are added, nothing."""
    for blank in blanks:
        node = blank.node
        array = array_of(node.inputs[blank.place], analysis)[..., :1, :1]
        other, result = node.inputs[1 - blank.place], node.outputs[0]
        if other is not None and not array.any() and not result.is_graph_output():
            ir.convenience.replace_all_uses_with(result, other)
            analysis.graph.model.graph.remove(node, safe=True)
        else:
            node.replace_input_with(blank.place, nodes.constant(array))


def widen_pools(pooled: Sequence[Pooled]) -> None:
    """Poolings over the whole map of one size become poolings over any whole map."""
    for pool in pooled:
        node = pool.node
        node.op_type = f"Global{node.op_type}"
        for name in list(node.attributes):
            del node.attributes[name]


def settle(analysis: Analysis, nodes: Nodes, at: int | None) -> None:
    """Sizes that are known, at one probe or for all sizes (``None``), become constants."""
    for node in list(analysis.graph.model.graph):
        if node.op_type == "Constant" or len(node.outputs) != 1:
            continue
        value = node.outputs[0]
        info = analysis.found.values.get(value)
        if info is None or info.data is None or value.is_graph_output() or not value.uses():
            continue
        if at is None and not info.fixed_data:
            continue
        constant = nodes.constant(np.asarray(info.data[at or 0]))
        ir.convenience.replace_all_uses_with(value, constant)


def declare(analysis: Analysis, dims: Sequence[int | str], at: int | None) -> None:
    """Write the shapes of input and outputs; inner ones are no longer true and go."""
    model, probes = analysis.graph.model, analysis.probes
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    analysis.graph.source.shape = ir.Shape(dims)
    for output in model.graph.outputs:
        info = analysis.found.values.get(output)
        if info is None or info.dims is None:
            continue
        shape: list[int | str] = []
        for k, dim in enumerate(info.dims):
            if at is not None:
                shape.append(int(dim[at]))
                continue
            found = probes.expression(dim)
            if found is not None and found.fixed:
                shape.append(int(dim[0]))
            elif found is not None and str(found) == "batch":
                shape.append(str(dims[0]))
            else:
                shape.append(f"{output.name}_{k}")
        output.shape = ir.Shape(shape)


def describe(position: FoundPosition) -> str:
    """What a set of positions is, as the report calls it."""
    return {
        "table": "absolute table",
        "map": "absolute map",
        "bias": "relative bias, baked",
        "resized": "absolute table with its own Resize",
    }[position.kind]
