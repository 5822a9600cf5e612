"""LayerScale into the linear layer before it.

``gamma * (x @ W + b)`` is ``x @ (W * gamma) + b * gamma``, gamma along the output channels: one
elementwise node less over all tokens, per branch of every block. Any product with a constant
vector or number right after a linear layer is folded, wherever the library keeps it.
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
    linear_of,
    new_initializer,
    remove_dead,
    replace_value,
)


class FoldLayerScale(GraphPass):
    """A constant factor per channel becomes part of weight and bias."""

    name: ClassVar[str] = "layer-scale"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Fold every factor after a linear layer that nothing else reads."""
        outcome = PassOutcome()
        graph = model.graph
        for node in list(graph):
            if node.op_type != "Mul":
                continue
            found = _scaled_linear(node)
            if found is None:
                continue
            value, factor = found
            linear = linear_of(value)
            if linear is None:
                continue
            if value.is_graph_output() or len(value.uses()) != 1:
                outcome.refuse(node, f"{value.name} is also read unscaled")
                continue
            if len(linear.weight_value.uses()) != 1:
                outcome.refuse(node, f"weight {linear.weight_value.name} is shared")
                continue
            name = linear.weight_value.name or "weight"
            scaled = new_initializer(graph, f"{name}.scaled", linear.weight * factor)
            linear.product.replace_input_with(1, scaled)
            if linear.bias is not None:
                bias = (linear.bias * factor).astype(linear.bias.dtype)
                linear.last.replace_input_with(
                    linear.bias_place, new_initializer(graph, f"{name}.scaled.bias", bias)
                )
            replace_value(node.outputs[0], value)
            graph.remove(node, safe=True)
            outcome.changed += 1
        remove_dead(graph)
        return outcome


def _scaled_linear(node: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    """The computed operand and the constant factor, a vector over channels or one number."""
    for place in (0, 1):
        factor, value = constant(node.inputs[place]), node.inputs[1 - place]
        if factor is None or value is None or linear_of(value) is None:
            continue
        flat = factor.reshape(-1)
        over_channels = flat.size == 1 or factor.shape[-1] == flat.size
        if over_channels and value.shape is not None and factor.ndim <= len(value.shape):
            return value, flat.astype(factor.dtype)
    return None
