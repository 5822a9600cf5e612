"""Int8 weights, float32 compute: small files that any engine with DequantizeLinear can run."""

from __future__ import annotations

import onnx_ir as ir

from exporters.passes.base import remove_dead
from exporters.quantize.linear import WeightStore, linear_layers


def compress_weights(model: ir.Model) -> int:
    """Store the weights of linear layers as int8 with a scale per channel. Gives how many.

    Convolutions, tables and everything else stay float32.
    """
    graph = model.graph
    store = WeightStore(graph)
    done: dict[int, ir.Value] = {}
    layers = linear_layers(model)
    for linear in layers:
        key = id(linear.source)
        if key not in done:
            integers, scale, zero = store(linear)
            node = ir.node(
                "DequantizeLinear",
                [integers, scale, zero],
                attributes={"axis": 1},
                name=f"{linear.source.name}_dequantize",
            )
            node.outputs[0].name = f"{linear.source.name}_float"
            graph.insert_before(linear.node, [node])
            done[key] = node.outputs[0]
        linear.node.replace_input_with(1, done[key])
    remove_dead(graph)
    return len(layers)
