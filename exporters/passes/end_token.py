"""Do not compute tokens when the one that is read is found by a computed index.

A text tower reads the token at the end of each text: ``x[b, end[b]]``, a GatherElements along the
tokens whose index comes from the token ids. That Gather goes up through the final norm, MLP and
residual adds into the query of the last attention, as :mod:`exporters.passes.unread_tokens` does it
with constant indices; a causal bias is read at the row of that token.

Left alone: outputs that read other tokens as well, and a bias that differs by text.
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
    new_initializer,
    rank,
    remove_dead,
    replace_value,
    static_dim,
)
from exporters.passes.token_demand import (
    FULL,
    TOKEN_AXIS,
    is_partial,
    token_inputs,
    wanted_tokens,
)


class EndToken(GraphPass):
    """Cut the last block down to the token that a computed index reads."""

    name: ClassVar[str] = "end-token"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Find the read token, the values wanted only there, and cut."""
        outcome = PassOutcome()
        graph = model.graph
        reads = [node for node in graph if _reads_one_token(node)]
        if not reads:
            return outcome
        (first, *others) = reads
        if any(other.inputs[1] is not first.inputs[1] for other in others):
            outcome.refuse(others[0], "tokens at several computed indices are read")
            return outcome
        wanted = wanted_tokens(graph, {id(node) for node in reads})
        partial = [node for node in graph if is_partial(node, wanted)]
        attention = [node for node in partial if node.op_type == "MultiHeadAttention"]
        if not attention:
            outcome.refuse(first, "another output reads all tokens, or no fused attention is near")
            return outcome
        for node in attention:
            bias = node.inputs[5] if len(node.inputs) > 5 else None
            if bias is not None and (rank(bias) != 4 or static_dim(bias, 0) != 1):
                outcome.refuse(node, f"a bias of {bias.shape} differs by text")
                return outcome
        _Cutter(graph, first, wanted).cut(partial, reads)
        outcome.changed = len(attention)
        return outcome


def _reads_one_token(node: ir.Node) -> bool:
    """GatherElements of [B, 1, D] from [B, N, D], all channels at one computed index."""
    if node.op_type != "GatherElements" or rank(node.inputs[0]) != 3:
        return False
    index = node.inputs[1]
    if node.attributes.get_int("axis", 0) != TOKEN_AXIS or constant(index) is not None:
        return False
    spread = None if index is None else index.producer()
    if spread is None or spread.op_type != "Expand" or static_dim(index, TOKEN_AXIS) != 1:
        return False
    one = spread.inputs[0]
    width = static_dim(node.inputs[0], 2)
    return rank(one) == 3 and static_dim(one, 2) == 1 and width == static_dim(index, 2)


class _Cutter:
    """Reads one token at the border between all tokens and that one."""

    def __init__(self, graph: ir.Graph, read: ir.Node, wanted: dict[int, str]) -> None:
        self._graph = graph
        index = read.inputs[1]
        spread = None if index is None else index.producer()
        if index is None or spread is None or spread.inputs[0] is None:
            raise ValueError(f"{read.name} has no computed index")
        self._index = index  # [B, 1, D]
        self._place = spread.inputs[0]  # [B, 1, 1]
        self._width = static_dim(index, 2)
        self._wanted = wanted
        self._cut: dict[int, ir.Value] = {}

    def cut(self, partial: list[ir.Node], reads: list[ir.Node]) -> None:
        """Let ``partial`` nodes read cut values, and readers of the token the result itself."""
        for node in partial:
            for place in token_inputs(node):
                value = node.inputs[place]
                if value is not None and self._wanted.get(id(value)) == FULL:
                    node.replace_input_with(place, self._token(node, value))
            if node.op_type == "MultiHeadAttention" and len(node.inputs) > 5:
                self._cut_bias(node)
        for node in partial:
            for value in node.outputs:
                # block:k is a name for all tokens of a block
                value.name = f"{value.name}_end"
                if value.shape is not None:
                    value.shape = ir.Shape([value.shape[0], 1, value.shape[2]])
        for node in reads:
            value = node.inputs[0]
            if value is not None and self._wanted.get(id(value)) != FULL:
                replace_value(node.outputs[0], value)
        remove_dead(self._graph)
        # The index is made after the encoder that now needs it in its last block.
        self._graph.sort()

    def _token(self, anchor: ir.Node, value: ir.Value) -> ir.Value:
        """[B, N, D] -> [B, 1, D]."""
        if id(value) not in self._cut:
            index = self._index
            width = static_dim(value, 2)
            if width != self._width:
                like = None if width is None else self._spread(anchor, width)
                index = self._index if like is None else like
            node = ir.node("GatherElements", [value, index], {"axis": TOKEN_AXIS})
            insert_before(anchor, [node])
            out = node.outputs[0]
            out.type = value.type
            if value.shape is not None:
                out.shape = ir.Shape([value.shape[0], 1, value.shape[2]])
            self._cut[id(value)] = out
        return self._cut[id(value)]

    def _spread(self, anchor: ir.Node, width: int) -> ir.Value:
        """The index for another number of channels."""
        shape = new_initializer(self._graph, "end_shape", np.array([1, 1, width], dtype=np.int64))
        node = ir.node("Expand", [self._place, shape])
        insert_before(anchor, [node])
        node.outputs[0].type = self._place.type
        return node.outputs[0]

    def _cut_bias(self, node: ir.Node) -> None:
        """[1, M, N, N] -> [B, M, 1, N]: rows at the indices of the batch."""
        bias = node.inputs[5]
        if bias is None:
            return
        flat = new_initializer(self._graph, "end_flat", np.array([-1], dtype=np.int64))
        places = ir.node("Reshape", [self._place, flat])  # [B]
        rows = ir.node("Gather", [bias, places.outputs[0]], {"axis": 2})  # [1, M, B, N]
        turned = ir.node("Transpose", [rows.outputs[0]], {"perm": [2, 1, 0, 3]})
        insert_before(node, [places, rows, turned])
        places.outputs[0].type = self._place.type
        for made in (rows, turned):
            made.outputs[0].type = bias.type
        node.replace_input_with(5, turned.outputs[0])
