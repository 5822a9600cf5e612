"""Attention that a model computes by hand becomes the explicit node that traced attention is.

What is read, from the last product backwards: ``softmax(logits) @ v`` with the softmax over keys,
where logits are ``q @ k^T`` after any of

* case 1, factors: one number, on q, on k, on the product, or on product and bias together; or a
  factor per head as SwinV2's cosine attention has it, which goes to the query;
* case 2, biases: whatever is added to the product, of rank 4 or less;
* case 3, masks of windows: [1, W, 1, N, N] added to the product as [B, W, M, N, N] (Swin).

The transposed key is undone where it was made. :mod:`exporters.passes.attention` then spells the
node for the target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    rank,
    remove_dead,
    replace_value,
    static_shape,
)
from exporters.trace import ATTENTION_DOMAIN, ATTENTION_OP


class _LeftAloneError(Exception):
    """Why a candidate stays as it is."""


@dataclass(slots=True)
class _Logits:
    """What stands between the product of queries and keys and the softmax.

    Attributes:
        product: the MatMul.
        scale: product of the factors that are numbers.
        head_scale: a factor per head [M, 1, 1], or None.
        biases: added terms of rank 4, each with the number that it is multiplied by.
    """

    product: ir.Node
    scale: float = 1.0
    head_scale: ir.Value | None = None
    biases: list[tuple[ir.Value, float]] = field(default_factory=list)


class HandAttention(GraphPass):
    """MatMul, Softmax, MatMul and what lies between become one attention node."""

    name: ClassVar[str] = "hand-attention"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Replace every product with a softmax over keys."""
        outcome = PassOutcome()
        writer = _Writer(model.graph)
        for node in list(model.graph):
            if node.op_type != "MatMul" or node.domain != "":
                continue
            weights = node.inputs[0]
            softmax = None if weights is None else weights.producer()
            if softmax is None or softmax.op_type != "Softmax":
                continue
            try:
                writer.write(node, softmax)
            except _LeftAloneError as reason:
                outcome.refuse(node, str(reason))
                continue
            outcome.changed += 1
        if outcome.changed:
            model.opset_imports[ATTENTION_DOMAIN] = 1
            remove_dead(model.graph)
        return outcome


