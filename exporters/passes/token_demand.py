"""Which values are wanted at all of their tokens, and which only at those that an output reads.

Norms, linear layers, activations, residual adds and the query of attention give a token from that
token alone; everything else needs all tokens of what it reads.
"""

from __future__ import annotations

import onnx_ir as ir

from exporters.passes.base import rank, static_dim

TOKEN_AXIS = 1
_UNARY = frozenset(
    {"Gelu", "Erf", "Relu", "Sigmoid", "Tanh", "Sqrt", "Neg", "Identity", "HardSwish", "Clip"}
)
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})

FULL, PART = "full", "part"
"""All tokens of a value are wanted, or only those that are read."""


def wanted_tokens(graph: ir.Graph, selects: set[int]) -> dict[int, str]:
    """For each value that is read: whether all of its tokens are wanted or only the span."""
    wanted: dict[int, str] = {id(v): FULL for v in graph.outputs}

    def ask(value: ir.Value | None, how: str) -> None:
        if value is not None and wanted.get(id(value)) != FULL:
            wanted[id(value)] = FULL if value.producer() is None else how

    for node in reversed(list(graph)):
        if id(node) in selects:
            ask(node.inputs[0], PART)
            continue
        asked = {wanted.get(id(v)) for v in node.outputs} - {None}
        if not asked:
            continue
        places = token_inputs(node) if asked == {PART} else ()
        if not places:  # the node computes all of its output, whoever wants it
            for value in node.outputs:
                ask(value, FULL)
        for place, read in enumerate(node.inputs):
            ask(read, PART if place in places else FULL)
    return wanted


def token_inputs(node: ir.Node) -> tuple[int, ...]:
    """Inputs of which a token of the output needs that token alone; empty when it needs more."""
    if len(node.outputs) != 1 or rank(node.outputs[0]) not in (3, None):
        return ()
    first = node.inputs[0] if node.inputs else None
    if node.op_type in _NORMS:
        last = node.attributes.get_int("axis", -1) in (-1, 2)
        return (0,) if last and rank(first) == 3 else ()
    if node.op_type in _UNARY:
        return (0,) if rank(first) == 3 else ()
    if node.op_type == "MatMul":
        return (0,) if rank(first) == 3 and rank(node.inputs[1]) == 2 else ()
    if node.op_type == "MultiHeadAttention":
        return (0,) if rank(node.outputs[0]) == 3 else ()
    if node.op_type in _BINARY:
        return _token_operands(node)
    return ()


def _token_operands(node: ir.Node) -> tuple[int, ...]:
    """Operands of an elementwise node that have a token axis; empty when one is unclear."""
    found = []
    for place, value in enumerate(node.inputs):
        size = rank(value)
        if size is None or size == 2 or size > 3:
            return ()
        if size == 3 and static_dim(value, TOKEN_AXIS) != 1:
            found.append(place)
    return tuple(found)


def is_partial(node: ir.Node, wanted: dict[int, str]) -> bool:
    """Whether a node has to compute no token but those that are read."""
    return {wanted.get(id(v)) for v in node.outputs} - {None} == {PART} and bool(token_inputs(node))
