"""Project query, key and value apart, and a gate apart from what it gates, not packed and split.

One product with a packed weight [D, 3D] costs the same arithmetic as three with its parts, but the
Split after it copies all of its result. The pass gives each part that is read its own product; the
weight is cut, not copied. The two halves of a gated MLP (SwiGLU) are the same case.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    constant,
    insert_before,
    linear_of,
    new_initializer,
    rank,
    remove_dead,
    replace_value,
)


class SeparateProjections(GraphPass):
    """A product per part in place of a packed product and a Split."""

    name: ClassVar[str] = "separate-projections"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Cut every packed projection whose parts go into attention."""
        outcome = PassOutcome()
        graph = model.graph
        done: dict[tuple[int, int], ir.Value] = {}
        for split in list(graph):
            if not _splits_channels(split):
                continue
            packed = split.inputs[0]
            linear = None if packed is None else linear_of(packed)
            if packed is None or linear is None:
                if _is_for_attention(split):
                    outcome.refuse(split, "what is split is no product with a constant weight")
                continue
            other = [n for n, _ in packed.uses() if n.op_type != "Split"]
            if other or packed.is_graph_output() or len(linear.weight_value.uses()) != 1:
                reader = other[0].op_type if other else "another product"
                outcome.refuse(split, f"{reader} needs the packed projection or its weight whole")
                continue
            total = linear.weight.shape[1]
            if total % len(split.outputs):
                outcome.refuse(split, f"{total} channels are not {len(split.outputs)} equal parts")
                continue
            width = total // len(split.outputs)
            for k, part in enumerate(split.outputs):
                if not part.uses():
                    continue
                if (id(packed), k) not in done:
                    done[id(packed), k] = _part(graph, packed, k, width, part)
                replace_value(part, done[id(packed), k])
            outcome.changed += 1
        remove_dead(graph)
        return outcome


def _splits_channels(node: ir.Node) -> bool:
    """An even Split of the channels of [.., C]."""
    dims = rank(node.inputs[0]) if node.op_type == "Split" and node.domain == "" else None
    if dims is None or node.attributes.get_int("axis", 0) not in (dims - 1, -1):
        return False
    sizes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return sizes is None or len(set(sizes.tolist())) == 1


def _is_for_attention(node: ir.Node) -> bool:
    """Whether attention reads one of three parts of [B, N, 3D]."""
    if len(node.outputs) != 3 or rank(node.inputs[0]) != 3:
        return False
    readers = {name for part in node.outputs for name in _readers(part)}
    return bool(readers & {"MultiHeadAttention", "RotaryEmbedding"})


def _readers(part: ir.Value) -> set[str]:
    """Operators that read a value, or read it once its heads are counted as tokens."""
    nodes = [reader for reader, _ in part.uses()]
    behind = [r for n in nodes if n.op_type == "Reshape" for r, _ in n.outputs[0].uses()]
    return {n.op_type for n in (*nodes, *behind)}


def _part(graph: ir.Graph, packed: ir.Value, k: int, width: int, like: ir.Value) -> ir.Value:
    """Part ``k`` of a packed projection as a product of its own, beside the packed one."""
    linear = linear_of(packed)
    if linear is None:
        raise ValueError(f"{packed.name} is no linear layer")
    label = f"{linear.weight_value.name}.{k}"
    columns = slice(k * width, (k + 1) * width)
    weight = new_initializer(graph, label, np.ascontiguousarray(linear.weight[:, columns]))
    product = ir.node("MatMul", [linear.source, weight])
    nodes = [product]
    if linear.bias is not None:
        bias = new_initializer(graph, f"{label}.bias", linear.bias[columns].copy())
        nodes.append(ir.node("Add", [product.outputs[0], bias]))
    insert_before(linear.last, nodes)
    shape = None if packed.shape is None else ir.Shape([*packed.shape[:-1], width])
    for node in nodes:
        node.outputs[0].type, node.outputs[0].shape = packed.type or like.type, shape
    return nodes[-1].outputs[0]
