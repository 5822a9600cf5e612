"""Attention of short sequences as the standard's own node, for ONNX Runtime at opset 23.

``com.microsoft.MultiHeadAttention`` and ``Attention`` of opset 23 take the same query, key and
value [B, N, D]. The first copies all three so that heads come forward, and above some hundred
tokens saves the logits of all heads (it works through them in blocks); the second reads heads where
they stand. The fewer tokens, the more the copies weigh: with 49 tokens (a window of Swin) the
second takes 0.7 of the time, with 197 it takes 0.9, with 577 it is the slower one.

OpenVINO computes both alike.
"""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    insert_before,
    replace_value,
    static_dim,
)
from vitpe_deploy.request import Target

SINCE = 23
"""The opset in which ``Attention`` came, and for which files are written as is fastest here."""

FEW = 512
"""Tokens up to which it is the faster one."""

_BIAS = 5
_CONTRIB = "com.microsoft"


class StandardAttention(GraphPass):
    """``Attention`` in place of ``MultiHeadAttention`` where there are few tokens."""

    name: ClassVar[str] = "standard-attention"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Respell the fused attention nodes of known, few tokens."""
        outcome = PassOutcome()
        if context.target is not Target.ORT or context.opset < SINCE:
            return outcome
        for node in list(model.graph):
            if node.op_type != "MultiHeadAttention" or node.domain != _CONTRIB:
                continue
            problem = _problem(node, context)
            if problem:
                outcome.refuse(node, problem)
                continue
            _respell(node)
            outcome.changed += 1
        if all(node.domain != _CONTRIB for node in model.graph):
            model.opset_imports.pop(_CONTRIB, None)
        return outcome


def _problem(node: ir.Node, context: PassContext) -> str:
    """Why the node stays."""
    if context.half:
        return "in float16 it was not measured"
    for role, place in (("queries", 0), ("keys", 1)):
        tokens = static_dim(node.inputs[place], 1)
        if tokens is None:
            return f"how many {role} it has is not known"
        if tokens > FEW:
            return f"{tokens} {role} are more than {FEW}"
    if any(v is not None for v in (*node.inputs[3:_BIAS], *node.inputs[_BIAS + 1 :])):
        return "it has a mask or a past beside its bias"
    return ""


def _respell(node: ir.Node) -> None:
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    heads = node.attributes["num_heads"].as_int()
    attributes = {"q_num_heads": heads, "kv_num_heads": heads}
    scale = node.attributes.get_float("scale", 0.0)
    inputs = [*node.inputs[:3]] if bias is None else [*node.inputs[:3], bias]
    new = ir.node(
        "Attention", inputs, attributes | ({"scale": scale} if scale else {}), name=node.name
    )
    insert_before(node, [new])
    old = node.outputs[0]
    new.outputs[0].shape, new.outputs[0].type = old.shape, old.type
    replace_value(old, new.outputs[0])
    if node.graph is not None:
        node.graph.remove(node, safe=True)
