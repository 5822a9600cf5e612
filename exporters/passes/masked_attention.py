"""Attention under soft masks without denormal numbers, for ONNX Runtime at opset 23.

Shifted windows keep tokens of two ends apart by adding -100 to their logits. The softmax makes
weights near exp(-100) of them, 4e-44: a denormal number, which x86 multiplies in microcode, a
hundred times slower. With AVX-512 ONNX Runtime's kernels produce them (with AVX2 they round them to
zero), and attention of a shifted window takes two to five times as long as without a mask.

1e-30 on every weight lifts them into the normal range. Weights of any consequence do not notice:
float32 holds none of the sum beside a weight above 2e-23, and the rest of a row is below 1e-20 of
its result. For the sum to stand between softmax and product, attention is written by MatMul,
Softmax, Add, MatMul.

Below opset 23 every block keeps its one fused node, which other tools look for. Left alone: masks
of minus infinity or thousands, which give weights of exactly zero; float16.
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
    insert_before,
    new_initializer,
    replace_value,
    static_dim,
)
from exporters.passes.standard_attention import SINCE
from vitpe_deploy.request import Target

LIFT = 1e-30
"""What is added to every weight; products with it are normal numbers."""

_DEEPEST, _MILDEST = -130.0, -60.0
"""Biases between which exp is denormal, with room for logits that differ by some tens."""

_BIAS = 5
_FAR = 12
"""Nodes between a mask and the attention that reads it, at most."""

_HEADS_FIRST, _KEYS_TURNED = [0, 2, 1, 3], [0, 2, 3, 1]


class MaskedAttention(GraphPass):
    """MatMul, Softmax, Add, MatMul in place of a fused node whose bias masks softly."""

    name: ClassVar[str] = "masked-attention"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Write out every fused attention with a soft mask."""
        outcome = PassOutcome()
        if context.target is not Target.ORT or context.opset < SINCE:
            return outcome
        writer = _Writer(model.graph)
        for node in list(model.graph):
            if node.op_type != "MultiHeadAttention" or not _is_masked(node):
                continue
            width = static_dim(node.inputs[0], 2)
            if context.half:
                outcome.refuse(node, f"{LIFT} is zero in float16")
            elif width is None:
                outcome.refuse(node, "the width of its queries is not known")
            elif any(v is not None for v in (*node.inputs[3:_BIAS], *node.inputs[_BIAS + 1 :])):
                outcome.refuse(node, "it has a mask or a past beside its bias")
            else:
                writer.write_out(node, width)
                outcome.changed += 1
        return outcome


def _is_masked(node: ir.Node) -> bool:
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    return bias is not None and any(map(_masks, _made_from(bias)))


def _masks(value: ir.Value) -> bool:
    numbers = constant(value)
    if numbers is None or numbers.dtype.kind != "f":
        return False
    return bool(((numbers > _DEEPEST) & (numbers < _MILDEST)).any())


def _made_from(value: ir.Value) -> list[ir.Value]:
    """A value and what it is computed from, the nearest first, each once."""
    found, near = {id(value): value}, [value]
    for _ in range(_FAR):
        makers = [made for made in (v.producer() for v in near) if made is not None]
        inputs = {id(v): v for made in makers for v in made.inputs if v is not None}
        near = [v for key, v in inputs.items() if key not in found]
        found |= inputs
    return list(found.values())


class _Writer:
    """Writes nodes before an attention; shares constants of one graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._constants: dict[tuple[float | int, ...], ir.Value] = {}

    def write_out(self, node: ir.Node, width: int) -> None:
        """[B, N, D] each to [B, M, N, d], and back."""
        heads = node.attributes["num_heads"].as_int()
        scale = node.attributes.get_float("scale", 0.0) or (width // heads) ** -0.5
        query, key, value, bias = (node.inputs[k] for k in (0, 1, 2, _BIAS))
        if query is None or key is None or value is None or bias is None:
            raise ValueError(f"{node.name} lacks an operand")
        parts = self._ints(0, 0, heads, width // heads)
        scaled = self._add(node, "Mul", query, self._float(scale))
        split = [self._add(node, "Reshape", v, parts) for v in (scaled, key, value)]
        orders = (_HEADS_FIRST, _KEYS_TURNED, _HEADS_FIRST)
        q, k, v = (
            self._add(node, "Transpose", x, perm=perm)
            for x, perm in zip(split, orders, strict=True)
        )
        logits = self._add(node, "Add", self._add(node, "MatMul", q, k), bias)
        weights = self._add(node, "Softmax", logits, axis=-1)
        lifted = self._add(node, "Add", weights, self._float(LIFT))
        mixed = self._add(node, "MatMul", lifted, v)
        back = self._add(node, "Transpose", mixed, perm=_HEADS_FIRST)
        joined = self._add(node, "Reshape", back, self._ints(0, 0, width))
        old = node.outputs[0]
        joined.shape = old.shape
        replace_value(old, joined)
        self._graph.remove(node, safe=True)

    def _add(
        self, anchor: ir.Node, operator: str, *inputs: ir.Value, **attributes: int | list[int]
    ) -> ir.Value:
        node = ir.node(operator, inputs, attributes)
        insert_before(anchor, [node])
        node.outputs[0].type = inputs[0].type
        return node.outputs[0]

    def _ints(self, *numbers: int) -> ir.Value:
        if numbers not in self._constants:
            label = "_".join(map(str, numbers))
            array = np.array(numbers, dtype=np.int64)
            self._constants[numbers] = new_initializer(self._graph, f"shape_{label}", array)
        return self._constants[numbers]

    def _float(self, number: float) -> ir.Value:
        if (number,) not in self._constants:
            array = np.array(number, dtype=np.float32)
            self._constants[number,] = new_initializer(self._graph, "attention_number", array)
        return self._constants[number,]
