"""Queries and keys projected in halves that turn where they are, for OpenVINO.

OpenVINO spells ``RotaryEmbedding`` out: heads move in front of the tokens, are split into halves,
which are multiplied, added and joined, three copies in all. But the halves can come apart as they
are made, by a product each with half of the weight's columns:

    a = x W_a,  b = x W_b,  [a cos - b sin, b cos + a sin]

over [B, N, M, d/2], without a copy before the join. The weight is cut, not copied. Left alone:
neighbouring channels as pairs (``rotary-layout`` makes halves of them), heads with angles of their
own, and heads that no linear layer makes.

Letters used in shapes: B batch, N tokens, M heads, d head size.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    Linear,
    PassContext,
    PassOutcome,
    constant,
    insert_before,
    linear_of,
    new_initializer,
    remove_dead,
    replace_value,
    static_dim,
)
from vitpe_deploy.request import Target


class RotaryHalves(GraphPass):
    """Two products and their rotation in place of a product and ``RotaryEmbedding``."""

    name: ClassVar[str] = "rotary-halves"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Rewrite every rotation of what a linear layer makes."""
        outcome = PassOutcome()
        if context.target is not Target.OPENVINO:
            return outcome
        graph = model.graph
        writer = _Writer(graph)
        for node in list(graph):
            if node.op_type != "RotaryEmbedding" or node.domain != "com.microsoft":
                continue
            found = _linear_under(node)
            if isinstance(found, str):
                outcome.refuse(node, found)
            else:
                writer.rewrite(node, found)
                outcome.changed += 1
        remove_dead(graph)
        return outcome


def _linear_under(node: ir.Node) -> Linear | str:
    """The layer whose result is turned, or why it stays."""
    flat = node.inputs[0]
    if node.attributes.get_int("interleaved", 0):
        return "pairs are neighbouring channels"
    heads = node.attributes.get_int("num_heads", 0)
    linear = None if flat is None else linear_of(flat)
    if flat is None or linear is None:
        return "what is turned is not made by a linear layer"
    if len(flat.uses()) != 1 or flat.is_graph_output():
        return f"{flat.name} is also read by others"
    if len(linear.weight_value.uses()) != 1:
        return f"{linear.weight_value.name} is also read by others"
    width, half = linear.weight.shape[1], static_dim(node.inputs[2], 1)
    if heads <= 0 or node.attributes.get_int("rotary_embedding_dim", 0) != 0:
        return "not all channels of its heads turn"
    if width % (2 * heads) or half not in (None, width // heads // 2):
        return "its table is not that of its heads"
    return linear


class _Writer:
    """Writes halves into one graph; tables of equal rows are shared."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._tables: dict[tuple[int, int], ir.Value] = {}
        self._shapes: dict[tuple[int, ...], ir.Value] = {}

    def rewrite(self, node: ir.Node, linear: Linear) -> None:
        """[B, N, D] -> [B, N, M, d/2] twice -> [B, N, D]."""
        old = node.outputs[0]
        heads = node.attributes["num_heads"].as_int()
        width = linear.weight.shape[1]
        half = width // heads // 2
        cos, sin = (self._table(node, node.inputs[k]) for k in (2, 3))
        a, b = (self._half(node, linear, k, heads, half) for k in (0, 1))
        first = self._make(node, "Sub", *self._times(node, (a, cos), (b, sin)))
        second = self._make(node, "Add", *self._times(node, (b, cos), (a, sin)))
        whole = self._make(node, "Concat", first, second, axis=-1)
        joined = self._make(node, "Reshape", whole, self._ints(0, 0, width))
        joined.shape = old.shape
        replace_value(old, joined)
        self._graph.remove(node, safe=True)

    def _half(self, anchor: ir.Node, linear: Linear, k: int, heads: int, half: int) -> ir.Value:
        """One half of every head: [B, N, M, d/2]."""
        inner = linear.weight.shape[0]
        label = f"{linear.weight_value.name}.{('first', 'second')[k]}"
        weight = linear.weight.reshape(inner, heads, 2, half)[:, :, k].reshape(inner, -1)
        array = np.ascontiguousarray(weight)
        made = self._make(anchor, "MatMul", linear.source, self._new(label, array))
        if linear.bias is not None:
            bias = linear.bias.reshape(heads, 2, half)[:, k].reshape(-1)
            vector = self._new(f"{label}.bias", np.ascontiguousarray(bias))
            made = self._make(anchor, "Add", made, vector)
        leading = () if linear.source.shape is None else linear.source.shape[:2]
        if len(leading) == 2:
            made.shape = ir.Shape([*leading, heads * half])
        return self._make(anchor, "Reshape", made, self._ints(0, 0, heads, half))

    def _times(self, anchor: ir.Node, *pairs: tuple[ir.Value, ir.Value]) -> tuple[ir.Value, ...]:
        return tuple(self._make(anchor, "Mul", *pair) for pair in pairs)

    def _table(self, node: ir.Node, table: ir.Value | None) -> ir.Value:
        """Cosines or sines of the rows that the node reads: [B|1, N, 1, d/2]."""
        rows = node.inputs[1]
        if table is None or rows is None:
            raise ValueError(f"{node.name} lacks a table")
        key = (id(table), id(rows))
        if key not in self._tables:
            numbers, places = constant(table), constant(rows)
            if numbers is not None and places is not None:
                if (places == places[:1]).all():
                    places = places[:1]
                array = np.ascontiguousarray(numbers[places][:, :, None])
                self._tables[key] = self._new(f"{table.name}_rows", array)
            else:
                read = self._make(node, "Gather", table, rows, axis=0)
                read.type = table.type
                self._tables[key] = self._make(node, "Unsqueeze", read, self._ints(2))
        return self._tables[key]

    def _make(
        self, anchor: ir.Node, operator: str, *inputs: ir.Value, **attributes: int
    ) -> ir.Value:
        node = ir.node(operator, inputs, attributes)
        insert_before(anchor, [node])
        node.outputs[0].type = inputs[0].type
        return node.outputs[0]

    def _new(self, name: str, array: np.ndarray) -> ir.Value:
        return new_initializer(self._graph, name, array)

    def _ints(self, *numbers: int) -> ir.Value:
        if numbers not in self._shapes:
            array = np.array(numbers, dtype=np.int64)
            self._shapes[numbers] = new_initializer(self._graph, "halves_shape", array)
        return self._shapes[numbers]