class _Writer:
    """Writes attention nodes into one graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._anchor: ir.Node

    def write(self, last: ir.Node, softmax: ir.Node) -> None:
        """``last`` is the product of weights and values; refusals come before any change."""
        self._anchor = last
        out, weights, value = last.outputs[0], softmax.outputs[0], last.inputs[1]
        if value is None or rank(out) != 4:
            raise _LeftAloneError(f"its result has rank {rank(out)}, not [B, M, N, D/M]")
        if softmax.attributes.get_int("axis", -1) not in (-1, 3):
            raise _LeftAloneError("its softmax is not over the last axis")
        if len(weights.uses()) != 1 or weights.is_graph_output():
            raise _LeftAloneError("the attention weights are also read by themselves")
        logits = _logits_of(softmax.inputs[0])
        query, key, keys_turned, scale = _operands(logits)
        _check_shapes(query, keys_turned, value, out)
        for bias, _ in logits.biases:
            _check_bias(bias, out, keys_turned)
        if logits.head_scale is not None:
            query = self._node("Mul", [query, logits.head_scale], query.shape)
        parts = [query, self._turned_back(key, keys_turned), value]
        summed = self._sum(logits.biases)
        node = ir.node(
            ATTENTION_OP,
            [*parts, *([] if summed is None else [summed])],
            {"scale": logits.scale * scale},
            domain=ATTENTION_DOMAIN,
            name=f"{last.name}_attention",
        )
        insert_before(last, [node])
        result = node.outputs[0]
        result.type, result.shape = out.type, out.shape
        replace_value(out, result)
        self._graph.remove(last, safe=True)

    def _turned_back(self, key: ir.Value, turned: ir.Value) -> ir.Value:
        """Keys [..., N, d] of which the product read [..., d, N]."""
        made = turned.producer()
        perm = None if made is None else ints(made, "perm")
        if made is None or perm is None:
            raise ValueError(f"{turned.name} was not made by a Transpose")
        back = (*perm[:-2], perm[-1], perm[-2])
        if back == tuple(range(len(perm))):
            return key
        shape = turned.shape
        swapped = None if shape is None else ir.Shape([*shape[:-2], shape[-1], shape[-2]])
        return self._node("Transpose", [key], swapped, perm=list(back))

    def _sum(self, biases: list[tuple[ir.Value, float]]) -> ir.Value | None:
        """All biases as one of rank 4."""
        total: ir.Value | None = None
        for bias, factor in biases:
            term = bias
            if factor != 1.0:
                number = new_initializer(
                    self._graph, "bias_factor", np.array(factor, dtype=np.float32)
                )
                term = self._node("Mul", [term, number], term.shape)
            size = rank(term)
            if size == 5:
                term = self._windows(term)
            elif size is not None and size < 4:
                axes = self._ints("bias_axes", *range(4 - size))
                grown = None if term.shape is None else ir.Shape([1] * (4 - size) + [*term.shape])
                term = self._node("Unsqueeze", [term, axes], grown)
            total = term if total is None else self._node("Add", [total, term], _wider(total, term))
        return total

    def _windows(self, mask: ir.Value) -> ir.Value:
        """Case 3: [1, W, 1, N, N] -> [W, 1, N, N]."""
        shape = static_shape(mask)
        if shape is None:
            raise ValueError(f"{mask.name} has no static shape")
        axis = self._ints("window_batch", 0)
        return self._node("Squeeze", [mask, axis], ir.Shape(shape[1:]))

    def _ints(self, name: str, *numbers: int) -> ir.Value:
        return new_initializer(self._graph, name, np.array(numbers, dtype=np.int64))

    def _node(
        self, operator: str, inputs: list[ir.Value], shape: ir.Shape | None, **attributes: list[int]
    ) -> ir.Value:
        node = ir.node(operator, inputs, attributes)
        insert_before(self._anchor, [node])
        out = node.outputs[0]
        out.type, out.shape = inputs[0].type, shape
        return out


def _logits_of(value: ir.Value | None) -> _Logits:
    """Walk from the softmax to the product. Raises _LeftAloneError with what is in the way."""
    scale, head_scale = 1.0, None
    biases: list[tuple[ir.Value, float]] = []
    windows: tuple[int, ...] | None = None
    while True:
        node = None if value is None else value.producer()
        if value is None or node is None:
            raise _LeftAloneError("no product of queries and keys stands before its softmax")
        if len(value.uses()) != 1 or value.is_graph_output():
            raise _LeftAloneError(f"{value.name} before the softmax is also read by others")
        if node.op_type == "MatMul" and node.domain == "":
            if windows is not None:
                raise _LeftAloneError("windows are taken apart after the mask, not before it")
            return _Logits(node, scale, head_scale, biases)
        if node.op_type == "Identity":
            value = node.inputs[0]
        elif node.op_type == "Reshape":
            windows = _other_windows(node, windows)
            value = node.inputs[0]
        elif node.op_type in ("Mul", "Div") and (number := _number(node)) is not None:
            factor, value = number
            scale *= factor
        elif node.op_type == "Mul" and (found := _head_factor(node)) is not None:
            if head_scale is not None:
                raise _LeftAloneError("two factors per head")
            head_scale, value = found
        elif node.op_type == "Add":
            bias, value = _bias(node)
            if head_scale is not None:
                raise _LeftAloneError("a factor per head multiplies the bias as well")
            if rank(bias) == 5 and (windows is None or windows[0] != 1):
                raise _LeftAloneError(f"a mask of windows for a batch of {windows and windows[0]}")
            biases.append((bias, scale))
        else:
            raise _LeftAloneError(f"{node.op_type} stands between the product and the softmax")


def _other_windows(node: ir.Node, windows: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Case 3, backwards: into [B, W, M, N, N], and out of it again."""
    before = None if node.inputs[0] is None else static_shape(node.inputs[0])
    after = static_shape(node.outputs[0])
    if before is None or after is None:
        raise _LeftAloneError(f"sizes are symbolic: {node.outputs[0].shape}")
    if windows is None and len(before) == 5 and before[2:] == after[1:]:
        return before
    if windows is not None and after == windows and len(before) == 4 and before[1:] == after[2:]:
        return None
    raise _LeftAloneError(f"logits are reshaped from {list(before)} to {list(after)}")


def _number(node: ir.Node) -> tuple[float, ir.Value | None] | None:
    """A factor that is one number, and what it multiplies."""
    for place in (1, 0) if node.op_type == "Mul" else (1,):
        array = constant(node.inputs[place])
        if array is not None and array.size == 1:
            number = float(array.reshape(-1)[0])
            return (number if node.op_type == "Mul" else 1 / number), node.inputs[1 - place]
    return None


