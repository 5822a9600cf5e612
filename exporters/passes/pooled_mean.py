"""Mean-pooled heads: the mean goes before the last linear layer.

The mean over tokens commutes with residual adds and with linear layers, so that where no norm
stands between, the last layer of the last MLP works on one token: ``mean(x + h @ W + b)`` is
``mean(x) + mean(h) @ W + b``. Cases: the mean may leave prefix tokens out by a Slice before it
(case 1), keep the reduced axis or not (case 2), and the branch may have a bias or not (case 3).
"""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    constant,
    insert_before,
    linear_of,
    rank,
    remove_dead,
    replace_value,
)


class PooledMean(GraphPass):
    """Reduce over tokens before the last linear layer."""

    name: ClassVar[str] = "pooled-mean"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Move every mean over tokens through the residual add and linear layer before it."""
        outcome = PassOutcome()
        graph = model.graph
        for mean in list(graph):
            if not _is_token_mean(mean):
                continue
            chain = [mean]
            source = mean.inputs[0]
            cut = None if source is None else source.producer()
            if cut is not None and cut.op_type == "Slice" and _cuts_tokens(cut):
                if source is None or len(source.uses()) != 1 or source.is_graph_output():
                    outcome.refuse(mean, "the tokens are also read one by one")
                    continue
                chain.insert(0, cut)
                source = cut.inputs[0]
            if source is None:
                continue
            reason = _move(source, chain)
            if reason:
                outcome.refuse(mean, reason)
            else:
                outcome.changed += 1
        remove_dead(graph)
        return outcome


def _is_token_mean(node: ir.Node) -> bool:
    if node.op_type != "ReduceMean" or rank(node.inputs[0]) != 3:
        return False
    axes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return axes is not None and axes.reshape(-1).tolist() in ([1], [-2])


def _cuts_tokens(node: ir.Node) -> bool:
    numbers = [constant(v) for v in node.inputs[1:]]
    return (
        rank(node.inputs[0]) == 3
        and len(numbers) >= 3
        and all(n is not None for n in numbers)
        and numbers[2] is not None
        and numbers[2].reshape(-1).tolist() in ([1], [-2])
    )


def _move(source: ir.Value, chain: list[ir.Node]) -> str | None:
    """Pool both terms of ``source`` apart. Gives the reason when that cannot be."""
    add = source.producer()
    if len(source.uses()) != 1 or source.is_graph_output():
        return "another output reads all tokens"
    if add is None or add.op_type != "Add":
        return f"{'an input' if add is None else add.op_type} stands before the mean"
    branches = [k for k in (1, 0) if _is_branch(add.inputs[k], add.inputs[1 - k])]
    if not branches:
        return "neither term of the residual add is a linear layer that it alone reads"
    branch, other = add.inputs[branches[0]], add.inputs[1 - branches[0]]
    linear = None if branch is None else linear_of(branch)
    if linear is None or other is None:
        return "neither term of the residual add is a linear layer that it alone reads"
    anchor = chain[0]
    pooled = _pool(anchor, chain, linear.source)
    product = ir.node("MatMul", [pooled, linear.product.inputs[1]])
    nodes = [product]
    if linear.last is not linear.product:
        bias = linear.last.inputs[linear.bias_place]
        nodes.append(ir.node("Add", [product.outputs[0], bias]))
    insert_before(anchor, nodes)
    rest = _pool(anchor, chain, other)
    total = ir.node("Add", [rest, nodes[-1].outputs[0]])
    insert_before(anchor, [total])
    result = chain[-1].outputs[0]
    for node in (*nodes, total):
        node.outputs[0].type, node.outputs[0].shape = result.type, result.shape
    replace_value(result, total.outputs[0])
    return None


def _is_branch(value: ir.Value | None, other: ir.Value | None) -> bool:
    if value is None or rank(value) != 3 or rank(other) != 3 or value.shape != other.shape:  # type: ignore[union-attr]
        return False
    linear = linear_of(value)
    return linear is not None and len(value.uses()) == 1 and not value.is_graph_output()


def _pool(anchor: ir.Node, chain: list[ir.Node], value: ir.Value) -> ir.Value:
    """The chain (Slice and) ReduceMean, over another value of as many tokens."""
    for like in chain:
        node = ir.node(like.op_type, [value, *like.inputs[1:]], dict(like.attributes))
        insert_before(anchor, [node])
        out, old = node.outputs[0], like.outputs[0]
        out.type = old.type
        if old.shape is not None and value.shape is not None:
            out.shape = ir.Shape([*old.shape[:-1], value.shape[-1]])
        value = out
    return value
