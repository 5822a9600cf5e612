"""Int8 products for ONNX Runtime, in standard operators that it fuses into its own kernels.

Both ways end in ``MatMulInteger -> Cast -> Mul -> Add``, which it computes as one node. Dynamic:
the scale of an activation is computed from it, tensor by tensor, when the file runs
(``DynamicQuantizeLinear``). Static: it was measured on calibration data and is stored
(``QuantizeLinear``). Either way weights are signed with a scale per output channel. Softmax,
LayerNormalization, GELU, residual adds, the fused attention node and the patch convolution (whose
integer operator few engines have) stay float.

The static form is not spelled as ``QuantizeLinear -> DequantizeLinear -> MatMul``: ONNX Runtime
1.32 turns MatMul and Add into Gemm first, has no integer Gemm with a float bias, and dequantises
the weights at every inference instead (ViT-S/16 at 224: 1.8 times slower than float32).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from exporters.passes.base import new_initializer, remove_dead
from exporters.quantize.linear import Linear, WeightStore, linear_layers, take_over

_FLOAT = 1
"""``TensorProto.FLOAT``, as the attribute of Cast wants it."""


@dataclass(frozen=True, slots=True)
class _Quantised:
    """An activation in uint8: its integers, scale and zero point."""

    integers: ir.Value
    scale: ir.Value
    zero: ir.Value


def quantize_dynamic(model: ir.Model, *, bits: int = 8) -> int:
    """Quantise linear layers in place, activations at run time. Gives how many layers.

    Args:
        model: a finished float32 graph.
        bits: of the weights: 8, or 7 (reduced range) for AVX2 without VNNI.
    """
    return _quantize(model, bits, _at_run_time)


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
    return _quantize(
        model, bits, lambda activation: _by_range(graph, activation, ranges[str(activation.name)])
    )


def _quantize(
    model: ir.Model, bits: int, quantised: Callable[[ir.Value], tuple[list[ir.Node], _Quantised]]
) -> int:
    """Every linear layer as an integer product; ``quantised`` makes an activation's uint8."""
    graph = model.graph
    store = WeightStore(graph, bits)
    known: dict[int, _Quantised] = {}
    layers = linear_layers(model)
    for linear in layers:
        made: list[ir.Node] = []
        if id(linear.activation) not in known:
            nodes, known[id(linear.activation)] = quantised(linear.activation)
            made += nodes
        product, result = _product(linear, known[id(linear.activation)], store)
        graph.insert_before(linear.node, made + product)
        take_over(graph, linear.node, result)
    remove_dead(graph)
    return len(layers)


def _product(linear: Linear, x: _Quantised, store: WeightStore) -> tuple[list[ir.Node], ir.Value]:
    """``MatMulInteger``, brought back to float32 by the product of both scales."""
    name = linear.node.outputs[0].name
    weight, weight_scale, weight_zero = store(linear)
    integer = ir.node(
        "MatMulInteger", [x.integers, weight, x.zero, weight_zero], name=f"{name}_integer"
    )
    integer.outputs[0].name = f"{name}_int32"
    cast = ir.node("Cast", [integer.outputs[0]], attributes={"to": _FLOAT}, name=f"{name}_cast")
    cast.outputs[0].name = f"{name}_unscaled"
    scales = ir.node("Mul", [x.scale, weight_scale], name=f"{name}_scales")
    scales.outputs[0].name = f"{name}_scale"
    scaled = ir.node("Mul", [cast.outputs[0], scales.outputs[0]], name=f"{name}_scaled")
    scaled.outputs[0].name = f"{name}_scaled"
    return [integer, cast, scales, scaled], scaled.outputs[0]


def _at_run_time(activation: ir.Value) -> tuple[list[ir.Node], _Quantised]:
    """``DynamicQuantizeLinear``."""
    stem = activation.name
    node = ir.node("DynamicQuantizeLinear", [activation], num_outputs=3, name=f"{stem}_quantize")
    for value, suffix in zip(node.outputs, ("uint8", "scale", "zero"), strict=True):
        value.name = f"{stem}_{suffix}"
    integers, scale, zero = node.outputs
    return [node], _Quantised(integers, scale, zero)


def _by_range(
    graph: ir.Graph, activation: ir.Value, span: tuple[float, float]
) -> tuple[list[ir.Node], _Quantised]:
    """``QuantizeLinear`` with a stored scale and an unsigned zero point.

    The product reads the scale through a DequantizeLinear of the number one: a product of two
    initializers would be folded, and then ONNX Runtime's fusion finds no Mul of two scales.
    """
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    number = np.float32((high - low) / 255.0 or 1.0)
    name = activation.name
    scale = new_initializer(graph, f"{name}_scale", np.array(number, np.float32))
    zero_point = np.uint8(np.clip(np.rint(-low / number), 0, 255))
    zero = new_initializer(graph, f"{name}_zero", np.array(zero_point, np.uint8))
    one = new_initializer(graph, f"{name}_one", np.array(1, np.uint8))
    node = ir.node("QuantizeLinear", [activation, scale, zero], name=f"{name}_quantize")
    node.outputs[0].name = f"{name}_uint8"
    again = ir.node("DequantizeLinear", [one, scale], name=f"{name}_read_scale")
    again.outputs[0].name = f"{name}_step"
    return [node, again], _Quantised(node.outputs[0], again.outputs[0], zero)