def _head_factor(node: ir.Node) -> tuple[ir.Value, ir.Value | None] | None:
    """Case 1: a factor [M, 1, 1] or [1, M, 1, 1], computed or constant."""
    for place in (1, 0):
        factor = node.inputs[place]
        if factor is None or factor.shape is None or len(factor.shape) not in (3, 4):
            continue
        if factor.shape[-2:] == (1, 1) and (len(factor.shape) == 3 or factor.shape[0] == 1):
            return factor, node.inputs[1 - place]
    return None


def _bias(node: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """Case 2: the added term, and the sum it is added to."""
    for place in (0, 1):
        inner, bias = node.inputs[place], node.inputs[1 - place]
        if inner is not None and bias is not None and _comes_from_product(inner):
            return bias, inner
    raise _LeftAloneError("neither term before the softmax is a product of queries and keys")


def _comes_from_product(value: ir.Value) -> bool:
    """Whether a chain of what the walk passes leads to a product of two computed values."""
    for _ in range(12):
        node = value.producer()
        if node is None:
            return False
        if node.op_type == "MatMul":
            return constant(node.inputs[1]) is None and constant(node.inputs[0]) is None
        if node.op_type not in ("Mul", "Div", "Add", "Reshape", "Identity"):
            return False
        following = [
            v for v in node.inputs[: 1 if node.op_type == "Reshape" else 2] if v is not None
        ]
        computed = [v for v in following if constant(v) is None and _comes_from_product(v)]
        if not computed:
            return False
        value = computed[0]
    return False


def _operands(logits: _Logits) -> tuple[ir.Value, ir.Value, ir.Value, float]:
    """Query, what the key is a Transpose of, that Transpose's result, and the factors on both."""
    scale = 1.0
    found = []
    for value in logits.product.inputs:
        while True:
            node = None if value is None else value.producer()
            number = None
            if node is not None and node.op_type in ("Mul", "Div"):
                number = _number(node)
            if number is None:
                break
            scale *= number[0]
            value = number[1]
        found.append(value)
    query, turned = found
    made = None if turned is None else turned.producer()
    perm = None if made is None or made.op_type != "Transpose" else ints(made, "perm")
    if query is None or turned is None or made is None or perm is None or made.inputs[0] is None:
        raise _LeftAloneError("its keys are not made by a Transpose")
    key = made.inputs[0]
    # torch.onnx puts the factor of the key before its Transpose as well
    while (inner := key.producer()) is not None and inner.op_type in ("Mul", "Div"):
        number = _number(inner)
        if number is None or number[1] is None:
            break
        scale *= number[0]
        key = number[1]
    return query, key, turned, scale


def _check_shapes(query: ir.Value, turned: ir.Value, value: ir.Value, out: ir.Value) -> None:
    """Attention takes equal leading dimensions, and as many channels in values as in queries."""
    shapes = [v.shape for v in (query, turned, value, out)]
    q, k, v, o = shapes
    if q is None or k is None or v is None or o is None:
        raise _LeftAloneError("a shape is not known")
    if not len(q) == len(k) == len(v) == len(o):
        raise _LeftAloneError(f"ranks differ: {q}, {k}, {v}")
    if q[:-2] != k[:-2] or q[:-2] != v[:-2]:
        raise _LeftAloneError(
            f"queries {q}, transposed keys {k} and values {v} differ before tokens"
        )
    if q[-1] != v[-1]:
        raise _LeftAloneError(f"heads have {q[-1]} channels in queries, {v[-1]} in values")


def _check_bias(bias: ir.Value, out: ir.Value, turned: ir.Value) -> None:
    """Fused kernels do not broadcast a bias along queries or keys."""
    shape, tokens, keys = bias.shape, out.shape, turned.shape
    if shape is None or tokens is None or keys is None or len(shape) < 2:
        raise _LeftAloneError(f"a bias of shape {shape}")
    if shape[-2:] != (tokens[2], keys[3]):
        raise _LeftAloneError(f"a bias of {shape} for {tokens[2]} queries and {keys[3]} keys")
    if len(shape) == 4 and (shape[0] not in (1, tokens[0]) or shape[1] not in (1, tokens[1])):
        raise _LeftAloneError(f"a bias of {shape} for attention of {tokens}")


def _wider(one: ir.Value, other: ir.Value) -> ir.Shape | None:
    """The shape of a sum of two values of rank 4."""
    if one.shape is None or other.shape is None:
        return None
    return ir.Shape([b if a == 1 else a for a, b in zip(one.shape, other.shape, strict=True)])
