"""What is done to each head of each token alone, done before heads go in front of tokens.

Cosine attention and norms of queries and keys work on [B, M, N, d], and fused attention reads
[B, N, D]: heads are moved forward and back for them. But each works on the d channels of one head
of one token, wherever that is, so the same nodes do on [B, N, M, d], which is a view of [B, N, D].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from exporters.passes.base import constant, insert_before, rank

_POINTWISE = frozenset(
    {
        "Mul",
        "Div",
        "Add",
        "Sub",
        "Pow",
        "Max",
        "Min",
        "Clip",
        "Sqrt",
        "Reciprocal",
        "Abs",
        "Identity",
    }
)
_REDUCTIONS = frozenset({"ReduceL2", "ReduceSum", "ReduceMean", "ReduceSumSquare"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
_MOST_NODES = 24


def heads_under(x: ir.Value) -> ir.Value | None:
    """The heads [B, M, N, d] that x is made of by nodes that work on each alone, or None."""
    leaves: dict[int, ir.Value] = {}
    seen: dict[int, ir.Node] = {}
    open_values = [x]
    while open_values:
        value = open_values.pop()
        node = value.producer()
        if node is None or not _is_head_wise(node):
            leaves[id(value)] = value
            continue
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if len(seen) > _MOST_NODES:
            return None
        for place, read in enumerate(node.inputs):
            if read is None or not _is_data(node, place):
                continue
            if constant(read) is None:
                open_values.append(read)
            elif _by_token(read) is None:
                return None
    if len(leaves) != 1 or not seen:
        return None
    (heads,) = leaves.values()
    return heads if heads.shape is not None and heads.shape == x.shape else None


def on_tokens_first(
    anchor: ir.Node,
    x: ir.Value,
    heads: ir.Value,
    tokens_first: ir.Value,
    add_constant: Callable[[str, np.ndarray], ir.Value],
) -> ir.Value:
    """The nodes between ``heads`` and x again, from ``tokens_first`` [B, N, M, d] on."""
    done: dict[int, ir.Value] = {id(heads): tokens_first}

    def again(value: ir.Value) -> ir.Value:
        if id(value) in done:
            return done[id(value)]
        array = constant(value)
        if array is not None:
            done[id(value)] = _moved_constant(value, add_constant)
            return done[id(value)]
        node = value.producer()
        if node is None:
            raise ValueError(f"{value.name} is made of nothing")
        if node.op_type == "Expand" and node.inputs[0] is not None:
            # What reads it broadcasts anyway.
            done[id(value)] = again(node.inputs[0])
            return done[id(value)]
        read = [
            v if v is None or not _is_data(node, k) else again(v) for k, v in enumerate(node.inputs)
        ]
        copied = ir.node(node.op_type, read, dict(node.attributes))
        insert_before(anchor, [copied])
        copied.outputs[0].type = value.type
        if value.shape is not None and len(value.shape) == 4:
            b, m, n, d = value.shape
            copied.outputs[0].shape = ir.Shape([b, n, m, d])
        done[id(value)] = copied.outputs[0]
        return done[id(value)]

    return again(x)


def _is_head_wise(node: ir.Node) -> bool:
    if node.domain != "" or len(node.outputs) != 1 or rank(node.outputs[0]) != 4:
        return False
    if node.op_type in _POINTWISE:
        return True
    if node.op_type == "Expand":
        # of the norm of each head, [B, M, N, 1]
        first, out = node.inputs[0], node.outputs[0]
        return (
            first is not None
            and first.shape is not None
            and out.shape is not None
            and len(first.shape) == 4
            and first.shape[:3] == out.shape[:3]
        )
    if node.op_type in _REDUCTIONS:
        axes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
        keeps = node.attributes.get_int("keepdims", 1) == 1
        return keeps and axes is not None and axes.reshape(-1).tolist() in ([-1], [3])
    return node.op_type in _NORMS and node.attributes.get_int("axis", -1) in (-1, 3)


def _is_data(node: ir.Node, place: int) -> bool:
    """Whether an input is indexed by head and token, and not a shape, axes or a norm's affine."""
    if node.op_type in ("Expand", *_REDUCTIONS, *_NORMS):
        return place == 0
    return True


def _by_token(value: ir.Value) -> np.ndarray | None:
    """A constant that broadcasts to [B, M, N, d], as it is for [B, N, M, d]; None if by token."""
    array = constant(value)
    if array is None or array.ndim > 4:
        return None
    if array.ndim < 2:
        return array
    full = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if full.shape[0] != 1 or full.shape[2] != 1:
        return None
    return np.ascontiguousarray(full.transpose(0, 2, 1, 3))


def _moved_constant(
    value: ir.Value, add_constant: Callable[[str, np.ndarray], ir.Value]
) -> ir.Value:
    array = _by_token(value)
    if array is None:
        raise ValueError(f"{value.name} differs by token")
    return value if array.ndim < 2 else add_constant(f"{value.name}.by_token", array)
