"""Norms of token maps on lists of tokens, for OpenVINO.

OpenVINO's CPU plugin has LayerNorm as one node (MVN) where tokens are a list [B, N, C]. Of a map
[B, H, W, C] it makes three, mean, difference and RMS norm, with a trip through memory each. A view
before the norm and one after it keep it whole.

Left alone: symbolic sizes, for which the view back would have to be computed.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    insert_before,
    new_initializer,
    rank,
    replace_value,
    static_shape,
)
from vitpe_deploy.request import Target

_LIST = 3


class FlatNorm(GraphPass):
    """LayerNormalization of [1, B H W, C] in place of [B, H, W, C]."""

    name: ClassVar[str] = "flat-norm"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Put views around every norm over channels of more than three dimensions."""
        outcome = PassOutcome()
        if context.target is not Target.OPENVINO:
            return outcome
        shapes: dict[tuple[int, ...], ir.Value] = {}
        for node in list(model.graph):
            if node.op_type != "LayerNormalization" or node.domain != "":
                continue
            x = node.inputs[0]
            dims = rank(x)
            if x is None or dims is None or dims <= _LIST:
                continue
            shape = static_shape(x)
            if node.attributes.get_int("axis", -1) not in (-1, dims - 1):
                outcome.refuse(node, "it normalises over more than channels")
            elif shape is None:
                outcome.refuse(node, f"sizes are symbolic: {x.shape}")
            elif len(node.outputs) > 1:
                outcome.refuse(node, "its mean or deviation is read")
            else:
                _flatten(model.graph, node, shape, shapes)
                outcome.changed += 1
        return outcome


def _flatten(
    graph: ir.Graph,
    node: ir.Node,
    shape: tuple[int, ...],
    shapes: dict[tuple[int, ...], ir.Value],
) -> None:
    flat = (1, prod(shape[:-1]), shape[-1])
    for wanted in (flat, shape):
        if wanted not in shapes:
            array = np.array(wanted, dtype=np.int64)
            shapes[wanted] = new_initializer(graph, "norm_shape", array)
    old = node.outputs[0]
    before = ir.node("Reshape", [node.inputs[0], shapes[flat]])
    attributes = dict(node.attributes) | {"axis": ir.AttrInt64("axis", -1)}
    norm = ir.node(
        "LayerNormalization", [before.outputs[0], *node.inputs[1:]], attributes, name=node.name
    )
    after = ir.node("Reshape", [norm.outputs[0], shapes[shape]])
    insert_before(node, [before, norm, after])
    for made, dims in ((before, flat), (norm, flat), (after, shape)):
        made.outputs[0].type, made.outputs[0].shape = old.type, ir.Shape(dims)
    replace_value(old, after.outputs[0])
    graph.remove(node, safe=True)
