"""Tokens of symbolic sizes go into shifted windows, and back, by one Gather each.

Padding, rolling (Slice and Concat twice) and partition move all tokens four times before the
attention of a shifted window, and three times after it. ``token-order`` makes one move of them
where sizes are known. Where they are symbolic, where each token goes has to be computed, but once:
the same nodes are done to row numbers, a 96th of the tokens' size and alike in all blocks of a
stage, and each block gathers by them.

    y = moves(x)   becomes   y = rows of x [.., C] at moves(0, 1, 2, ..)

Padded places read a row of zeros behind the others. Left alone: fewer than three copies, which
cost no more than the Gather, and moves of fixed sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    constant,
    insert_before,
    new_initializer,
    rank,
    remove_dead,
    replace_value,
    static_dim,
    static_shape,
)
from exporters.passes.row_moves import moves_rows, rows_read

_COPIES = frozenset({"Transpose", "Concat", "Pad"})
_MOVES = _COPIES | {"Slice", "Reshape"}
_WORTH = 3
_MOST_NODES = 40
_SIZES = frozenset(
    {"Add", "Cast", "Concat", "Div", "Gather", "Max", "Min", "Mod", "Mul", "Neg", "Shape", "Slice"}
    | {"Squeeze", "Sub", "Unsqueeze", "Reshape", "Range", "Identity"}
)
"""Operators between a shape and the numbers that a move reads."""


@dataclass(frozen=True, slots=True)
class _Region:
    """Moves that make ``y`` of the rows of ``x``, in their order.

    Attributes:
        channels: C of both.
    """

    x: ir.Value
    y: ir.Value
    nodes: tuple[ir.Node, ...]
    channels: int

    @property
    def padded(self) -> bool:
        """Whether places may be empty."""
        return any(node.op_type == "Pad" for node in self.nodes)


class GatheredMoves(GraphPass):
    """Row numbers are moved once, rows are gathered by them."""

    name: ClassVar[str] = "gathered-moves"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Replace every chain of moves that copies three times and more."""
        outcome = PassOutcome()
        graph = model.graph
        order = {id(node): k for k, node in enumerate(graph)}
        writer = _Writer(graph)
        for node in list(graph):
            region = _region_of(node.outputs[0], order) if _ends_moves(node) else None
            if region is None:
                continue
            problem = writer.gather(node, region)
            if problem:
                outcome.refuse(node, problem)
            else:
                outcome.changed += 1
        remove_dead(graph)
        return outcome


def _ends_moves(node: ir.Node) -> bool:
    """Whether something else than a move reads what a move gives."""
    if node.op_type not in _MOVES or node.domain != "" or node.outputs[0].is_graph_output():
        return False
    return any(reader.op_type not in _MOVES for reader, _ in node.outputs[0].uses())


def _region_of(y: ir.Value, order: Mapping[int, int]) -> _Region | None:
    """The longest chain of moves before ``y`` that is worth a Gather, where there is one."""
    channels = static_dim(y, -1)
    if channels is None:
        return None
    frontier, inner = {id(y): y}, list[ir.Node]()
    best: _Region | None = None
    while len(inner) < _MOST_NODES:
        makers = [m for v in frontier.values() if (m := v.producer()) is not None]
        if not makers:
            break
        last = max(makers, key=lambda m: order.get(id(m), -1))
        inside = {id(node) for node in inner}
        made = last.outputs[0]
        if last.op_type not in _MOVES or not moves_rows(last, channels):
            break
        if made is not y and not all(_stays_inside(u, p, inside) for u, p in made.uses()):
            break
        inner.append(last)
        frontier.pop(id(made))
        frontier |= {id(v): v for v in rows_read(last)}
        x = next(iter(frontier.values()))
        if len(frontier) == 1 and static_dim(x, -1) == channels:
            best = _Region(x, y, tuple(inner[::-1]), channels)
    if best is None or (static_shape(best.x) is not None and static_shape(y) is not None):
        return None
    return best if sum(n.op_type in _COPIES for n in best.nodes) >= _WORTH else None


def _stays_inside(reader: ir.Node, place: int, inside: set[int]) -> bool:
    """Whether a reader is a move of the region or asks for sizes alone."""
    return id(reader) in inside or (reader.op_type == "Shape" and place == 0)


class _RefusedError(Exception):
    """Why a region cannot be redone on row numbers."""


