"""Heads of unit length as RMS norms, for OpenVINO.

Cosine attention divides queries and keys by their length: ReduceL2, a lower bound, Div. OpenVINO's
CPU plugin reduces the few channels of a head slowly, and has a kernel for

    x / sqrt(mean(x^2) + e) * g

which is x / |x| for g = 1 / sqrt(d) and e = eps^2 / d. Both divide zero by something above zero; in
between they differ for lengths near eps alone, so eps has to be tiny.

A factor per head stays apart from g, behind the view that joins the heads: the kernel is found by
its one factor per channel.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    only_reader,
    rank,
    remove_dead,
    replace_value,
    static_dim,
)
from vitpe_deploy.request import Target

_TINY = 1e-8
"""Lengths that matter are well above such a bound."""

_LEAST = 1e-15
"""Its square over some hundred channels is still a normal number of float32."""


_HEADS_RANK = 4


@dataclass(frozen=True, slots=True)
class _Length:
    """``x / max(|x|, bound)`` over the last axis of x, of ``width`` channels."""

    x: ir.Value
    bound: float
    width: int


class UnitNorm(GraphPass):
    """An RMS norm in place of ReduceL2, Clip, Div."""

    name: ClassVar[str] = "unit-norm"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Rewrite every division by a length."""
        outcome = PassOutcome()
        if context.target is not Target.OPENVINO:
            return outcome
        graph = model.graph
        writer = _Writer(graph)
        for node in list(graph):
            found = _length_under(node)
            if found is None:
                continue
            if isinstance(found, str):
                outcome.refuse(node, found)
            elif context.half:
                outcome.refuse(node, "the square of its bound is zero in float16")
            else:
                writer.rewrite(node, found)
                outcome.changed += 1
        remove_dead(graph)
        return outcome


def _length_under(node: ir.Node) -> _Length | str | None:
    """What a Div divides by, where that is the length of what it divides; or why it stays."""
    if node.op_type != "Div" or node.domain != "":
        return None
    x, bounded = node.inputs
    limit = None if bounded is None else bounded.producer()
    if x is None or limit is None or limit.op_type not in ("Clip", "Max"):
        return None
    norm = None if limit.inputs[0] is None else limit.inputs[0].producer()
    if norm is None or norm.op_type != "ReduceL2" or norm.inputs[0] is not x:
        return None
    bound = constant(limit.inputs[1]) if len(limit.inputs) > 1 else None
    if len(limit.inputs) > 2 and limit.inputs[2] is not None:
        return "the length has an upper bound as well"
    if bound is None or bound.size != 1 or not 0 < float(bound.reshape(-1)[0]) <= _TINY:
        return f"the lower bound of the length is no constant of at most {_TINY}"
    axes, dims = constant(norm.inputs[1]) if len(norm.inputs) > 1 else None, rank(x)
    width = static_dim(x, -1)
    if dims is None or width is None:
        return "the channels are not known"
    if axes is None or axes.tolist() not in ([-1], [dims - 1]):
        return "the length is not that of the last axis"
    if not norm.attributes.get_int("keepdims", 1):
        return "the length has lost its axis"
    return _Length(x, float(bound.reshape(-1)[0]), width)


class _Writer:
    """Writes norms into one graph; equal constants are shared."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._constants: dict[tuple[str, float], ir.Value] = {}

    def rewrite(self, node: ir.Node, found: _Length) -> None:
        """Put an RMS norm in the place of a Div."""
        old, width = node.outputs[0], found.width

        def make(operator: str, *inputs: ir.Value) -> ir.Value:
            made = ir.node(operator, inputs)
            insert_before(node, [made])
            made.outputs[0].type = old.type
            return made.outputs[0]

        axes = self._constant("norm_axes", -1, np.array([-1], dtype=np.int64))
        mean = make("ReduceMean", make("Pow", found.x, self._number(2.0)), axes)
        bounded = make("Add", mean, self._number(max(found.bound, _LEAST) ** 2 / width))
        inverse = make("Reciprocal", make("Sqrt", bounded))
        gain = np.full(width, width**-0.5, dtype=np.float32)
        unit = make("Mul", make("Mul", found.x, inverse), self._constant("norm_gain", width, gain))
        unit.shape = old.shape
        replace_value(old, unit)
        self._graph.remove(node, safe=True)
        self._join_before_factor(unit)

    def _join_before_factor(self, unit: ir.Value) -> None:
        """[B, N, M, d] times a factor per head, then joined: joined first."""
        factor = only_reader(unit, "Mul") or only_reader(unit, "Mul", place=1)
        join = None if factor is None else only_reader(factor.outputs[0], "Reshape")
        if factor is None or join is None or rank(unit) != _HEADS_RANK:
            return
        heads, width = static_dim(unit, 2), static_dim(unit, 3)
        numbers = constant(factor.inputs[1] if factor.inputs[0] is unit else factor.inputs[0])
        joined, shape = join.outputs[0], join.inputs[1]
        if numbers is None or heads is None or width is None or shape is None:
            return
        if np.prod(numbers.shape[:-2]) != 1 or static_dim(joined, -1) != heads * width:
            return
        by_head = numbers.reshape(numbers.shape[-2:])
        by_channel = np.ascontiguousarray(np.broadcast_to(by_head, (heads, width)).reshape(-1))
        first = ir.node("Reshape", [unit, shape], dict(join.attributes))
        vector = new_initializer(self._graph, "factor_per_channel", by_channel)
        scaled = ir.node("Mul", [first.outputs[0], vector])
        insert_before(join, [first, scaled])
        for made in (first, scaled):
            made.outputs[0].type, made.outputs[0].shape = joined.type, joined.shape
        replace_value(joined, scaled.outputs[0])
        self._graph.remove([join, factor], safe=True)

    def _number(self, value: float) -> ir.Value:
        return self._constant("norm", value, np.array(value, dtype=np.float32))

    def _constant(self, name: str, key: float, array: np.ndarray) -> ir.Value:
        if (name, key) not in self._constants:
            self._constants[name, key] = new_initializer(self._graph, name, array)
        return self._constants[name, key]
