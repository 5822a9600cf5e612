"""Attention spelled by MatMul, Softmax, MatMul becomes the explicit node that a trace gives.

What is recognised, with d the width of a head and every value read by the next node alone:

    logits = (q [* scale]) @ transposed(k) [+ bias]      q [B, M, N, d], k [B, M, S, d]
    out    = (softmax(logits, last axis) [+ 1e-30]) @ v  v [B, M, S, d]

``k`` may come forward and be transposed in one go. The bias has four dimensions and is added to
nothing else. From here on the passes spell the node as they do after a trace.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from exporters.passes.base import (
    constant,
    insert_before,
    ints,
    only_reader,
    rank,
    remove_dead,
    replace_value,
    same_dims,
    static_dim,
)
from exporters.passes.masked_attention import LIFT
from exporters.simplify import attach_weights, detach_weights
from exporters.trace import ATTENTION_DOMAIN, ATTENTION_OP

_HEADS_FIRST = [0, 2, 1, 3]
_KEYS_TURNED = (0, 2, 3, 1)
_LAST_TWO = (0, 1, 3, 2)


def with_shapes(model: ir.Model) -> ir.Model:
    """The same graph with the shapes of inner values, which finished files do not carry."""
    weights = detach_weights(model.graph)
    try:
        proto = ir.to_proto(model)
    finally:
        attach_weights(model.graph, weights)
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))
    attach_weights(inferred.graph, weights)
    pairs = (
        *zip(model.graph.inputs, inferred.graph.inputs, strict=True),
        *zip(model.graph.outputs, inferred.graph.outputs, strict=True),
    )
    for old, new in pairs:
        new.shape, new.type = old.shape, old.type
    _name_copied_dims(inferred.graph)
    return inferred


def _name_copied_dims(graph: ir.Graph) -> None:
    """Names for unknown dimensions that Reshape (as 0) and Transpose only hand on.

    onnx infers that they are there and not that they are equal, which is what passes ask.
    """
    count = 0
    for node in graph:
        x, out = node.inputs[0] if node.inputs else None, node.outputs[0]
        copied = _copied(node)
        if x is None or x.shape is None or out.shape is None or not copied:
            continue
        before, after = list(x.shape), list(out.shape)
        for axis, source in copied.items():
            if source >= len(before) or axis >= len(after):
                continue
            dim = before[source]
            if not isinstance(dim, int) and dim.value is None:
                before[source] = dim = ir.SymbolicDim(f"copied_{count}")
                count += 1
            after[axis] = dim
        x.shape, out.shape = ir.Shape(before), ir.Shape(after)


def _copied(node: ir.Node) -> dict[int, int]:
    """Axes of the output that are an axis of the input."""
    if node.op_type == "Transpose":
        return dict(enumerate(ints(node, "perm") or ()))
    target = constant(node.inputs[1]) if node.op_type == "Reshape" else None
    numbers = [] if target is None else target.reshape(-1).tolist()
    return {axis: axis for axis, number in enumerate(numbers) if number == 0}


def recognise(model: ir.Model) -> int:
    """Make attention explicit, in place; shapes must be known. Gives how many nodes."""
    graph = model.graph
    found = 0
    for node in list(graph):
        if node.op_type == "Softmax" and node.domain == "" and _explicit(node):
            found += 1
    if found:
        model.opset_imports[ATTENTION_DOMAIN] = 1
    remove_dead(graph)
    return found


def _explicit(softmax: ir.Node) -> bool:
    """Replace the attention around a Softmax. Gives whether it was one."""
    axis = softmax.attributes.get_int("axis", -1)
    mix = only_reader(_lifted(softmax.outputs[0]), "MatMul")
    if rank(softmax.outputs[0]) != 4 or axis not in (-1, 3) or mix is None:
        return False
    logits, bias = _without_bias(softmax.inputs[0])
    product = None if logits is None else _only(logits, "MatMul")
    if product is None or product.inputs[0] is None or product.inputs[1] is None:
        return False
    query, scale = _without_scale(product.inputs[0])
    key = _key(product.inputs[1], product)
    value = mix.inputs[1]
    if key is None or value is None or static_dim(query, 1) is None:
        return False
    operands = [query, key, value] + ([] if bias is None else [bias])
    node = ir.node(
        ATTENTION_OP,
        operands,
        {"scale": scale},
        domain=ATTENTION_DOMAIN,
        name=f"{mix.outputs[0].name}_attention",
    )
    insert_before(mix, [node])
    old, new = mix.outputs[0], node.outputs[0]
    new.shape, new.type = old.shape, old.type
    name = old.name
    replace_value(old, new)
    if mix.graph is not None:
        mix.graph.remove(mix, safe=True)
    old.name, new.name = f"{name}_plain", name
    return True


def _lifted(weights: ir.Value) -> ir.Value:
    """Weights with what the pass ``masked-attention`` adds to them, where it did."""
    lift = only_reader(weights, "Add")
    number = None if lift is None else constant(lift.inputs[1])
    lifts = (
        number is not None and number.size == 1 and 0 < number.reshape(-1)[0] <= np.float32(LIFT)
    )
    return lift.outputs[0] if lift is not None and lifts else weights


def _only(value: ir.Value, kind: str) -> ir.Node | None:
    """What makes a value, when it is of a kind and nothing else reads the value."""
    node = value.producer()
    if node is None or node.op_type != kind or len(value.uses()) != 1 or value.is_graph_output():
        return None
    return node


def _without_bias(logits: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """The product, and what is added to it: [1|B, 1|M, N, S], nothing to broadcast at the end."""
    add = None if logits is None else _only(logits, "Add")
    if logits is None or add is None:
        return logits, None
    for place in (0, 1):
        product, bias = add.inputs[place], add.inputs[1 - place]
        if product is None or bias is None or _only(product, "MatMul") is None:
            continue
        if rank(bias) == 4 and same_dims(bias, (2, 3), logits, (2, 3)):
            return product, bias
    return logits, None


def _without_scale(query: ir.Value) -> tuple[ir.Value, float]:
    scaled = _only(query, "Mul")
    for place in (0, 1) if scaled is not None else ():
        inner = scaled.inputs[1 - place] if scaled is not None else None
        number = constant(scaled.inputs[place]) if scaled is not None else None
        if inner is not None and number is not None and number.size == 1:
            return inner, float(np.float32(number.reshape(-1)[0]))
    return query, 1.0


def _key(turned: ir.Value, product: ir.Node) -> ir.Value | None:
    """[B, M, S, d] before it was transposed for the product."""
    node = turned.producer()
    if node is None or node.op_type != "Transpose" or node.inputs[0] is None:
        return None
    order = ints(node, "perm")
    if order == _LAST_TWO:
        return node.inputs[0]
    if order != _KEYS_TURNED:
        return None
    forward = ir.node("Transpose", [node.inputs[0]], {"perm": _HEADS_FIRST})
    insert_before(product, [forward])
    key = forward.outputs[0]
    key.type = turned.type
    if turned.shape is not None:
        key.shape = ir.Shape([turned.shape[k] for k in (0, 1, 3, 2)])
    return key