class _Writer:
    """Writes row numbers of one graph; equal nodes on equal operands are one."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[object, ...], ir.Value] = {}
        self._key_of: dict[int, tuple[object, ...]] = {}
        self._constants: dict[tuple[object, ...], ir.Value] = {}

    def gather(self, anchor: ir.Node, region: _Region) -> str:
        """Let the readers of ``region.y`` read rows of ``region.x``. Gives why not, or nothing."""
        try:
            rows = self._rows_at(anchor, region)
        except _RefusedError as reason:
            return str(reason)
        x, y = region.x, region.y
        table = self._new(anchor, "Reshape", x, self._numbers([-1, region.channels]))
        table.type = y.type
        if region.padded:
            dtype = np.dtype(np.float32) if y.dtype is None else y.dtype.numpy()
            zeros = self._constant(np.zeros((1, region.channels), dtype=dtype))
            table = self._new(anchor, "Concat", table, zeros, axis=0)
            table.type = y.type
        read = self._new(anchor, "Gather", table, rows, axis=0)
        read.type, read.shape = y.type, y.shape
        replace_value(y, read)
        return ""

    def _rows_at(self, anchor: ir.Node, region: _Region) -> ir.Value:
        """Which row of x is where in y: int64, the shape of y without channels."""
        copy = _Copy(self, anchor, region)
        count, first = self._first_rows(anchor, region.x)
        copy.done[id(region.x)] = first
        for node in region.nodes:
            copy.move(node, count)
        return self.shared(anchor, "Squeeze", [copy.done[id(region.y)], self._numbers([-1])])

    def _first_rows(self, anchor: ir.Node, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """How many rows x has, and their numbers: [..., 1]."""
        dims = [] if x.shape is None else [*x.shape][:-1]
        known = all(isinstance(d, int) or d.value is not None for d in dims)
        key: tuple[object, ...] = ("lead", *map(str, dims)) if known else ("lead", id(x))
        if key not in self._made:
            self._made[key] = self._new(anchor, "Shape", x, start=0, end=len(dims))
            self._key_of[id(self._made[key])] = key
        lead = self._made[key]
        count = self.shared(anchor, "ReduceProd", [lead], keepdims=0)
        zero, one = (self._constant(np.array(n, dtype=np.int64)) for n in (0, 1))
        numbers = self.shared(anchor, "Range", [zero, count, one])
        shape = self.shared(anchor, "Concat", [lead, self._numbers([1])], axis=0)
        return count, self.shared(anchor, "Reshape", [numbers, shape])

    def shared(
        self, anchor: ir.Node, operator: str, inputs: list[ir.Value | None], **attributes: Any
    ) -> ir.Value:
        """A node of integers, written once for equal operands."""
        spelled = tuple(sorted((k, str(v)) for k, v in attributes.items()))
        key = (operator, spelled, *(self._identity(v) for v in inputs))
        if key not in self._made:
            self._made[key] = self._new(anchor, operator, *inputs, **attributes)
            self._made[key].type = ir.TensorType(ir.DataType.INT64)
            self._key_of[id(self._made[key])] = key
        return self._made[key]

    def _identity(self, value: ir.Value | None) -> object:
        if value is None:
            return None
        numbers = constant(value)
        if numbers is not None:
            return (str(numbers.dtype), numbers.shape, numbers.tobytes())
        return self._key_of.get(id(value), id(value))

    def _new(
        self, anchor: ir.Node, operator: str, *inputs: ir.Value | None, **attributes: Any
    ) -> ir.Value:
        node = ir.node(operator, inputs, attributes)
        insert_before(anchor, [node])
        return node.outputs[0]

    def _numbers(self, numbers: list[int]) -> ir.Value:
        return self._constant(np.array(numbers, dtype=np.int64))

    def _constant(self, array: np.ndarray) -> ir.Value:
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = new_initializer(self._graph, "moved_rows", array)
        return self._constants[key]

    def with_one_channel(self, anchor: ir.Node, shape: ir.Value, channels: int) -> ir.Value:
        """The shape that a Reshape is given, for one channel in place of so many."""
        numbers = constant(shape)
        if numbers is not None:
            if int(numbers[-1]) not in (channels, -1):
                raise _RefusedError("a view counts channels otherwise")
            return self._numbers([*map(int, numbers[:-1]), 1])
        made = shape.producer()
        last = None if made is None or made.op_type != "Concat" else constant(made.inputs[-1])
        if made is None or last is None or last.size == 0 or int(last[-1]) not in (channels, -1):
            raise _RefusedError("the channels of a view are computed")
        fewer = self._numbers([*map(int, last[:-1]), 1])
        return self.shared(anchor, "Concat", [*made.inputs[:-1], fewer], axis=0)


class _Copy:
    """The nodes of one region again, on row numbers."""

    def __init__(self, writer: _Writer, anchor: ir.Node, region: _Region) -> None:
        self._writer = writer
        self._anchor = anchor
        self._region = region
        self.done: dict[int, ir.Value] = {}

    def move(self, node: ir.Node, count: ir.Value) -> None:
        """One move; an empty place gets the number of the row behind the others."""
        attributes = {k: _plain(a) for k, a in node.attributes.items()}
        data = [self.done[id(v)] for v in rows_read(node)]
        others = [self._size(v) for v in node.inputs[len(data) :]]
        if node.op_type == "Reshape":
            if others[0] is None:
                raise _RefusedError("a view has no shape")
            others = [self._writer.with_one_channel(self._anchor, others[0], self._channels)]
        if node.op_type == "Pad":
            others = [others[0], count, *others[2:]]
        made = self._writer.shared(self._anchor, node.op_type, [*data, *others], **attributes)
        self.done[id(node.outputs[0])] = made

    @property
    def _channels(self) -> int:
        return self._region.channels

    def _size(self, value: ir.Value | None) -> ir.Value | None:
        """A number that a move reads, from sizes of row numbers where it is from sizes of rows."""
        node = None if value is None else value.producer()
        if value is None or node is None or constant(value) is not None:
            return value
        if node.op_type not in _SIZES or node.domain != "" or len(node.outputs) != 1:
            return value
        attributes = {k: _plain(a) for k, a in node.attributes.items()}
        if node.op_type == "Shape":
            read = node.inputs[0]
            if read is None or id(read) not in self.done:
                return value
            dims, end = rank(read) or 0, node.attributes.get_int("end", 1 << 31)
            if not 0 <= (end + dims if end < 0 else end) < dims:
                raise _RefusedError("the channels are counted with the rows")
            return self._writer.shared(self._anchor, "Shape", [self.done[id(read)]], **attributes)
        inputs = [self._size(v) for v in node.inputs]
        if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
            return value
        return self._writer.shared(self._anchor, node.op_type, inputs, **attributes)


def _plain(attribute: ir.Attr) -> Any:
    return attribute.value if not hasattr(attribute.value, "tolist") else attribute.value.tolist()
