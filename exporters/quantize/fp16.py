"""Float16 weights and compute where they are safe, float32 where they are not.

Only operators on a short list compute in float16: matrix products, convolutions, sums and moves of
data. LayerNormalization, softmax (the fused attention node has one inside) and everything that is
not listed stay float32. So does every node that touched a number above :data:`LARGEST` on
calibration data: float16 ends at 65504 without a word, and has steps of 0.5 from 512 on, which a
residual stream with a few huge channels does not survive either.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from exporters.passes.base import new_initializer, remove_dead

LARGEST = 512.0
"""Nodes that read or give larger numbers compute in float32."""

_COMPUTE = frozenset({"MatMul", "Gemm", "Conv", "Add", "Sub", "Mul", "Gelu", "Relu"})
_MOVES = frozenset(
    {"Reshape", "Transpose", "Split", "Concat", "Slice", "Squeeze", "Unsqueeze", "Expand", "Gather",
     "Flatten", "Identity"}
)  # fmt: skip


def float_values(model: ir.Model) -> tuple[str, ...]:
    """Names of the values whose range decides: those that a listed operator reads or gives."""
    inner = [
        str(value.name)
        for node in model.graph
        if node.domain == "" and node.op_type in _COMPUTE | _MOVES
        for value in (*node.inputs, *node.outputs)
        if value is not None and value.producer() is not None and value.const_value is None
    ]
    return tuple(dict.fromkeys(inner))


def convert(model: ir.Model, ranges: Mapping[str, tuple[float, float]]) -> int:
    """Make nodes compute in float16, in place. Gives how many; inputs and outputs stay float32.

    Args:
        model: a finished float32 graph.
        ranges: smallest and largest number of float values; nodes with a value that is missing
            (an integer, or one that calibration could not see) stay as they are.
    """
    graph = model.graph
    chosen = {id(node) for node in graph if _is_safe(node, ranges)}
    halves: dict[int, ir.Value] = {}
    singles: dict[int, ir.Value] = {}
    half_outputs: dict[int, ir.Value] = {}
    changed = 0
    for node in list(graph):
        half = id(node) in chosen
        made: list[ir.Node] = []
        for place, value in enumerate(node.inputs):
            if value is None:
                continue
            if half and _is_float(value, ranges):
                node.replace_input_with(place, _halved(graph, value, halves, half_outputs, made))
            elif not half and id(value) in half_outputs:
                node.replace_input_with(place, _single(value, singles, made))
        graph.insert_before(node, made)
        if half:
            changed += 1
            for value in node.outputs:
                half_outputs[id(value)] = value
                value.type = ir.TensorType(ir.DataType.FLOAT16)
    _keep_outputs(graph, half_outputs)
    remove_dead(graph)
    return changed


def _is_float(value: ir.Value, ranges: Mapping[str, tuple[float, float]]) -> bool:
    if value.const_value is not None:
        return value.const_value.dtype == ir.DataType.FLOAT
    return value.is_graph_input() or value.name in ranges


def _is_safe(node: ir.Node, ranges: Mapping[str, tuple[float, float]]) -> bool:
    if node.domain != "" or node.op_type not in _COMPUTE | _MOVES:
        return False
    if not all(value.name in ranges for value in node.outputs):
        return False
    if node.op_type in _MOVES and all(
        v is None or v.producer() is None or v.name not in ranges for v in node.inputs
    ):
        return False
    for value in (*node.inputs, *node.outputs):
        if value is None:
            continue
        if value.const_value is not None:
            array = value.const_value.numpy()
            if array.dtype == np.float32 and array.size and np.abs(array).max() > LARGEST:
                return False
        elif value.name in ranges:
            low, high = ranges[str(value.name)]
            if not max(abs(low), abs(high)) <= LARGEST:
                return False
    return True


def _halved(
    graph: ir.Graph,
    value: ir.Value,
    halves: dict[int, ir.Value],
    half_outputs: Mapping[int, ir.Value],
    made: list[ir.Node],
) -> ir.Value:
    """``value`` in float16: itself, a smaller initializer, or a Cast."""
    if id(value) in half_outputs:
        return value
    if id(value) not in halves:
        if value.const_value is not None:
            array = value.const_value.numpy().astype(np.float16)
            halves[id(value)] = new_initializer(graph, f"{value.name}_f16", array)
        else:
            halves[id(value)] = _cast(value, ir.DataType.FLOAT16, "f16", made)
    return halves[id(value)]


def _single(value: ir.Value, singles: dict[int, ir.Value], made: list[ir.Node]) -> ir.Value:
    if id(value) not in singles:
        singles[id(value)] = _cast(value, ir.DataType.FLOAT, "f32", made)
    return singles[id(value)]


def _cast(value: ir.Value, to: ir.DataType, suffix: str, made: list[ir.Node]) -> ir.Value:
    node = ir.node("Cast", [value], attributes={"to": int(to)}, name=f"{value.name}_to_{suffix}")
    node.outputs[0].name = f"{value.name}_{suffix}"
    made.append(node)
    return node.outputs[0]


def _keep_outputs(graph: ir.Graph, half_outputs: Mapping[int, ir.Value]) -> None:
    """Outputs of the graph stay float32 under their own names."""
    for place, value in enumerate(list(graph.outputs)):
        if id(value) not in half_outputs:
            continue
        name = value.name
        value.name = f"{name}_f16"
        node = ir.node(
            "Cast", [value], attributes={"to": int(ir.DataType.FLOAT)}, name=f"{name}_to_f32"
        )
        out = node.outputs[0]
        out.name, out.shape = name, value.shape
        out.type = ir.TensorType(ir.DataType.FLOAT)
        graph.append(node)
        graph.outputs[place] = out
