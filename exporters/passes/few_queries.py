"""Attention of few queries without projecting all keys and values.

Where unread tokens leave one query of N (a class token, the end of a text), most of what is left of
the last block projects N keys and N values for it. Both projections commute with attention:

* ``q . (W_k x_j + b_k)`` is ``(W_k^T q) . x_j`` plus what is the same for every j, which the
  softmax cancels: the query goes through the key weights, head by head;
* ``sum_j p_j (W_v x_j + b_v)`` is ``W_v (sum_j p_j x_j) + b_v``, because weights sum to one: the
  value weights are applied to one weighted sum of tokens per head.

So [N, D] times two weights [D, D] becomes the tokens times M rows of queries, twice: attention of
one head with M times as many queries, over tokens that are not projected. Left alone:
rotated or normalised keys (no linear layer makes them), keys or values that others read, and as
many queries as make it dearer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    Linear,
    PassContext,
    PassOutcome,
    insert_before,
    linear_of,
    new_initializer,
    remove_dead,
    replace_value,
    static_dim,
)

_BIAS = 5
_WORTH = 4
"""Rows of queries over all heads, at most this part of the embedding width."""


@dataclass(frozen=True, slots=True)
class _Found:
    """One fused attention of few queries.

    Attributes:
        keys: the layer that makes keys [B, N, D] of x [B, N, D_x].
        values: the layer that makes values of the same x.
        heads: M.
        queries: T.
    """

    keys: Linear
    values: Linear
    heads: int
    queries: int


class FewQueries(GraphPass):
    """Queries go through the key weights, weighted sums of tokens through the value weights."""

    name: ClassVar[str] = "few-queries"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Rewrite every fused attention with few queries and more keys."""
        outcome = PassOutcome()
        graph = model.graph
        for node in list(graph):
            if node.op_type != "MultiHeadAttention" or not _has_fewer_queries(node):
                continue
            found = _found(node)
            if isinstance(found, str):
                outcome.refuse(node, found)
                continue
            _Writer(graph, node, found).write()
            outcome.changed += 1
        remove_dead(graph)
        return outcome


def _has_fewer_queries(node: ir.Node) -> bool:
    queries, keys = (static_dim(node.inputs[k], 1) for k in (0, 1))
    return queries is not None and queries != keys


def _found(node: ir.Node) -> _Found | str:
    """What the rewriting needs, or why it cannot be."""
    query, key, value = node.inputs[:3]
    width = static_dim(query, 2)
    heads = node.attributes["num_heads"].as_int()
    queries = static_dim(query, 1)
    if key is None or value is None or width is None or queries is None:
        return "the width of its queries is not known"
    if queries * heads * _WORTH > width:
        return f"{queries} queries of {heads} heads are not few for {width} channels"
    if any(v is not None for v in (*node.inputs[3:_BIAS], *node.inputs[_BIAS + 1 :])):
        return "it has a mask or a past beside its bias"
    keys, values = linear_of(key), linear_of(value)
    if keys is None or values is None:
        return "its keys or values are not made by a linear layer"
    if keys.source is not values.source:
        return "its keys and values are made of different tokens"
    for v in (key, value):
        if len(v.uses()) != 1 or v.is_graph_output():
            return f"{v.name} is also read by others"
    if keys.weight.shape[1] != width or values.weight.shape[1] != width:
        return f"its values have {values.weight.shape[1]} channels, its queries {width}"
    return _Found(keys, values, heads, queries)


class _Writer:
    """Writes the nodes that take the place of one attention."""

    def __init__(self, graph: ir.Graph, node: ir.Node, found: _Found) -> None:
        self._graph = graph
        self._node = node
        self._found = found

    def write(self) -> None:
        """M heads of d channels, T queries, N tokens x of D_x channels."""
        node, found = self._node, self._found
        heads, queries = found.heads, found.queries
        inner, width = found.keys.weight.shape  # D_x, D
        head_dim = width // heads
        scale = node.attributes.get("scale")
        factor = (0.0 if scale is None else scale.as_float()) or head_dim**-0.5
        by_head = found.keys.weight.reshape(inner, heads, head_dim)
        key_weight = by_head.transpose(1, 2, 0) * by_head.dtype.type(factor)  # [M, d, D_x]
        value_weight = found.values.weight.reshape(inner, heads, head_dim).transpose(1, 0, 2)
        x = found.keys.source
        query = node.inputs[0]
        if query is None:
            raise ValueError(f"{node.name} has no query")
        if queries == 1:
            split = self._reshape(query, 0, heads, 1, head_dim)
        else:
            split = self._turn(self._reshape(query, 0, 0, heads, head_dim), 0, 2, 1, 3)
        through = self._make("MatMul", split, self._weight("keys", key_weight))  # [B, M, T, D_x]
        rows = self._reshape(through, 0, heads * queries, inner)
        batch = None if query.shape is None else query.shape[0]
        rows.shape = ir.Shape([batch, heads * queries, inner])
        sums = self._fused([rows, x, x, *self._bias()])  # [B, M T, D_x]
        apart = self._reshape(sums, 0, heads, queries, inner)
        out = self._make("MatMul", apart, self._weight("values", value_weight))  # [B, M, T, d]
        if queries > 1:
            out = self._turn(out, 0, 2, 1, 3)
        joined = self._reshape(out, 0, queries, width)
        if found.values.bias is not None:
            joined = self._make("Add", joined, self._weight("values_bias", found.values.bias))
        old = node.outputs[0]
        joined.shape, joined.type = old.shape, old.type
        replace_value(old, joined)
        self._graph.remove(node, safe=True)

    def _bias(self) -> list[ir.Value | None]:
        """The bias [1|B, 1|M, T, N] as [1|B, 1, M T, N], where there is one."""
        bias = self._node.inputs[_BIAS] if len(self._node.inputs) > _BIAS else None
        if bias is None:
            return []
        heads, queries = self._found.heads, self._found.queries
        every = np.array([1, heads, queries, 1], dtype=np.int64)
        shape = new_initializer(self._graph, "bias_of_heads", every)
        of_heads = self._make("Expand", bias, shape)
        return [None, None, self._reshape(of_heads, 0, 1, heads * queries, -1)]

    def _fused(self, inputs: list[ir.Value | None]) -> ir.Value:
        """All heads as queries of one head: the tokens are keys and values as they are."""
        node = ir.node(
            "MultiHeadAttention",
            inputs,
            {"num_heads": 1, "scale": 1.0},
            domain=self._node.domain,
            name=f"{self._node.name or 'attention'}_few_queries",
        )
        insert_before(self._node, [node])
        node.outputs[0].type = self._node.outputs[0].type
        return node.outputs[0]

    def _weight(self, role: str, array: np.ndarray) -> ir.Value:
        name = f"{self._found.keys.weight_value.name}.{role}"
        return new_initializer(self._graph, name, np.ascontiguousarray(array))

    def _reshape(self, value: ir.Value, *shape: int) -> ir.Value:
        label = "_".join(str(n).replace("-", "m") for n in shape)
        array = np.array(shape, dtype=np.int64)
        return self._make("Reshape", value, new_initializer(self._graph, f"shape_{label}", array))

    def _turn(self, value: ir.Value, *perm: int) -> ir.Value:
        return self._make("Transpose", value, perm=list(perm))

    def _make(self, operator: str, *inputs: ir.Value, **attributes: int | list[int]) -> ir.Value:
        node = ir.node(operator, inputs, attributes)
        insert_before(self._node, [node])
        node.outputs[0].type = inputs[0].type
        return node.outputs[0]
