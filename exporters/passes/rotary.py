"""Rotate queries and keys with one ``com.microsoft.RotaryEmbedding`` each.

Libraries spell the rotation of a head with Slice, Neg, Concat, Mul and Add, and take the prefix
tokens off before it and put them back after it. The pass reads none of these spellings: whatever
lies between the heads x and their rotation R and only moves, adds, or multiplies by constants is
run on three probes.

* x with ones in the first channel of every pair reads cosines and sines off, for either pairing
  (case 1: channels i and i + d/2; case 2: channels 2i and 2i + 1).
* Random x must then come out as those tables turn it, to rounding. A linear map that agrees on
  random numbers is the same map.

Rows of prefix tokens come out as cosine 1 and sine 0 by themselves. The node reads [B, N, D], so
that heads need not be moved forward and back, and all layers of equal angles share one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir

from exporters.passes.attention import HeadsFlattener
from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    constant,
    insert_before,
    new_initializer,
    remove_dead,
    static_shape,
)
from vitpe_deploy.request import Target

_CONTRIB = "com.microsoft"
_LINEAR = frozenset(
    {"Slice", "Split", "Neg", "Concat", "Mul", "Add", "Sub", "Unsqueeze", "Squeeze", "Reshape"}
)
_MOST_NODES = 40
_TOLERANCE = 1e-5


class FuseRotary(GraphPass):
    """One node per rotated operand, one table for all layers."""

    name: ClassVar[str] = "rotary"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Replace the rotation before every fused attention node."""
        outcome = PassOutcome()
        if context.target is Target.PORTABLE:
            return outcome
        graph = model.graph
        order = {id(node): k for k, node in enumerate(graph)}
        tables: dict[tuple[object, ...], tuple[ir.Value, ...]] = {}
        flattener = HeadsFlattener(graph)
        for node in list(graph):
            if node.op_type != "MultiHeadAttention":
                continue
            for place in (0, 1):
                rotated = _heads_before(node.inputs[place])
                found = None if rotated is None else _between(rotated, order)
                if rotated is None or found is None:
                    continue
                x, inner = found
                shape = static_shape(rotated)
                if shape is None:
                    outcome.refuse(node, f"sizes are symbolic: {rotated.shape}")
                    continue
                turn = _turn_of(x, rotated, inner, shape, model.opset_imports[""])
                if isinstance(turn, str):
                    outcome.refuse(node, turn)
                    continue
                cos, sin, interleaved = turn
                key = (shape[0], cos.shape, cos.tobytes(), sin.tobytes())
                if key not in tables:
                    rows = np.tile(np.arange(shape[2], dtype=np.int64), (shape[0], 1))
                    tables[key] = tuple(
                        new_initializer(graph, f"rotary_{label}", array)
                        for label, array in (("positions", rows), ("cos", cos), ("sin", sin))
                    )
                flat = flattener.flatten_heads(node, x, shape[1])
                fused = ir.node(
                    "RotaryEmbedding",
                    [flat, *tables[key]],
                    {"num_heads": shape[1], "interleaved": int(interleaved)},
                    domain=_CONTRIB,
                    name=f"{node.name}_rotary_{'qk'[place]}",
                )
                insert_before(node, [fused])
                out = fused.outputs[0]
                out.type, out.shape = x.type, ir.Shape([shape[0], shape[2], shape[1] * shape[3]])
                node.replace_input_with(place, out)
                outcome.changed += 1
        remove_dead(graph)
        return outcome


def _heads_before(flat: ir.Value | None) -> ir.Value | None:
    """[B, M, N, d] whose heads are moved behind the tokens and joined, as attention reads them."""
    joined = None if flat is None else flat.producer()
    if joined is None or joined.op_type != "Reshape" or joined.inputs[0] is None:
        return None
    turned = joined.inputs[0].producer()
    return turned.inputs[0] if turned is not None and turned.op_type == "Transpose" else None


def _between(rotated: ir.Value, order: dict[int, int]) -> tuple[ir.Value, list[ir.Node]] | None:
    """The one value of the same shape that all of ``rotated`` is made of, and what is between."""
    frontier, inner = {id(rotated): rotated}, list[ir.Node]()
    while len(inner) < _MOST_NODES:
        producers = [p for v in frontier.values() if (p := v.producer()) is not None]
        if not producers:
            return None
        last = max(producers, key=lambda p: order.get(id(p), -1))
        if last.op_type not in _LINEAR or last.domain != "":
            return None
        inner.append(last)
        for value in last.outputs:
            frontier.pop(id(value), None)
        for read in last.inputs:
            if read is not None and constant(read) is None:
                frontier[id(read)] = read
        if len(frontier) != 1 or not any(n.op_type == "Mul" for n in inner):
            continue
        (x,) = frontier.values()
        if x.shape is not None and x.shape == rotated.shape:
            return x, inner[::-1]
    return None


def _turn_of(
    x: ir.Value, rotated: ir.Value, inner: Sequence[ir.Node], shape: tuple[int, ...], opset: int
) -> tuple[np.ndarray, np.ndarray, bool] | str:
    """Cosines and sines [N, d/2] and whether neighbours are pairs; or why it is no rotation."""
    if len(shape) != 4 or shape[3] % 2:
        return f"heads of shape {shape} have no channel pairs"
    run = _runner(x, rotated, inner, shape, opset)
    half = shape[3] // 2
    random = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    wanted = run(random)
    for interleaved in (False, True):
        first = np.arange(half) * 2 if interleaved else np.arange(half)
        second = first + 1 if interleaved else first + half
        probe = np.zeros(shape, dtype=np.float32)
        probe[..., first] = 1
        answer = run(probe)
        cos, sin = answer[0, 0][:, first], answer[0, 0][:, second]
        turned = np.empty_like(random)
        turned[..., first] = random[..., first] * cos - random[..., second] * sin
        turned[..., second] = random[..., second] * cos + random[..., first] * sin
        if sin.any() and np.abs(turned - wanted).max() <= _TOLERANCE:
            return np.ascontiguousarray(cos), np.ascontiguousarray(sin), interleaved
    return "what is done to the heads is no rotation with one table for all heads"


class _Probe:
    """Runs what is between x and its rotation."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._session = onnx.reference.ReferenceEvaluator(model)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        result: np.ndarray = self._session.run(None, {"x": x})[0]
        return result


def _runner(
    x: ir.Value, rotated: ir.Value, inner: Sequence[ir.Node], shape: tuple[int, ...], opset: int
) -> _Probe:
    names: dict[int, str] = {id(x): "x"}
    tensors = []

    def name_of(value: ir.Value | None) -> str:
        if value is None:
            return ""
        if id(value) not in names:
            names[id(value)] = f"v{len(names)}"
            array = constant(value)
            if array is not None:
                tensors.append(onnx.numpy_helper.from_array(array, names[id(value)]))
        return names[id(value)]

    nodes = []
    for node in inner:
        proto = onnx.helper.make_node(
            node.op_type, [name_of(v) for v in node.inputs], [name_of(v) for v in node.outputs]
        )
        proto.attribute.extend(ir.to_proto(a) for a in node.attributes.values())
        nodes.append(proto)
    graph = onnx.helper.make_graph(
        nodes,
        "rotation",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info(name_of(rotated), onnx.TensorProto.FLOAT, None)],
        tensors,
    )
    return _Probe(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    )
