"""Int8 products for ONNX Runtime, in standard operators that it fuses into its own kernels.

Dynamic: the scale of an activation is computed from it, tensor by tensor, when the file runs:
``DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul``. Static: it was measured on calibration
data and is stored: ``QuantizeLinear -> DequantizeLinear -> MatMul``. Either way weights are signed
with a scale per output channel. Softmax, LayerNormalization, GELU, residual adds, the fused
attention node and the patch convolution (whose integer operator few engines have) stay float.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from exporters.passes.base import new_initializer, remove_dead
from exporters.quantize.linear import Linear, WeightStore, linear_layers, take_over


def quantize_dynamic(model: ir.Model, *, bits: int = 8) -> int:
    """Quantise linear layers in place, activations at run time. Gives how many layers.

    Args:
        model: a finished float32 graph.
        bits: of the weights: 8, or 7 (reduced range) for AVX2 without VNNI.
    """
    graph = model.graph
    store = WeightStore(graph, bits)
    quantised: dict[int, tuple[ir.Value, ir.Value, ir.Value]] = {}
    layers = linear_layers(model)
    for linear in layers:
        name = linear.node.outputs[0].name
        made: list[ir.Node] = []
        key = id(linear.activation)
        if key not in quantised:
            stem = linear.activation.name
            node = ir.node(
                "DynamicQuantizeLinear", [linear.activation], num_outputs=3, name=f"{stem}_quantize"
            )
            for value, suffix in zip(node.outputs, ("uint8", "scale", "zero"), strict=True):
                value.name = f"{stem}_{suffix}"
            made.append(node)
            quantised[key] = (node.outputs[0], node.outputs[1], node.outputs[2])
        integers, scale, zero = quantised[key]
        weight, weight_scale, weight_zero = store(linear)
        product = ir.node(
            "MatMulInteger", [integers, weight, zero, weight_zero], name=f"{name}_integer"
        )
        product.outputs[0].name = f"{name}_int32"
        cast = ir.node(
            "Cast", [product.outputs[0]], attributes={"to": 1}, name=f"{name}_cast"
        )  # 1 is FLOAT
        cast.outputs[0].name = f"{name}_unscaled"
        scales = ir.node("Mul", [scale, weight_scale], name=f"{name}_scales")
        scales.outputs[0].name = f"{name}_scale"
        scaled = ir.node("Mul", [cast.outputs[0], scales.outputs[0]], name=f"{name}_scaled")
        scaled.outputs[0].name = f"{name}_scaled"
        made += [product, cast, scales, scaled]
        graph.insert_before(linear.node, made)
        take_over(graph, linear.node, scaled.outputs[0])
    remove_dead(graph)
    return len(layers)


def activations_of(model: ir.Model) -> tuple[str, ...]:
    """Names of the values whose range static quantisation needs."""
    return tuple(dict.fromkeys(str(x.activation.name) for x in linear_layers(model)))


def quantize_static(
    model: ir.Model, ranges: Mapping[str, tuple[float, float]], *, bits: int = 8
) -> int:
    """Quantise linear layers in place, activations by stored ranges. Gives how many layers.

    Args:
        model: a finished float32 graph.
        ranges: smallest and largest number of each of :func:`activations_of`.
        bits: of the weights, as for :func:`quantize_dynamic`.
    """
    graph = model.graph
    store = WeightStore(graph, bits)
    activations: dict[int, ir.Value] = {}
    weights: dict[int, ir.Value] = {}
    layers = linear_layers(model)
    for linear in layers:
        made: list[ir.Node] = []
        if id(linear.activation) not in activations:
            made += _round_trip(graph, linear, ranges[str(linear.activation.name)])
            activations[id(linear.activation)] = made[-1].outputs[0]
        if id(linear.source) not in weights:
            integers, scale, zero = store(linear)
            node = ir.node(
                "DequantizeLinear",
                [integers, scale, zero],
                attributes={"axis": 1},
                name=f"{linear.source.name}_dequantize",
            )
            node.outputs[0].name = f"{linear.source.name}_float"
            made.append(node)
            weights[id(linear.source)] = node.outputs[0]
        graph.insert_before(linear.node, made)
        linear.node.replace_input_with(0, activations[id(linear.activation)])
        linear.node.replace_input_with(1, weights[id(linear.source)])
    remove_dead(graph)
    return len(layers)


def _round_trip(graph: ir.Graph, linear: Linear, span: tuple[float, float]) -> list[ir.Node]:
    """QuantizeLinear and DequantizeLinear of an activation, unsigned with a zero point."""
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    scale = np.float32((high - low) / 255.0 or 1.0)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    name = linear.activation.name
    scale_value = new_initializer(graph, f"{name}_scale", np.array(scale, np.float32))
    zero_value = new_initializer(graph, f"{name}_zero", np.array(zero, np.uint8))
    quantize = ir.node(
        "QuantizeLinear", [linear.activation, scale_value, zero_value], name=f"{name}_quantize"
    )
    quantize.outputs[0].name = f"{name}_uint8"
    dequantize = ir.node(
        "DequantizeLinear",
        [quantize.outputs[0], scale_value, zero_value],
        name=f"{name}_dequantize",
    )
    dequantize.outputs[0].name = f"{name}_rounded"
    return [quantize, dequantize]
