"""Tokens stay in the order of the windows from block to block.

Attention in windows brings the tokens into the order of its windows, shifted ones through a roll
(Slice and Concat twice), and back again for the residual add: four to twelve moves of all tokens in
every block. But norms, linear layers, activations and residual adds do not care for the order. One
Gather per block, from the windows of the block before to its own, is enough.

The pass follows rows through the graph (:mod:`exporters.passes.row_moves`):

* case 1, moves are not done but remembered: a value is rows of another one;
* case 2, what treats rows alone works on them where they are;
* case 3, a residual add brings the order of one term to the other;
* case 4, where attention reads its windows, their rows are gathered, before the norm if nothing
  else reads that, so that the residual add shares them.

Left alone: symbolic sizes, and moves that are views or cuts of rows in their order.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    insert_before,
    new_initializer,
    rank,
    remove_dead,
    static_shape,
)
from exporters.passes.row_moves import (
    COPIES,
    Moved,
    Rows,
    alone,
    is_move,
    joins,
    move,
    row_count,
    unmoved,
)

_PARTITION_RANK = 6
"""[B, rows of windows, window height, columns of windows, window width, C]"""


class TokenOrder(GraphPass):
    """One Gather between the windows of two blocks in place of partition, roll and reverse."""

    name: ClassVar[str] = "token-order"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """One walk in execution order."""
        outcome = PassOutcome()
        graph = model.graph
        before = {id(n) for n in graph if n.op_type in COPIES}
        walk = _Walk(graph, outcome)
        for node in list(graph):
            walk.visit(node)
        remove_dead(graph)
        left = {id(n) for n in graph}
        outcome.changed = len(before - left)
        return outcome


class _Walk:
    """Remembers of every value of the old graph whose rows it is."""

    def __init__(self, graph: ir.Graph, outcome: PassOutcome) -> None:
        self._graph = graph
        self._outcome = outcome
        self._moved: dict[int, Moved] = {}
        self._absorbed: set[int] = set()
        self._gathered: dict[tuple[int, bytes], ir.Value] = {}
        self._stands_for: dict[int, ir.Value] = {}
        self._shapes: dict[tuple[int, ...], ir.Value] = {}
        self._copies = 0

    def visit(self, node: ir.Node) -> None:
        """Remember, copy onto rows in another order, or give it its inputs in their order."""
        if is_move(node) and self._remember(node):
            return
        place = alone(node)
        if place is not None and self._work_on_rows(node, place):
            return
        if joins(node) and self._join(node):
            return
        for place, value in enumerate(node.inputs):
            if value is not None and id(value) in self._moved:
                node.replace_input_with(place, self._in_order(node, value))

    def _remember(self, node: ir.Node) -> bool:
        """Case 1."""
        first = node.inputs[0]
        partition = node.op_type == "Transpose" and rank(first) == _PARTITION_RANK
        if partition and first is not None and static_shape(first) is None:
            self._outcome.refuse(node, f"sizes are symbolic: {first.shape}")
        count = len(node.inputs) if node.op_type == "Concat" else 1
        before = [self._rows_of(v) for v in node.inputs[:count] if v is not None]
        known = [m for m in before if m is not None]
        if len(known) != count or any(v.is_graph_output() for v in node.outputs):
            return False
        after = [move(node, k, known) for k in range(len(node.outputs))]
        if any(m is None for m in after):
            return False
        for value, moved in zip(node.outputs, after, strict=True):
            if moved is not None:
                self._moved[id(value)] = moved
        self._absorbed.add(id(node))
        return True

    def _rows_of(self, value: ir.Value) -> Moved | None:
        """What a value is rows of: remembered, or itself where rows are tokens for certain."""
        if id(value) in self._moved:
            return self._moved[id(value)]
        made = value.producer()
        if made is None or not (_is_attention(made) or alone(made) is not None or joins(made)):
            return None
        return unmoved(value)

    def _work_on_rows(self, node: ir.Node, place: int) -> bool:
        """Case 2. Where attention reads the result, rows are gathered first (case 4)."""
        value, out = node.inputs[place], node.outputs[0]
        moved = None if value is None else self._moved.get(id(value))
        if value is None or moved is None or out.is_graph_output():
            return False
        if not moved.is_permutation or _leads_to_attention(node) or self._is_view(moved):
            return False
        copied = self._copy(node, {place: moved.source}, moved.source)
        self._moved[id(out)] = Moved(copied, moved.rows, moved.costly)
        self._stands_for[id(copied)] = out
        return True

    def _is_view(self, moved: Moved) -> bool:
        """Rows that are where they were, in a value of the old graph."""
        return id(moved.source) not in self._stands_for and moved.in_place

    def _join(self, node: ir.Node) -> bool:
        """Case 3."""
        one, other = node.inputs
        out = node.outputs[0]
        if one is None or other is None or out.is_graph_output():
            return False
        if id(one) not in self._moved and id(other) not in self._moved:
            return False
        terms = [self._moved.get(id(v)) or unmoved(v) for v in (one, other)]
        a, b = terms
        if a is None or b is None:
            return False
        if self._is_view(a) and self._is_view(b):
            return False
        if not (a.is_permutation and b.is_permutation):
            if a.costly or b.costly:
                self._outcome.refuse(node, "rows are left out or repeated before the add")
            return False
        to_b, to_a = _aligned(a, b), _aligned(b, a)
        first, second, rows = a, b, b.rows
        if self._cost(a.source, to_b) > self._cost(b.source, to_a):
            first, second, rows, to_b = b, a, a.rows, to_a
        like = second.source
        brought = self._gather(node, first.source, to_b.reshape(_leading(like)))
        pair = {0: brought, 1: like} if first is a else {0: like, 1: brought}
        copied = self._copy(node, pair, like)
        self._moved[id(out)] = Moved(copied, rows, True)
        self._stands_for[id(copied)] = out
        return True

    def _cost(self, source: ir.Value, rows: Rows) -> int:
        """Gathers that an order takes: none where it is there already."""
        flat = rows.reshape(-1)
        if (flat == np.arange(flat.size)).all():
            return 0
        return 0 if (id(source), flat.tobytes()) in self._gathered else 1

    def _in_order(self, anchor: ir.Node, value: ir.Value) -> ir.Value:
        """The value itself, for a reader that needs its rows where they belong (case 4)."""
        moved = self._moved[id(value)]
        untouched = id(moved.source) not in self._stands_for
        if untouched and not moved.costly:
            return value
        return self._gather(anchor, moved.source, moved.rows)

    def _gather(self, anchor: ir.Node, source: ir.Value, rows: Rows) -> ir.Value:
        """Rows of a value as [*rows.shape, C]; a norm that nothing else reads comes after."""
        flat = np.ascontiguousarray(rows.reshape(-1))
        shape = (*rows.shape, _channels(source))
        if flat.size == row_count(source) and (flat == np.arange(flat.size)).all():
            return source if static_shape(source) == shape else self._view(anchor, source, shape)
        key = (id(source), flat.tobytes())
        if key not in self._gathered:
            norm = source.producer()
            if norm is not None and norm.op_type.endswith("Normalization") and self._unread(source):
                inner = norm.inputs[0]
                if inner is not None and row_count(inner) == row_count(source):
                    brought = self._gather(anchor, inner, rows)
                    self._gathered[key] = self._copy(norm, {0: brought}, brought, anchor)
                    return self._gathered[key]
            table = self._view(anchor, source, (row_count(source), _channels(source)))
            index = new_initializer(self._graph, "token_order", rows.astype(np.int64))
            node = ir.node("Gather", [table, index], {"axis": 0})
            insert_before(anchor, [node])
            node.outputs[0].type, node.outputs[0].shape = source.type, ir.Shape(shape)
            self._gathered[key] = node.outputs[0]
        found = self._gathered[key]
        return found if static_shape(found) == shape else self._view(anchor, found, shape)

    def _unread(self, source: ir.Value) -> bool:
        """Whether nothing but remembered moves reads a value."""
        old = self._stands_for.get(id(source), source)
        readers = [n for v in (old, source) for n, _ in v.uses()]
        return not old.is_graph_output() and all(id(n) in self._absorbed for n in readers)

    def _view(self, anchor: ir.Node, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        if static_shape(value) == shape:
            return value
        if shape not in self._shapes:
            array = np.array(shape, dtype=np.int64)
            self._shapes[shape] = new_initializer(self._graph, "rows_shape", array)
        node = ir.node("Reshape", [value, self._shapes[shape]])
        insert_before(anchor, [node])
        node.outputs[0].type, node.outputs[0].shape = value.type, ir.Shape(shape)
        return node.outputs[0]

    def _copy(
        self,
        node: ir.Node,
        inputs: dict[int, ir.Value],
        like: ir.Value,
        anchor: ir.Node | None = None,
    ) -> ir.Value:
        """A node that reads other values, rows in the order of ``like``."""
        attributes = dict(node.attributes)
        if "axis" in attributes:  # of a norm: the rank may be another one
            attributes["axis"] = ir.AttrInt64("axis", -1)
        read = [inputs.get(k, v) for k, v in enumerate(node.inputs)]
        self._copies += 1
        name = f"{node.name or node.op_type}_rows_{self._copies}"
        copied = ir.node(node.op_type, read, attributes, name=name)
        insert_before(anchor or node, [copied])
        old, new = node.outputs[0], copied.outputs[0]
        new.type, new.shape = old.type, ir.Shape([*_leading(like), _channels(old)])
        return new


def _is_attention(node: ir.Node) -> bool:
    return node.op_type == "MultiHeadAttention"


def _leads_to_attention(node: ir.Node) -> bool:
    """Whether rows, treated alone from here on, get to a reader that needs them in their order."""
    found, channels = False, _channels(node.outputs[0])
    for reader, _ in node.outputs[0].uses():
        if joins(reader) or (is_move(reader) and _channels(reader.outputs[0]) == channels):
            continue
        found |= alone(reader) is None or _leads_to_attention(reader)
    return found


def _aligned(a: Moved, b: Moved) -> Rows:
    """Rows of a's source in the order of b's source."""
    inverse = np.empty(b.rows.size, dtype=np.int64)
    inverse[b.rows.reshape(-1)] = np.arange(b.rows.size)
    return a.rows.reshape(-1)[inverse]


def _leading(value: ir.Value) -> tuple[int, ...]:
    return (static_shape(value) or (0,))[:-1]


def _channels(value: ir.Value) -> int:
    return (static_shape(value) or (0,))[-1]
