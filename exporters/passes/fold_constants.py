"""Compute now what no input can change: resolved positions above all.

torch's own folder leaves large tables alone, so a baked file would still resample its positions
at every run. This pass folds every chain of initializers, in the reference evaluator of onnx,
unless the result is larger than what it is made of and saves nothing: a broadcast alone (Expand,
Tile) is kept.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    constant,
    new_initializer,
    remove_dead,
    replace_value,
)

_KEPT = frozenset({"Expand", "Tile", "ConstantOfShape", "RandomNormal", "RandomUniform"})
_STANDARD = frozenset({"", "ai.onnx"})
_GROWTH_BYTES = 64 << 20


class FoldConstants(GraphPass):
    """Replace nodes whose inputs are all constant by their results."""

    name: ClassVar[str] = "constants"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """One walk in execution order folds whole chains."""
        outcome = PassOutcome()
        graph = model.graph
        opset = model.opset_imports.get("", context.opset)
        for node in list(graph):
            if node.domain not in _STANDARD or node.op_type == "Constant":
                continue
            arrays = _constant_inputs(node)
            if arrays is None:
                continue
            if any(value.is_graph_output() for value in node.outputs):
                outcome.refuse(node, "an output of the graph stays a node")
                continue
            if node.op_type in _KEPT:
                outcome.refuse(node, f"{node.op_type} of a constant only makes the file larger")
                continue
            results = _evaluate(node, arrays, opset)
            if results is None:
                outcome.refuse(node, f"{node.op_type} has no reference implementation")
                continue
            grown = sum(r.nbytes for r in results) - sum(a.nbytes for a in arrays if a is not None)
            if grown > _GROWTH_BYTES:
                outcome.refuse(node, f"the result is {grown >> 20} MB larger than its inputs")
                continue
            for value, result in zip(node.outputs, results, strict=True):
                replace_value(value, new_initializer(graph, value.name or node.op_type, result))
            graph.remove(node, safe=True)
            outcome.changed += 1
        remove_dead(graph)
        return outcome


def _constant_inputs(node: ir.Node) -> list[np.ndarray | None] | None:
    """All inputs as arrays, None for absent ones; None when any is computed or there is none."""
    if not any(v is not None for v in node.inputs):
        return None
    if any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for a in node.attributes.values()
    ):
        return None
    arrays: list[np.ndarray | None] = []
    for value in node.inputs:
        if value is None:
            arrays.append(None)
            continue
        array = constant(value)
        if array is None:
            return None
        arrays.append(array)
    return arrays


def _evaluate(
    node: ir.Node, arrays: list[np.ndarray | None], opset: int
) -> list[np.ndarray] | None:
    """Results of one node, or None when onnx's evaluator cannot run it."""
    direct = _direct(node, arrays)
    if direct is not None:
        return [direct]
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(arrays)]
    outputs = [f"o{k}" for k in range(len(node.outputs))]
    proto = onnx.helper.make_node(node.op_type, names, outputs)
    proto.attribute.extend(ir.to_proto(a) for a in node.attributes.values())
    graph = onnx.helper.make_graph(
        [proto],
        "fold",
        [_info(n, a) for n, a in zip(names, arrays, strict=True) if a is not None],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        session = onnx.reference.ReferenceEvaluator(model)
        feeds = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
        results = session.run(None, feeds)
    except Exception:  # whatever the evaluator lacks stays in the graph
        return None
    return [np.ascontiguousarray(r) for r in results]


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)


def _direct(node: ir.Node, arrays: list[np.ndarray | None]) -> np.ndarray | None:
    """Two operators on large weights that are not worth a model of their own."""
    first = arrays[0]
    if node.op_type == "Transpose" and first is not None:
        perm = node.attributes.get("perm")
        return np.ascontiguousarray(np.transpose(first, perm.as_ints() if perm else None))
    if node.op_type == "Identity" and first is not None:
        return first
    return None
