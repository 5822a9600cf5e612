"""Which matrix products of a graph are linear layers of the network, and their int8 weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from exporters.passes.base import new_initializer

MIN_WEIGHTS = 256
"""Smaller matrices stay float: their scales cost what their bytes save."""

_SHAPES_ONLY = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True)
class Linear:
    """``activation [..., K] @ weight [K, N]``, as a MatMul node with a constant second input."""

    node: ir.Node
    activation: ir.Value
    source: ir.Value
    weight: npt.NDArray[Any]


def linear_layers(model: ir.Model) -> list[Linear]:
    """Products of what the input decides with a constant matrix, in the order of the graph.

    Products of constants alone, such as the resampling of a position table in a file with a
    symbolic size, are left out: they are no layers, and positions do not survive 8 bits well.
    """
    _gemm_to_matmul(model.graph)
    moved = _moved_by_input(model.graph)
    return [linear for node in model.graph if (linear := _as_linear(node, moved)) is not None]


def _as_linear(node: ir.Node, moved: set[int]) -> Linear | None:
    if node.op_type != "MatMul" or node.domain != "":
        return None
    activation, weight = node.inputs
    if activation is None or weight is None or id(activation) not in moved:
        return None
    if weight.const_value is None or weight.is_graph_input():
        return None
    array = weight.const_value.numpy()
    if array.ndim != 2 or array.dtype != np.float32 or array.size < MIN_WEIGHTS:
        return None
    return Linear(node, activation, weight, array)


def _moved_by_input(graph: ir.Graph) -> set[int]:
    """Ids of the values that change with the numbers of an input, not with its shape alone."""
    moved = {id(value) for value in graph.inputs}
    for node in graph:
        if node.op_type in _SHAPES_ONLY:
            continue
        if any(value is not None and id(value) in moved for value in node.inputs):
            moved.update(id(value) for value in node.outputs)
    return moved


def _gemm_to_matmul(graph: ir.Graph) -> None:
    """``Gemm(x, W, b)`` of a linear layer as MatMul and Add, which int8 kernels start from."""
    for node in list(graph):
        if node.op_type != "Gemm" or node.domain != "" or len(node.inputs) < 2:
            continue
        numbers = {name: attribute.value for name, attribute in node.attributes.items()}
        weight = node.inputs[1]
        if weight is None or weight.const_value is None or numbers.get("transA", 0):
            continue
        if numbers.get("alpha", 1.0) != 1.0 or numbers.get("beta", 1.0) != 1.0:
            continue
        source = weight
        if numbers.get("transB", 0):
            array = np.ascontiguousarray(weight.const_value.numpy().T)
            source = new_initializer(graph, f"{weight.name}_transposed", array)
        out = node.outputs[0]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        product = ir.node("MatMul", [node.inputs[0], source], name=f"{out.name}_matmul")
        made = [product]
        product.outputs[0].name = f"{out.name}_product"
        if bias is not None:
            made.append(ir.node("Add", [product.outputs[0], bias], name=f"{out.name}_bias"))
            made[-1].outputs[0].name = f"{out.name}_sum"
        graph.insert_before(node, made)
        take_over(graph, node, made[-1].outputs[0])


def take_over(graph: ir.Graph, node: ir.Node, new: ir.Value) -> None:
    """``new`` takes the place and the name of the only output of ``node``, which is removed."""
    old = node.outputs[0]
    name, new.shape, new.type = old.name, old.shape, old.type
    old.name = f"{name}_float"
    new.name = name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def int8_weights(
    weight: npt.NDArray[Any], *, bits: int = 8
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Symmetric int8 of [K, N] with one scale per output channel.

    Args:
        weight: [K, N] in float32.
        bits: 7 keeps sums of two u8 x s8 products inside int16, where AVX2 without VNNI
            saturates.

    Returns:
        The integers [K, N] and the scales [N].
    """
    top = float(2 ** (bits - 1) - 1)
    scale = np.abs(weight).max(axis=0).astype(np.float32) / np.float32(top)
    scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
    return np.clip(np.rint(weight / scale), -top, top).astype(np.int8), scale


class WeightStore:
    """Int8 initializers of a graph, stored once however many layers read them."""

    def __init__(self, graph: ir.Graph, bits: int = 8) -> None:
        self._graph = graph
        self._bits = bits
        self._known: dict[int, tuple[ir.Value, ir.Value, ir.Value]] = {}

    def __call__(self, linear: Linear) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Integers [K, N], scales [N] and zero points [N] of a layer."""
        key = id(linear.source)
        if key not in self._known:
            integers, scale = int8_weights(linear.weight, bits=self._bits)
            name = linear.source.name
            self._known[key] = (
                new_initializer(self._graph, f"{name}_int8", integers),
                new_initializer(self._graph, f"{name}_scale", scale),
                new_initializer(self._graph, f"{name}_zero", np.zeros(len(scale), np.int8)),
            )
        return self._known[key]
