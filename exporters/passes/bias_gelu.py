"""The bias of a linear layer added inside the exact GELU behind it, for ONNX Runtime.

``gelu(x @ W + b)`` becomes ``MatMul`` and ``com.microsoft.BiasGelu``. ONNX Runtime otherwise makes
one Gemm of product and bias, and that writes the bias to every row of its result before it
multiplies: one more trip through the widest activation of a block. OpenVINO has the bias inside
its fully connected layer for nothing, and reads BiasGelu as the two nodes it stands for.
"""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    insert_before,
    linear_of,
    remove_dead,
    replace_value,
)
from vitpe_deploy.request import Target

CONTRIB = "com.microsoft"


class FuseBiasGelu(GraphPass):
    """Bias and exact GELU in one node."""

    name: ClassVar[str] = "bias-gelu"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Fuse every bias that an exact GELU alone reads."""
        outcome = PassOutcome()
        if context.target is not Target.ORT:
            return outcome
        graph = model.graph
        for node in list(graph):
            if node.op_type != "Gelu" or node.domain != "":
                continue
            biased = node.inputs[0]
            linear = None if biased is None else linear_of(biased)
            if biased is None or linear is None or linear.bias is None:
                outcome.refuse(node, "what it reads is no linear layer with a constant bias")
            elif node.attributes.get_string("approximate", "none") != "none":
                outcome.refuse(node, "its tanh form is another function than BiasGelu")
            elif len(biased.uses()) != 1 or biased.is_graph_output():
                outcome.refuse(node, f"{biased.name} is also read before it")
            elif context.half:
                outcome.refuse(node, "BiasGelu does not compute in float16 on a CPU")
            else:
                self._fuse(node, linear.last, linear.bias_place)
                outcome.changed += 1
        if outcome.changed:
            model.opset_imports.setdefault(CONTRIB, 1)
            remove_dead(graph)
        return outcome

    def _fuse(self, gelu: ir.Node, add: ir.Node, bias_place: int) -> None:
        product, bias = add.inputs[1 - bias_place], add.inputs[bias_place]
        fused = ir.node("BiasGelu", [product, bias], domain=CONTRIB, name=gelu.name)
        insert_before(gelu, [fused])
        old, new = gelu.outputs[0], fused.outputs[0]
        new.shape, new.type = old.shape, old.type
        replace_value(old, new)
