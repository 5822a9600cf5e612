"""New nodes for a graph, and resampling written with them: ``W_h . P . W_w^T``, no Resize."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from vitpe_deploy.encodings.resample import ResampleRule, edge_matrix

Array: TypeAlias = npt.NDArray[Any]


class Nodes:
    """Collects nodes and constants for one graph, under names of their own."""

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self._graph = graph
        self._prefix = prefix
        self._taken = {v.name for n in graph for v in n.outputs} | set(graph.initializers)
        self._count = 0
        self.made: list[ir.Node] = []

    def _name(self, what: str) -> str:
        while True:
            name = f"{self._prefix}_{self._count}_{what}"
            self._count += 1
            if name not in self._taken:
                self._taken.add(name)
                return name

    def constant(self, array: Array) -> ir.Value:
        """An initializer."""
        name = self._name("constant")
        value = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            const_value=ir.tensor(np.ascontiguousarray(array), name=name),
        )
        self._graph.register_initializer(value)
        return value

    def ints(self, *numbers: int) -> ir.Value:
        """A vector of int64."""
        return self.constant(np.array(numbers, dtype=np.int64))

    def floats(self, *numbers: float) -> ir.Value:
        """A vector of float32."""
        return self.constant(np.array(numbers, dtype=np.float32))

    def op(self, kind: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """The first output of a new node."""
        node = ir.node(kind, list(inputs), attributes=attributes, name=self._name(kind.lower()))
        (output,) = node.outputs
        output.name = node.name
        self.made.append(node)
        return output

    def insert_before(self, anchor: ir.Node) -> None:
        """Put everything made since the last time in front of a node."""
        self._graph.insert_before(anchor, self.made)
        self.made = []


def why_not_in_graph(rule: ResampleRule) -> str:
    """Why a rule cannot be written as nodes; empty when it can."""
    return "its scale is not the ratio of the sizes" if rule.offset else ""


def axis_nodes(nodes: Nodes, n_in: int, size: ir.Value, rule: ResampleRule) -> ir.Value:
    """:func:`vitpe_deploy.encodings.resample.axis_matrix_in_graph` as nodes.

    Args:
        nodes: where they go.
        n_in: rows of the table.
        size: rows wanted, int64 [1].
        rule: without an offset.

    Returns:
        float32 [n_out, n_in].
    """
    number = nodes.op("Cast", size, to=int(ir.DataType.FLOAT))
    m = nodes.floats(float(n_in))
    n = number
    if rule.align_corners:
        last = nodes.op("Sub", number, nodes.floats(1.0))
        n = nodes.op("Max", last, nodes.floats(1.0))
        m = nodes.floats(n_in - 1.0)
        if rule.antialias:
            m = nodes.op("Mul", nodes.op("Min", last, nodes.floats(1.0)), m)
    o = 0.5 if rule.antialias or not rule.align_corners else 0.0
    reach = 0 if rule.antialias else 2
    columns = nodes.constant(np.arange(-reach, n_in + reach, dtype=np.float32)[None, :] + o)
    count = nodes.op("Squeeze", number, nodes.ints(0))
    zero, one = (nodes.constant(np.array(k, dtype=np.float32)) for k in (0, 1))
    rows = nodes.op("Unsqueeze", nodes.op("Range", zero, count, one), nodes.ints(1))
    rows = nodes.op("Add", rows, nodes.floats(o)) if o else rows
    x = nodes.op("Sub", nodes.op("Mul", columns, n), nodes.op("Mul", rows, m))
    divisor = nodes.op("Max", n, m) if rule.antialias else n
    x = nodes.op("Abs", nodes.op("Div", x, divisor))
    q = nodes.op("Relu", nodes.op("Sub", nodes.floats(1.0), x))
    weights = q if rule.interpolation == "bilinear" else _cubic(nodes, x, q, rule)
    if rule.antialias:
        total = nodes.op("ReduceSum", weights, nodes.ints(1), keepdims=1)
        return nodes.op("Div", weights, total)
    edge = nodes.constant(edge_matrix(n_in).astype(np.float32))
    return nodes.op("MatMul", weights, edge)


def _cubic(nodes: Nodes, x: ir.Value, q: ir.Value, rule: ResampleRule) -> ir.Value:
    """Keys' cubic from p = max(2-|x|, 0) and q = max(1-|x|, 0)."""
    a = -0.5 if rule.antialias else -0.75
    p = nodes.op("Relu", nodes.op("Sub", nodes.floats(2.0), x))
    one = nodes.op("Sub", nodes.floats(1.0), p)
    outer = nodes.op("Mul", nodes.op("Mul", p, p), nodes.op("Mul", one, nodes.floats(a)))
    bent = nodes.op("Sub", nodes.floats(4 * a + 3), nodes.op("Mul", q, nodes.floats(2.0)))
    return nodes.op("Add", outer, nodes.op("Mul", nodes.op("Mul", q, q), bent))


def grid_nodes(
    nodes: Nodes, table: Array, rows: ir.Value, columns: ir.Value, rule: ResampleRule
) -> ir.Value:
    """A constant [h0, w0, D] at a size that the graph computes: [h, w, D].

    Args:
        nodes: where they go.
        table: the original table, float32.
        rows: rows wanted, int64 [1].
        columns: columns wanted, int64 [1].
        rule: without an offset.
    """
    h0, w0, dim = table.shape
    down = axis_nodes(nodes, h0, rows, rule)
    across = axis_nodes(nodes, w0, columns, rule)
    flat = nodes.constant(table.reshape(h0, w0 * dim).astype(np.float32))
    tall = nodes.op("Reshape", nodes.op("MatMul", down, flat), nodes.ints(-1, w0, dim))
    return nodes.op("MatMul", across, tall)
