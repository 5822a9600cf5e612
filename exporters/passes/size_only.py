"""Values that depend on the sizes of the inputs and not on their numbers.

Positions of a dynamic graph are such values: they come from Shape, Range, Cos. At any sizes one
may choose, they are plain arrays, so that what reads them can be tried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir

from exporters.passes.base import constant

Bindings: TypeAlias = Mapping[str, int]
"""A number for each symbol that shapes are written with: ``{"height": 224, "width": 112}``."""

_OF_SHAPES = frozenset({"Shape", "Size"})
_RANDOM = frozenset({"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial"})


class SizeOnly:
    """Knows the size-only values of one graph and computes them.

    Args:
        graph: its shapes are read, so it must still have them.
        opset: of the default domain.
    """

    def __init__(self, graph: ir.Graph, opset: int) -> None:
        self._opset = opset
        self._order = list(graph)
        self._values: set[int] = set()
        for node in self._order:
            if node.domain != "" or node.op_type in _RANDOM or _has_body(node):
                continue
            if node.op_type in _OF_SHAPES or all(
                v is None or constant(v) is not None or v in self for v in node.inputs
            ):
                self._values.update(id(v) for v in node.outputs)

    def __contains__(self, value: ir.Value) -> bool:
        """Whether a computed value depends on sizes alone; constants are no computed values."""
        return id(value) in self._values

    def arrays(self, values: Iterable[ir.Value], bindings: Bindings) -> dict[int, np.ndarray]:
        """Size-only values and constants as arrays, by ``id(value)``.

        A value that cannot be computed, because a shape is unknown or an operator has no reference
        implementation, takes all others with it: the answer is then empty.
        """
        wanted = list(values)
        known = {id(v): a for v in wanted if (a := constant(v)) is not None}
        open_ = [v for v in wanted if id(v) not in known]
        if not open_:
            return known
        try:
            results = _run(self._cone(open_), open_, bindings, self._opset)
        except Exception:  # the evaluator raises whatever an operator's implementation does
            return {}
        return known | {id(v): r for v, r in zip(open_, results, strict=True)}

    def _cone(self, values: Sequence[ir.Value]) -> list[ir.Node]:
        """The nodes that make the values out of shapes and constants, in order."""
        needed: set[int] = set()
        left = list(values)
        while left:
            node = left.pop().producer()
            if node is None or id(node) in needed:
                continue
            needed.add(id(node))
            if node.op_type not in _OF_SHAPES:
                left += [v for v in node.inputs if v is not None and constant(v) is None]
        return [node for node in self._order if id(node) in needed]


def _has_body(node: ir.Node) -> bool:
    """A body may read values that are no inputs of its node."""
    bodies = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return any(attribute.type in bodies for attribute in node.attributes.values())


def _run(
    cone: Sequence[ir.Node], outputs: Sequence[ir.Value], bindings: Bindings, opset: int
) -> list[np.ndarray]:
    names: dict[int, str] = {}
    tensors: list[onnx.TensorProto] = []

    def name_of(value: ir.Value | None) -> str:
        if value is None:
            return ""
        if id(value) not in names:
            names[id(value)] = f"v{len(names)}"
            array = constant(value)
            if array is not None:
                tensors.append(onnx.numpy_helper.from_array(array, names[id(value)]))
        return names[id(value)]

    nodes = []
    for node in cone:
        if node.op_type in _OF_SHAPES:
            array = _of_shape(node, bindings)
            tensors.append(onnx.numpy_helper.from_array(array, name_of(node.outputs[0])))
        else:
            nodes.append(as_proto(node, name_of))
    graph = onnx.helper.make_graph(
        nodes,
        "positions",
        [],
        [onnx.ValueInfoProto(name=name_of(v)) for v in outputs],
        tensors,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    results: list[np.ndarray] = onnx.reference.ReferenceEvaluator(model).run(None, {})
    return results


def as_proto(node: ir.Node, name_of: Callable[[ir.Value | None], str]) -> onnx.NodeProto:
    """One node whose values are called as ``name_of`` says."""
    proto = onnx.helper.make_node(
        node.op_type, [name_of(v) for v in node.inputs], [name_of(v) for v in node.outputs]
    )
    proto.attribute.extend(ir.to_proto(a) for a in node.attributes.values())
    return proto


def _of_shape(node: ir.Node, bindings: Bindings) -> np.ndarray:
    """What a Shape or Size node gives at these sizes."""
    source = node.inputs[0]
    if source is None or source.shape is None:
        raise ValueError(f"{node.name} reads an unknown shape")
    dims = at_sizes(source.shape, bindings)
    if dims is None:
        raise ValueError(f"{node.name} reads {source.shape}, which {dict(bindings)} leaves open")
    if node.op_type == "Size":
        return np.array(np.prod(dims, dtype=np.int64))
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", len(dims))
    return np.array(dims[start:end], dtype=np.int64)


def at_sizes(shape: ir.Shape, bindings: Bindings) -> tuple[int, ...] | None:
    """A shape in numbers, or None when a dimension stays open."""
    dims = tuple(shape.evaluate(bindings))
    numbers = tuple(d for d in dims if isinstance(d, int))
    return numbers if len(numbers) == len(dims) else None
