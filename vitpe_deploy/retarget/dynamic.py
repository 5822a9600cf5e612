"""A graph changed to symbolic height and width (and batch): sizes are computed from the input."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from vitpe_deploy.encodings.resample import ResampleRule
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.request import Dynamic
from vitpe_deploy.retarget.analysis import analyse
from vitpe_deploy.retarget.find_positions import FoundPosition
from vitpe_deploy.retarget.nodes import Array, Nodes, grid_nodes
from vitpe_deploy.retarget.probes import Expression, Probes
from vitpe_deploy.retarget.read import PictureGraph
from vitpe_deploy.retarget.static import (
    array_of,
    copied,
    declare,
    settle,
    shrink_blanks,
    widen_pools,
)


def with_symbols(
    graph: PictureGraph, dynamic: Dynamic, rule: ResampleRule, *, batch: int = 1
) -> ir.Model:
    """A copy of a graph with symbolic batch, or height and width, or all of them.

    Args:
        graph: the file; for ``batch`` alone its declared size stays.
        dynamic: which dimensions stay symbolic.
        rule: of tables that the graph does not resize by itself.
        batch: of a file that keeps a fixed one.

    Raises:
        UnsupportedError: the graph cannot change its size; the node is named.
    """
    if not dynamic.batch and graph.batch not in (None, batch):
        raise UnsupportedError(
            f"--batch {batch}: {graph.path.name} is made for batch {graph.batch}",
            hint=f"Use --batch {graph.batch}, or --dynamic all.",
        )
    analysis = analyse(copied(graph), batch=batch, any_batch=dynamic.batch, any_size=dynamic.size)
    model, found, probes = analysis.graph.model, analysis.found, analysis.probes
    nodes = Nodes(model.graph, "retarget")
    sizes = _Sizes(nodes, analysis.graph.source, probes)
    settle(analysis, nodes, None)
    first = model.graph[0]
    for rewrite in found.rewrites:
        rewrite.node.replace_input_with(rewrite.place, sizes.vector(rewrite.numbers))
    for position in found.positions:
        array = array_of(position.value, analysis)
        new = _positions(nodes, sizes, position, array, rule)
        position.node.replace_input_with(position.place, new)
    for spread in found.spread:
        value = spread.node.inputs[spread.place]
        constant = nodes.constant(array_of(value, analysis))
        rank = len(constant.shape or ())
        parts = [sizes.value(Expression(0, "", 1, batch=True)), nodes.ints(*[1] * (rank - 1))]
        spread.node.replace_input_with(
            spread.place, nodes.op("Expand", constant, nodes.op("Concat", *parts, axis=0))
        )
    shrink_blanks(found.blank, nodes, analysis)
    widen_pools(found.pooled)
    if nodes.made:
        nodes.insert_before(first)
    first_dim: int | str = "batch" if dynamic.batch else batch
    pixels: list[int | str] = ["height", "width"]
    if not dynamic.size and graph.declared is not None:
        pixels = [graph.declared.height, graph.declared.width]
    declare(analysis, [first_dim, graph.channels, *pixels], None)
    return model


class _Sizes:
    """Expressions of the size as int64 vectors of one number, each computed once."""

    def __init__(self, nodes: Nodes, source: ir.Value, probes: Probes) -> None:
        self._nodes = nodes
        self._source = source
        self._probes = probes
        self._known: dict[Expression, ir.Value] = {}
        self._shape: ir.Value | None = None

    def value(self, wanted: Expression) -> ir.Value:
        """One expression, int64 [1]."""
        if wanted not in self._known:
            self._known[wanted] = self._make(wanted)
        return self._known[wanted]

    def _axis(self, axis: int) -> ir.Value:
        if self._shape is None:
            self._shape = self._nodes.op("Shape", self._source)
        return self._nodes.op("Gather", self._shape, self._nodes.ints(axis), axis=0)

    def _make(self, wanted: Expression) -> ir.Value:
        nodes = self._nodes
        if wanted == Expression(0, "", 1, batch=True):
            return self._axis(0)
        if wanted.batch:
            rest = Expression(wanted.factor, wanted.grid, wanted.rest)
            batch = self.value(Expression(0, "", 1, batch=True))
            return nodes.op("Mul", batch, self.value(rest))
        if not wanted.grid:
            return nodes.ints(wanted.rest)
        if wanted.rest:
            base = self.value(Expression(wanted.factor, wanted.grid, 0))
            return nodes.op("Add", base, nodes.ints(wanted.rest))
        if wanted.factor != 1:
            base = self.value(Expression(1, wanted.grid, 0))
            return nodes.op("Mul", base, nodes.ints(wanted.factor))
        if wanted.grid == "hw":
            rows, columns = self.value(Expression(1, "h", 0)), self.value(Expression(1, "w", 0))
            return nodes.op("Mul", rows, columns)
        axis = "hw".index(wanted.grid)
        return nodes.op("Div", self._axis(2 + axis), nodes.ints(self._probes.patch[axis]))

    def vector(self, numbers: npt.NDArray[np.int64]) -> ir.Value:
        """Numbers at every probe [P, n] as a vector that the graph computes.

        Raises:
            UnsupportedError: a number is no known function of the size.
        """
        expressions = [self._probes.expression(column) for column in numbers.T]
        if any(e is None for e in expressions):
            raise UnsupportedError(
                f"sizes {numbers[0].tolist()} of the graph are no known function of the picture's",
                hint="Export static files instead: --res takes several sizes.",
            )
        found = [e for e in expressions if e is not None]
        if all(e.fixed for e in found):
            return self._nodes.ints(*[e.rest for e in found])
        if len(found) == 1:
            return self.value(found[0])
        return self._nodes.op("Concat", *[self.value(e) for e in found], axis=0)


def _positions(
    nodes: Nodes, sizes: _Sizes, found: FoundPosition, array: Array, rule: ResampleRule
) -> ir.Value:
    """A table on the grid of the picture, in the layout that its reader wants."""
    if found.kind == "bias":
        raise UnsupportedError(
            f"the attention bias {found.name} is baked for one size, so a file with a dynamic "
            "size cannot be written from it",
            hint="Export static files instead: --res takes several sizes.",
        )
    rows, columns = sizes.value(Expression(1, "h", 0)), sizes.value(Expression(1, "w", 0))
    if found.kind == "map":
        moved = np.moveaxis(array, found.axes, (0, 1))
        flat = moved.reshape(*found.grid, -1)
        grid = grid_nodes(nodes, flat, rows, columns, rule)  # [h, w, D]
        spread = nodes.op("Reshape", grid, nodes.ints(0, 0, *moved.shape[2:]))
        return nodes.op("Transpose", spread, perm=_back(array.ndim, found.axes))
    (axis,) = found.axes
    table = np.moveaxis(array, axis, 0)
    rest = table.shape[1:]
    every = table.reshape(len(table), -1)
    patches = every[found.prefix :].reshape(*found.grid, -1)
    grid = grid_nodes(nodes, patches, rows, columns, rule)
    joined = nodes.op("Reshape", grid, nodes.ints(-1, every.shape[1]))
    if found.prefix:
        head = nodes.constant(every[: found.prefix])
        joined = nodes.op("Concat", head, joined, axis=0)
    spread = nodes.op("Reshape", joined, nodes.ints(-1, *rest))
    if axis == 0:
        return spread
    return nodes.op("Transpose", spread, perm=_back(array.ndim, (axis,)))


def _back(rank: int, front: tuple[int, ...]) -> list[int]:
    """The permutation that undoes moving axes ``front`` of a value to the front."""
    order = [*front, *(k for k in range(rank) if k not in front)]
    return [order.index(k) for k in range(rank)]
