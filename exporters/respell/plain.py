"""Fused nodes of our files spelled in operators of the ONNX standard, opset 18 and up.

Letters: B batch, M heads, N tokens, D = M * d embed_dim.

1. ``com.microsoft.MultiHeadAttention`` over [B, N, D]: heads forward, MatMul, Softmax, MatMul,
   heads back and joined.
2. ``Attention`` of opset 23 over [B, M, N, d]: the same without moving heads; over [B, N, D] as 1.
3. ``com.microsoft.RotaryEmbedding`` over [B, N, D]: heads forward, ``x cos + turned(x) sin`` with
   the rows of its tables written out (read by Gather where sizes are symbolic), heads back.
   ``turned`` swaps the halves of a head, or neighbours when it is interleaved, with one sign
   changed.

Shapes inside the graph need not be known; where heads come forward and went back just before, both
fall away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    constant,
    insert_before,
    ints,
    new_initializer,
    remove_dead,
    replace_value,
)
from vitpe_deploy.errors import UnsupportedError

CONTRIB = "com.microsoft"
_HEADS_FIRST = (0, 2, 1, 3)


def spell_out(model: ir.Model) -> int:
    """Spell every fused node out, in place. Gives how many.

    Raises:
        UnsupportedError: a node of another domain than the standard's is left.
    """
    graph = model.graph
    writer = _Writer(graph)
    ways: Mapping[tuple[str, str], Callable[[ir.Node], ir.Value]] = {
        (CONTRIB, "MultiHeadAttention"): writer.multi_head,
        ("", "Attention"): writer.attention,
        (CONTRIB, "RotaryEmbedding"): writer.rotary,
    }
    changed = 0
    for node in list(graph):
        way = ways.get((node.domain, node.op_type))
        if way is not None:
            _take_place(node, way(node))
            changed += 1
    remove_dead(graph)
    left = sorted({f"{n.domain}.{n.op_type}" for n in graph.all_nodes() if n.domain != ""})
    if left:
        raise UnsupportedError(
            f"{left[0]} has no spelling in standard operators here",
            hint="Export the model again with --target portable.",
        )
    model.opset_imports.pop(CONTRIB, None)
    return changed


def _take_place(node: ir.Node, new: ir.Value) -> None:
    old = node.outputs[0]
    new.shape, new.type = old.shape, old.type
    name = old.name
    replace_value(old, new)
    graph = node.graph
    if graph is not None:
        graph.remove(node, safe=True)
    old.name = f"{name}_fused"
    new.name = name


class _Writer:
    """Writes plain nodes before a fused one."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._shapes: dict[tuple[int, ...], ir.Value] = {}
        self._scales: dict[float, ir.Value] = {}
        self._computed: dict[tuple[int, int, bool], ir.Value] = {}

    def multi_head(self, node: ir.Node) -> ir.Value:
        """Case 1."""
        extra = [k for k, v in enumerate(node.inputs) if v is not None and k not in (0, 1, 2, 5)]
        if extra:
            raise UnsupportedError(
                f"{node.name} has input {extra[0]}, which has no plain spelling here"
            )
        bias = node.inputs[5] if len(node.inputs) > 5 else None
        return self._of_heads(node, node.attributes["num_heads"].as_int(), bias)

    def _of_heads(self, node: ir.Node, heads: int, bias: ir.Value | None) -> ir.Value:
        """Query, key and value [B, N, D]."""
        query, key, value = (self._split(node, node.inputs[k], heads) for k in range(3))
        return self._join(node, self._attend(node, query, key, value, bias))

    def attention(self, node: ir.Node) -> ir.Value:
        """Case 2."""
        query, key, value = node.inputs[:3]
        bias = node.inputs[3] if len(node.inputs) > 3 else None
        odd = {"is_causal", "softcap"} & {name for name, a in node.attributes.items() if a.value}
        heads, of_keys = (node.attributes.get_int(f"{k}_num_heads", 0) for k in ("q", "kv"))
        many = len(node.inputs) > 4 or heads != of_keys
        if query is None or key is None or value is None or many or odd:
            raise UnsupportedError(f"{node.name} is an Attention that was not written here")
        if heads:
            return self._of_heads(node, heads, bias)
        return self._attend(node, query, key, value, bias)

    def _attend(
        self,
        node: ir.Node,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        bias: ir.Value | None,
    ) -> ir.Value:
        """[B, M, N, d] each, the scale on the query."""
        scale = node.attributes.get_float("scale", 0.0)
        if not scale:
            raise UnsupportedError(f"{node.name} has no scale: it was not written here")
        scaled = self._add(node, "Mul", [query, self._scale(scale)])
        turned = self._add(node, "Transpose", [key], perm=[0, 1, 3, 2])
        logits = self._add(node, "MatMul", [scaled, turned])
        if bias is not None:
            logits = self._add(node, "Add", [logits, bias])
        weights = self._add(node, "Softmax", [logits], axis=-1)
        return self._add(node, "MatMul", [weights, value])

    def rotary(self, node: ir.Node) -> ir.Value:
        """Case 3: tables [P, d/2] at positions [B, N] become [1|B, 1, N, d]."""
        x, positions, cos, sin = node.inputs[:4]
        heads = node.attributes.get_int("num_heads", 0)
        if positions is None or cos is None or sin is None or not heads:
            raise UnsupportedError(f"{node.name} is a RotaryEmbedding that was not written here")
        interleaved = bool(node.attributes.get_int("interleaved", 0))
        split = self._split(node, x, heads)
        turned = self._turned(node, split, interleaved=interleaved)
        across = self._rows(node, sin, positions, interleaved=interleaved)
        along = self._rows(node, cos, positions, interleaved=interleaved)
        products = [
            self._add(node, "Mul", [turned, across]),
            self._add(node, "Mul", [split, along]),
        ]
        return self._join(node, self._add(node, "Add", products))

    def _rows(
        self, node: ir.Node, table: ir.Value, positions: ir.Value, *, interleaved: bool
    ) -> ir.Value:
        """Rows of a table with a column per channel: a constant, or computed with the sizes."""
        rows, numbers = constant(positions), constant(table)
        if rows is not None and numbers is not None and (rows == rows[:1]).all():
            spread = _to_pairs if interleaved else _to_halves
            return self._table(f"{table.name}_rows", spread(numbers[rows[0]]))
        key = (id(table), id(positions), interleaved)
        if key not in self._computed:
            read = self._add(node, "Gather", [table, positions], axis=0)  # [B, N, d/2]
            if interleaved:
                read = self._add(node, "Unsqueeze", [read, self._ints(-1)])
            wide = self._add(node, "Concat", [read, read], axis=-1)
            if interleaved:  # [B, N, d/2, 2]
                wide = self._add(node, "Reshape", [wide, self._ints(0, 0, -1)])
            self._computed[key] = self._add(node, "Unsqueeze", [wide, self._ints(1)])
        return self._computed[key]

    def _turned(self, node: ir.Node, x: ir.Value, *, interleaved: bool) -> ir.Value:
        """[B, M, N, d]: (a, b) -> (-b, a) for every pair of channels."""
        if not interleaved:
            first, second = self._halves(node, x, axis=3)
            return self._add(node, "Concat", [self._add(node, "Neg", [second]), first], axis=3)
        pairs = self._add(node, "Reshape", [x, self._ints(0, 0, 0, -1, 2)])
        first, second = self._halves(node, pairs, axis=4)
        swapped = self._add(node, "Concat", [self._add(node, "Neg", [second]), first], axis=4)
        return self._add(node, "Reshape", [swapped, self._ints(0, 0, 0, -1)])

    def _halves(self, node: ir.Node, x: ir.Value, *, axis: int) -> tuple[ir.Value, ir.Value]:
        parts = ir.node("Split", [x], {"axis": axis, "num_outputs": 2}, num_outputs=2)
        insert_before(node, [parts])
        first, second = parts.outputs
        first.type = second.type = x.type
        return first, second

    def _table(self, name: str, array: np.ndarray) -> ir.Value:
        known = self._graph.initializers.get(name)
        same = known is not None and np.array_equal(constant(known), array)  # type: ignore[arg-type]
        if known is not None and same:
            return known
        return new_initializer(self._graph, name, array)

    def _split(self, node: ir.Node, x: ir.Value | None, heads: int) -> ir.Value:
        """[B, N, D] -> [B, M, N, d]."""
        if x is None:
            raise UnsupportedError(f"{node.name} lacks an operand")
        joined = _joined_heads(x)
        if joined is not None:
            return joined
        parts = self._add(node, "Reshape", [x, self._ints(0, 0, heads, -1)])
        return self._add(node, "Transpose", [parts], perm=list(_HEADS_FIRST))

    def _join(self, node: ir.Node, x: ir.Value) -> ir.Value:
        """[B, M, N, d] -> [B, N, D]."""
        back = self._add(node, "Transpose", [x], perm=list(_HEADS_FIRST))
        return self._add(node, "Reshape", [back, self._ints(0, 0, -1)])

    def _add(
        self, anchor: ir.Node, kind: str, inputs: list[ir.Value], **attributes: object
    ) -> ir.Value:
        node = ir.node(kind, inputs, attributes or None)  # type: ignore[arg-type]
        insert_before(anchor, [node])
        node.outputs[0].type = inputs[0].type
        return node.outputs[0]

    def _ints(self, *numbers: int) -> ir.Value:
        if numbers not in self._shapes:
            label = "_".join(str(n).replace("-", "m") for n in numbers)
            self._shapes[numbers] = new_initializer(
                self._graph, f"shape_{label}", np.array(numbers, dtype=np.int64)
            )
        return self._shapes[numbers]

    def _scale(self, number: float) -> ir.Value:
        if number not in self._scales:
            array = np.array(number, dtype=np.float32)
            self._scales[number] = new_initializer(self._graph, "attention_scale", array)
        return self._scales[number]


def _joined_heads(x: ir.Value) -> ir.Value | None:
    """[B, M, N, d] that a Transpose and a Reshape written by :meth:`_Writer._join` made x of."""
    join = x.producer()
    if join is None or join.op_type != "Reshape" or join.inputs[0] is None:
        return None
    target = constant(join.inputs[1])
    back = join.inputs[0].producer()
    if target is None or target.tolist() != [0, 0, -1] or back is None:
        return None
    if back.op_type != "Transpose" or ints(back, "perm") != _HEADS_FIRST:
        return None
    return back.inputs[0]


def _to_halves(rows: np.ndarray) -> np.ndarray:
    """[N, d/2] -> [1, 1, N, d], the same for both halves of a head."""
    return np.ascontiguousarray(np.concatenate([rows, rows], axis=-1)[None, None])


def _to_pairs(rows: np.ndarray) -> np.ndarray:
    """[N, d/2] -> [1, 1, N, d], the same for both channels of a pair."""
    return np.ascontiguousarray(np.repeat(rows, 2, axis=-1)[None, None])
