"""Pair channels i and i + d/2 where a model pairs 2i and 2i + 1.

Attention reads queries and keys through their dot products alone, so the channels of a head may
stand in any order that both share. Where both come out of linear layers and are turned right
after, the columns of those layers are put into the order in which pairs are the two halves of a
head: engines turn halves with whole vector registers, and neighbours only after moving them apart.

For d = 4 the columns 0, 1, 2, 3 with pairs (0, 1), (2, 3) become 0, 2, 1, 3 with pairs (0, 2),
(1, 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    Linear,
    PassContext,
    PassOutcome,
    linear_of,
    new_initializer,
    remove_dead,
)


class HalfSplitRotary(GraphPass):
    """Rotations of neighbours become rotations of halves."""

    name: ClassVar[str] = "rotary-layout"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Reorder query and key weights before every attention node whose operands turn."""
        outcome = PassOutcome()
        for node in model.graph:
            if node.op_type != "MultiHeadAttention":
                continue
            turned = [_rotation(v) for v in node.inputs[:2]]
            if not any(r is not None and r.attributes.get_int("interleaved", 0) for r in turned):
                continue
            operands = [None if r is None else _operand(node, r) for r in turned]
            refused = next((o for o in operands if isinstance(o, str)), None)
            if None in turned or refused is not None:
                outcome.refuse(node, refused or "only one of query and key is turned here")
                continue
            for operand in operands:
                if isinstance(operand, _Operand):
                    _reorder(model.graph, operand)
            outcome.changed += 1
        remove_dead(model.graph)
        return outcome


@dataclass(frozen=True, slots=True)
class _Operand:
    """A query or key: the linear layer, the rotation after it, heads of ``head_dim`` channels."""

    linear: Linear
    rotation: ir.Node
    head_dim: int


def _rotation(value: ir.Value | None) -> ir.Node | None:
    """The rotation that makes an operand, through the Reshape of heads counted as tokens."""
    node = None if value is None else value.producer()
    if node is not None and node.op_type == "Reshape" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type == "RotaryEmbedding" else None


def _operand(attention: ir.Node, rotation: ir.Node) -> _Operand | str:
    """What is to be reordered, or why it cannot be."""
    if not rotation.attributes.get_int("interleaved", 0):
        return "query and key pair their channels differently"
    flat = rotation.inputs[0]
    apart = None if flat is None else flat.producer()
    if apart is not None and apart.op_type == "Reshape":
        flat = apart.inputs[0]
    linear = None if flat is None else linear_of(flat)
    if flat is None or linear is None:
        return "what is turned is not the result of a linear layer"
    if len(flat.uses()) != 1 or len(linear.weight_value.uses()) != 1:
        return f"{flat.name} or its weight is also read elsewhere"
    heads = attention.attributes.get_int("num_heads", 0)
    return _Operand(linear, rotation, linear.weight.shape[1] // heads)


def _reorder(graph: ir.Graph, operand: _Operand) -> None:
    """Even channels of every head first, then the odd ones."""
    linear = operand.linear
    pairs = np.arange(linear.weight.shape[1]).reshape(-1, operand.head_dim // 2, 2)
    order = pairs.swapaxes(1, 2).reshape(-1)
    name = f"{linear.weight_value.name}.halves"
    weight = new_initializer(graph, name, np.ascontiguousarray(linear.weight[:, order]))
    linear.product.replace_input_with(1, weight)
    if linear.bias is not None:
        bias = new_initializer(graph, f"{name}.bias", linear.bias[order].copy())
        linear.last.replace_input_with(linear.bias_place, bias)
    operand.rotation.attributes["interleaved"] = ir.AttrInt64("interleaved", 0)
