"""Do not compute tokens that no output reads.

A head that reads the class token asks the last block for one token of N. Keys and values still
need all tokens; the query, the output projection, the residual adds, the MLP and the final norm
do not. The pass finds the tokens that outputs select (case 1: Gather with a constant index; case
2: Slice with constant bounds), walks the graph backwards to see which values are wanted only at
those tokens, cuts at the border, and leaves every node between as it is: it works on fewer tokens.

* Case 3: attention takes the cut query and all keys and values; its bias is cut along the queries.
* Case 4: where the query comes from a packed projection, the weights are split, so that the query
  is projected for the wanted tokens alone.

Nothing happens when any output needs all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    constant,
    insert_before,
    new_initializer,
    rank,
    remove_dead,
)
from exporters.passes.token_demand import (
    FULL,
    TOKEN_AXIS,
    is_partial,
    token_inputs,
    wanted_tokens,
)

KEPT_TOKENS = "kept_tokens"
"""The fact that the pass leaves: ``(start, end)`` of the tokens, for per-layer parity."""

_MOST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start`` to ``end``, the end excluded."""

    start: int
    end: int

    def join(self, other: Span) -> Span:
        """The smallest span that holds both."""
        return Span(min(self.start, other.start), max(self.end, other.end))


class UnreadTokens(GraphPass):
    """Cut the last block down to the tokens that are read."""

    name: ClassVar[str] = "unread-tokens"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Find the span, the values wanted only there, and cut."""
        outcome = PassOutcome()
        graph = model.graph
        selects = [(node, span) for node in graph if (span := _selected(node)) is not None]
        if not selects:
            return outcome
        span = selects[0][1]
        for _, other in selects[1:]:
            span = span.join(other)
        if span.end - span.start > _MOST_TOKENS:
            node = selects[0][0]
            outcome.refuse(
                node, f"{span.end - span.start} tokens are read, that is most of the work"
            )
            return outcome
        wanted = wanted_tokens(graph, {id(node) for node, _ in selects})
        partial = [node for node in graph if is_partial(node, wanted)]
        if not any(
            node.op_type in ("MatMul", "MultiHeadAttention", "Attention") for node in partial
        ):
            for node, _ in selects:
                outcome.refuse(node, "another output reads all tokens of its input")
            return outcome
        _Cutter(graph, wanted, span).cut(partial, selects)
        remove_dead(graph)
        outcome.facts[KEPT_TOKENS] = (span.start, span.end)
        outcome.changed = sum(
            node.op_type in ("MultiHeadAttention", "Attention") for node in partial
        )
        return outcome


def _selected(node: ir.Node) -> Span | None:
    """Tokens that a node selects from [B, N, D], or None."""
    if not node.inputs or rank(node.inputs[0]) != 3:
        return None
    if node.op_type == "Gather" and node.attributes.get_int("axis", 0) == TOKEN_AXIS:
        index = constant(node.inputs[1])
        if index is None or index.ndim != 0 or int(index) < 0:
            return None
        return Span(int(index), int(index) + 1)
    if node.op_type == "Slice":
        numbers = [constant(v) for v in node.inputs[1:]]
        if len(numbers) < 3 or any(n is None or n.size != 1 for n in numbers):
            return None
        start, end, axis, *step = (int(n.reshape(-1)[0]) for n in numbers if n is not None)
        if axis == TOKEN_AXIS and 0 <= start < end <= _MOST_TOKENS and step in ([], [1]):
            return Span(start, end)
    return None


class _Cutter:
    """Cuts values at the border between all tokens and the span."""

    def __init__(self, graph: ir.Graph, wanted: dict[int, str], span: Span) -> None:
        self._graph = graph
        self._wanted = wanted
        self._span = span
        self._cut: dict[tuple[int, int], ir.Value] = {}
        self._bounds: dict[int, tuple[ir.Value, ...]] = {}

    def cut(self, partial: list[ir.Node], selects: list[tuple[ir.Node, Span]]) -> None:
        """Let ``partial`` nodes read cut values, and selects count from the start of the span."""
        for node in partial:
            for place in token_inputs(node):
                value = node.inputs[place]
                if value is not None and self._wanted.get(id(value)) == FULL:
                    node.replace_input_with(place, self._border(node, value))
            if node.op_type == "MultiHeadAttention":
                self._cut_bias(node)
        for node in partial:
            for value in node.outputs:
                if value.shape is not None:
                    value.shape = ir.Shape(
                        [value.shape[0], self._span.end - self._span.start, value.shape[2]]
                    )
        for node, own in selects:
            self._shift(node, own)

    def _border(self, node: ir.Node, value: ir.Value) -> ir.Value:
        """The tokens of the span of a value that is also wanted whole."""
        query = self._query_projection(node, value)
        if query is not None:
            return query
        return self._slice(node, value, TOKEN_AXIS)

    def _slice(self, anchor: ir.Node, value: ir.Value, axis: int) -> ir.Value:
        key = (id(value), axis)
        if key not in self._cut:
            node = ir.node("Slice", [value, *self._slice_bounds(axis)])
            insert_before(anchor, [node])
            out = node.outputs[0]
            out.type = value.type
            if value.shape is not None:
                dims = list(value.shape)
                dims[axis] = self._span.end - self._span.start
                out.shape = ir.Shape(dims)
            self._cut[key] = out
        return self._cut[key]

    def _slice_bounds(self, axis: int) -> tuple[ir.Value, ...]:
        if axis not in self._bounds:
            self._bounds[axis] = tuple(
                new_initializer(self._graph, f"tokens_{label}", np.array([n], dtype=np.int64))
                for label, n in (
                    ("start", self._span.start),
                    ("end", self._span.end),
                    ("axis", axis),
                )
            )
        return self._bounds[axis]

    def _cut_bias(self, node: ir.Node) -> None:
        """Case 3: the bias [1|B, 1|M, N, N] loses the rows of queries that are gone."""
        if len(node.inputs) > 5 and node.inputs[5] is not None:
            node.replace_input_with(5, self._slice(node, node.inputs[5], 2))

    def _query_projection(self, node: ir.Node, value: ir.Value) -> ir.Value | None:
        """Case 4: project the query for the span alone, keys and values for all tokens."""
        split = value.producer()
        if node.op_type != "MultiHeadAttention" or split is None or split.op_type != "Split":
            return None
        if len(split.outputs) != 3 or split.outputs[0] is not value:
            return None
        packed = split.inputs[0]
        added = None if packed is None or len(packed.uses()) != 1 else packed.producer()
        if added is None or added.op_type != "Add":
            return None
        product, bias = added.inputs
        if product is None or rank(product) != 3:
            product, bias = bias, product
        multiply = None if product is None else product.producer()
        if multiply is None or multiply.op_type != "MatMul" or len(product.uses()) != 1:  # type: ignore[union-attr]
            return None
        x, weight = multiply.inputs
        weights, biases = constant(weight), constant(bias)
        if x is None or weights is None or biases is None or weights.ndim != 2 or biases.ndim != 1:
            return None
        third = weights.shape[1] // 3
        name = weight.name if weight is not None and weight.name else "qkv"
        query = self._linear(
            split,
            self._slice(split, x, TOKEN_AXIS),
            weights[:, :third],
            biases[:third],
            f"{name}.q",
        )
        rest = self._linear(split, x, weights[:, third:], biases[third:], f"{name}.kv")
        halves = ir.node(
            "Split",
            [rest, new_initializer(self._graph, "kv_split", np.array([third, third], np.int64))],
            {"axis": 2},
            num_outputs=2,
        )
        insert_before(split, [halves])
        for old, new in zip(split.outputs[1:], halves.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            ir.convenience.replace_all_uses_with(old, new)
        return query

    def _linear(
        self, anchor: ir.Node, x: ir.Value, weight: np.ndarray, bias: np.ndarray, name: str
    ) -> ir.Value:
        """x @ weight + bias, placed before ``anchor``."""
        product = ir.node(
            "MatMul", [x, new_initializer(self._graph, name, np.ascontiguousarray(weight))]
        )
        total = ir.node(
            "Add", [product.outputs[0], new_initializer(self._graph, f"{name}.bias", bias.copy())]
        )
        insert_before(anchor, [product, total])
        for value in (product.outputs[0], total.outputs[0]):
            value.type = x.type
            if x.shape is not None:
                value.shape = ir.Shape([*x.shape[:2], weight.shape[1]])
        return total.outputs[0]

    def _shift(self, node: ir.Node, own: Span) -> None:
        """A select of the whole counts from the start of the span."""
        source = node.inputs[0]
        if source is None or self._wanted.get(id(source)) == FULL or self._span.start == 0:
            return
        start = own.start - self._span.start
        if node.op_type == "Gather":
            index = np.array(start, dtype=np.int64)
            node.replace_input_with(1, new_initializer(self._graph, "token_index", index))
            return
        for place, number in ((1, start), (2, own.end - self._span.start)):
            bound = np.array([number], dtype=np.int64)
            node.replace_input_with(place, new_initializer(self._graph, "token_bound", bound))
