"""Spell every ``vitpe::Attention`` node for the target.

``vitpe::Attention`` takes query, key, value as [B, M, N, D/M] and an optional additive bias.

* target ``ort`` and ``openvino``: ``com.microsoft.MultiHeadAttention`` over [B, N, D]. Where
  query, key and value are heads split off one packed projection (case 1) or off their own
  (case 2), the Reshape and Transpose before it fall away, and so they do where each head of these
  is normalised or scaled alone (case 5); anything else (case 3: rotated queries) is brought to
  [B, N, D] by one Transpose and one Reshape. The Transpose and Reshape after attention fall away
  the same way (case 4).
* target ``portable``: ``Attention`` from opset 23 on, below it MatMul, Softmax, MatMul.
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
    ints,
    new_initializer,
    only_reader,
    rank,
    replace_value,
    same_dims,
    static_dim,
)
from exporters.passes.head_wise import heads_under, on_tokens_first
from exporters.trace import ATTENTION_DOMAIN, ATTENTION_OP
from vitpe_deploy.request import Target

_CONTRIB = "com.microsoft"
_HEADS_FIRST = (0, 2, 1, 3)
_PACKED = (2, 0, 3, 1, 4)


class SpellAttention(GraphPass):
    """One fused attention node per block, as the target's engine has it."""

    name: ClassVar[str] = "attention"
    required: ClassVar[bool] = True

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Replace every explicit attention node."""
        outcome = PassOutcome()
        speller = _Speller(model.graph)
        for node in list(model.graph):
            if node.domain != ATTENTION_DOMAIN or node.op_type != ATTENTION_OP:
                continue
            if context.target is not Target.PORTABLE:
                speller.multi_head(node)
                model.opset_imports[_CONTRIB] = 1
            elif context.opset >= 23:
                speller.standard(node)
            else:
                speller.by_hand(node)
            outcome.changed += 1
        model.opset_imports.pop(ATTENTION_DOMAIN, None)
        return outcome


class HeadsFlattener:
    """Brings heads to [B, N, D]; shares Split nodes and shape constants of one graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._splits: dict[tuple[str, int], tuple[ir.Value, ...]] = {}
        self._constants: dict[tuple[int, ...], ir.Value] = {}

    def _ints(self, *numbers: int) -> ir.Value:
        if numbers not in self._constants:
            array = np.array(numbers, dtype=np.int64)
            label = "_".join(str(n).replace("-", "m") for n in numbers)
            self._constants[numbers] = new_initializer(self._graph, f"shape_{label}", array)
        return self._constants[numbers]

    def flatten_heads(self, node: ir.Node, x: ir.Value, num_heads: int) -> ir.Value:
        """[B, M, N, D/M] -> [B, N, D], by undoing what split the heads where possible."""
        return (
            self._projection(node, x, num_heads)
            or self._head_wise(node, x, num_heads)
            or self._by_transpose(node, x)
        )

    def _projection(self, anchor: ir.Node, x: ir.Value, num_heads: int) -> ir.Value | None:
        return self._packed_projection(anchor, x, num_heads) or _own_projection(x, num_heads)

    def _head_wise(self, anchor: ir.Node, x: ir.Value, num_heads: int) -> ir.Value | None:
        """Case 5: x is made of the heads of a projection, each head of each token by itself."""
        heads = heads_under(x)
        head_dim = static_dim(x, 3)
        if heads is None or head_dim is None:
            return None
        flat = self._projection(anchor, heads, num_heads)
        if flat is None:
            return None
        split = ir.node("Reshape", [flat, self._ints(0, 0, num_heads, head_dim)])
        insert_before(anchor, [split])
        b, m, n, d = heads.shape or (None,) * 4
        split.outputs[0].type, split.outputs[0].shape = x.type, ir.Shape([b, n, m, d])
        turned = on_tokens_first(
            anchor, x, heads, split.outputs[0], lambda n, a: new_initializer(self._graph, n, a)
        )
        joined = ir.node("Reshape", [turned, self._ints(0, 0, num_heads * head_dim)])
        insert_before(anchor, [joined])
        joined.outputs[0].type = x.type
        joined.outputs[0].shape = ir.Shape([b, n, num_heads * head_dim])
        return joined.outputs[0]

    def _packed_projection(self, anchor: ir.Node, x: ir.Value, num_heads: int) -> ir.Value | None:
        """Case 1: x is one of the three parts of a packed [B, N, 3, M, D/M] projection."""
        found = _part_of(x)
        if found is None:
            return None
        stacked, index = found
        turned = stacked.producer()
        if turned is None or turned.op_type != "Transpose" or ints(turned, "perm") != _PACKED:
            return None
        split = turned.inputs[0].producer() if turned.inputs[0] is not None else None
        if split is None or split.op_type != "Reshape" or rank(split.inputs[0]) != 3:
            return None
        heads = split.outputs[0]
        if static_dim(heads, 2) != 3 or static_dim(heads, 3) != num_heads:
            return None
        packed = split.inputs[0]
        if not same_dims(packed, (0, 1), heads, (0, 1)):
            return None
        width = static_dim(packed, 2)
        if packed is None or packed.name is None or width is None:
            return None
        key = (packed.name, width)
        if key not in self._splits:
            parts = ir.node(
                "Split",
                [packed, self._ints(width // 3, width // 3, width // 3)],
                {"axis": 2},
                num_outputs=3,
                name=f"{packed.name}_split",
            )
            for value, label in zip(parts.outputs, "qkv", strict=True):
                value.name = f"{packed.name}_{label}"
                value.type = packed.type
            insert_before(anchor, [parts])
            self._splits[key] = tuple(parts.outputs)
        return self._splits[key][index]

    def _by_transpose(self, anchor: ir.Node, x: ir.Value) -> ir.Value:
        """Case 3: [B, M, N, D/M] -> [B, N, M, D/M] -> [B, N, D]."""
        turned = ir.node("Transpose", [x], {"perm": list(_HEADS_FIRST)})
        flat = ir.node("Reshape", [turned.outputs[0], self._ints(0, 0, -1)])
        insert_before(anchor, [turned, flat])
        for value in (turned.outputs[0], flat.outputs[0]):
            value.type = x.type
        return flat.outputs[0]


class _Speller(HeadsFlattener):
    """Rewrites attention nodes of one graph."""

    def multi_head(self, node: ir.Node) -> None:
        """``com.microsoft.MultiHeadAttention`` over [B, N, D]."""
        query, key, value, bias = _operands(node)
        num_heads = static_dim(query, 1)
        out = node.outputs[0]
        if num_heads is None:
            self.by_hand(node)
            return
        flat = [self.flatten_heads(node, v, num_heads) for v in (query, key, value)]
        inputs: list[ir.Value | None] = [*flat]
        if bias is not None:
            inputs += [None, None, bias]
        fused = ir.node(
            "MultiHeadAttention",
            inputs,
            {"num_heads": num_heads, "scale": _scale(node)},
            domain=_CONTRIB,
            name=f"{node.name}_mha",
        )
        insert_before(node, [fused])
        result = fused.outputs[0]
        result.type = out.type
        result.name = f"{out.name}_heads"
        self._join_heads(node, result, num_heads)

    def standard(self, node: ir.Node) -> None:
        """``Attention`` of opset 23."""
        query, key, value, bias = _operands(node)
        inputs = [query, key, value] + ([] if bias is None else [bias])
        fused = ir.node("Attention", inputs, {"scale": _scale(node)}, name=f"{node.name}_attention")
        self._swap(node, [fused])

    def by_hand(self, node: ir.Node) -> None:
        """MatMul, Softmax, MatMul, the scale on the query."""
        query, key, value, bias = _operands(node)
        scale = new_initializer(
            self._graph, "attention_scale", np.array(_scale(node), dtype=np.float32)
        )
        scaled = ir.node("Mul", [query, scale])
        turned = ir.node("Transpose", [key], {"perm": [0, 1, 3, 2]})
        logits = ir.node("MatMul", [scaled.outputs[0], turned.outputs[0]])
        nodes = [scaled, turned, logits]
        if bias is not None:
            nodes.append(ir.node("Add", [logits.outputs[0], bias]))
        weights = ir.node("Softmax", [nodes[-1].outputs[0]], {"axis": -1})
        self._swap(node, [*nodes, weights, ir.node("MatMul", [weights.outputs[0], value])])

    def _swap(self, node: ir.Node, nodes: list[ir.Node]) -> None:
        insert_before(node, nodes)
        old, new = node.outputs[0], nodes[-1].outputs[0]
        new.shape, new.type = old.shape, old.type
        replace_value(old, new)
        self._graph.remove(node, safe=True)

    def _join_heads(self, node: ir.Node, result: ir.Value, num_heads: int) -> None:
        """Case 4: let readers of the joined heads read the fused node; else split them again."""
        old = node.outputs[0]
        join = _join_of(old)
        if join is not None:
            turned, joined = next(iter(old.uses())).node, join.outputs[0]
            if rank(joined) == 3 and same_dims(joined, (0, 1), old, (0, 2)):
                result.shape = joined.shape
                replace_value(joined, result)
                self._graph.remove(join, safe=True)
            else:
                # The same Reshape also takes windows apart: it reads the fused node instead.
                result.shape = _joined_shape(old, num_heads)
                join.replace_input_with(0, result)
            self._graph.remove(turned, safe=True)
            self._graph.remove(node, safe=True)
            return
        head_dim = static_dim(old, 3)
        split = ir.node("Reshape", [result, self._ints(0, 0, num_heads, head_dim or -1)])
        turned = ir.node("Transpose", [split.outputs[0]], {"perm": list(_HEADS_FIRST)})
        self._swap(node, [split, turned])


def _joined_shape(heads: ir.Value, num_heads: int) -> ir.Shape | None:
    """[B, N, D] of [B, M, N, D/M]."""
    head_dim = static_dim(heads, 3)
    if heads.shape is None or head_dim is None:
        return None
    return ir.Shape([heads.shape[0], heads.shape[2], num_heads * head_dim])


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value | None]:
    query, key, value = node.inputs[:3]
    if query is None or key is None or value is None:
        raise ValueError(f"attention node {node.name} lacks an operand")
    return query, key, value, node.inputs[3] if len(node.inputs) > 3 else None


def _scale(node: ir.Node) -> float:
    return node.attributes["scale"].as_float()


def _part_of(x: ir.Value) -> tuple[ir.Value, int] | None:
    """``(stacked, i)`` when x is ``stacked[i]`` along axis 0, however that is written."""
    node = x.producer()
    if node is None:
        return None
    if node.op_type == "Gather" and (node.attributes.get_int("axis", 0) == 0):
        index = constant(node.inputs[1])
        if index is not None and index.ndim == 0 and node.inputs[0] is not None:
            return node.inputs[0], int(index)
        return None
    if node.op_type not in ("Squeeze", "Reshape") or node.inputs[0] is None:
        return None
    if rank(node.inputs[0]) != 5:
        return None
    inner = node.inputs[0].producer()
    if inner is None:
        return None
    if inner.op_type == "Split" and inner.attributes.get_int("axis", 0) == 0:
        part = list(inner.outputs).index(node.inputs[0])
        return (inner.inputs[0], part) if inner.inputs[0] is not None else None
    if inner.op_type == "Slice" and inner.inputs[0] is not None:
        numbers = [constant(v) for v in inner.inputs[1:4]]
        if any(n is None or n.size != 1 for n in numbers):
            return None
        start, end, axis = (int(n.reshape(-1)[0]) for n in numbers if n is not None)
        return (inner.inputs[0], start) if axis == 0 and end == start + 1 else None
    return None


def _own_projection(x: ir.Value, num_heads: int) -> ir.Value | None:
    """Case 2: x is [B, N, D] with its heads split off and moved forward; gives [B, N, D]."""
    turned = x.producer()
    if turned is None or turned.op_type != "Transpose" or ints(turned, "perm") != _HEADS_FIRST:
        return None
    split = turned.inputs[0].producer() if turned.inputs[0] is not None else None
    if split is None or split.op_type != "Reshape" or rank(split.inputs[0]) != 3:
        return None
    heads, flat = split.outputs[0], split.inputs[0]
    width, head_dim = static_dim(flat, 2), static_dim(heads, 3)
    if static_dim(heads, 2) != num_heads or width is None or head_dim is None:
        return None
    if not same_dims(flat, (0, 1), heads, (0, 1)):
        return None
    return flat if width == num_heads * head_dim else None


def _join_of(heads: ir.Value) -> ir.Node | None:
    """The Reshape that joins the heads of [B, M, N, D/M], when it is their only reader's reader."""
    turned = only_reader(heads, "Transpose")
    if turned is None or ints(turned, "perm") != _HEADS_FIRST:
        return None
    join = only_reader(turned.outputs[0], "Reshape")
    if join is None or (rank(join.outputs[0]) or 0) < 3:
        return None
    num_heads, head_dim = static_dim(heads, 1), static_dim(heads, 3)
    if num_heads is None or head_dim is None:
        return None
    return join if static_dim(join.outputs[0], -1) == num_heads * head_dim else None
