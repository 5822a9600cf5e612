"""What nodes do to the rows of a value: move them, treat each alone, or neither.

A value [..., C] is a stack of rows of C channels. Reshape, Transpose, Slice, Split, Concat, Gather,
a Pad of nothing *move* rows as long as channels stay together and in order; a norm over channels,
a linear layer, an activation treat each row *alone*, whatever its place.

Where rows went is an array of row numbers in the shape of the value without its channels. Doing to
that array what the node does to the value gives the numbers after the node: nothing here knows what
a window or a shift is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from exporters.passes.base import constant, ints, rank, static_dim, static_shape

Rows = npt.NDArray[np.int64]

COPIES = frozenset({"Transpose", "Concat", "Gather"})
"""Moves that copy every row; the others are views and cuts."""

_SYMBOLIC_MOVES = frozenset({"Reshape", "Transpose", "Slice", "Concat", "Gather", "Pad"})
UNARY = frozenset({"Gelu", "Erf", "Relu", "Sigmoid", "Tanh", "HardSwish", "Neg", "Sqrt"})
BINARY = frozenset({"Add", "Sub", "Mul", "Div"})
NORMS = frozenset({"LayerNormalization", "RMSNormalization"})


@dataclass(frozen=True, slots=True)
class Moved:
    """A value as rows of another one.

    Attributes:
        source: where the rows are.
        rows: row numbers of ``source``, in the shape of the value without channels.
        costly: whether a node that copies made it, and not views and cuts alone.
    """

    source: ir.Value
    rows: Rows
    costly: bool = False

    @property
    def in_place(self) -> bool:
        """Whether every row is where it was."""
        flat = self.rows.reshape(-1)
        return flat.size == row_count(self.source) and bool((flat == np.arange(flat.size)).all())

    @property
    def is_permutation(self) -> bool:
        """Whether every row is there once."""
        flat = self.rows.reshape(-1)
        return flat.size == row_count(self.source) and np.unique(flat).size == flat.size


def row_count(value: ir.Value) -> int:
    """Rows of a value with static shape."""
    shape = static_shape(value)
    return 0 if shape is None else int(np.prod(shape[:-1]))


def unmoved(value: ir.Value) -> Moved | None:
    """A value as its own rows; None when its shape is symbolic or has no rows."""
    shape = static_shape(value)
    if shape is None or len(shape) < 2:
        return None
    return Moved(value, np.arange(int(np.prod(shape[:-1]))).reshape(shape[:-1]))


def is_move(node: ir.Node) -> bool:
    """Whether a node may do nothing but move rows; ``move`` says whether it does."""
    return node.domain == "" and node.op_type in _MOVES


def move(node: ir.Node, place: int, before: list[Moved]) -> Moved | None:
    """Output ``place`` of a node whose data inputs are ``before``; None when it moves no rows."""
    first = before[0]
    out = node.outputs[place]
    shape, inner = static_shape(out), static_shape(node.inputs[0]) if node.inputs[0] else None
    if shape is None or inner is None or len(shape) < 2 or shape[-1] != inner[-1]:
        return None
    rows = _MOVES[node.op_type](node, place, [m.rows for m in before], shape)
    if (
        rows is None
        or rows.shape != shape[:-1]
        or any(m.source is not first.source for m in before)
    ):
        return None
    costly = node.op_type in COPIES or any(m.costly for m in before)
    return Moved(first.source, rows, costly)


def _reshape(node: ir.Node, place: int, rows: list[Rows], shape: tuple[int, ...]) -> Rows | None:
    return rows[0].reshape(shape[:-1]) if rows[0].size == np.prod(shape[:-1]) else None


def _transpose(node: ir.Node, place: int, rows: list[Rows], shape: tuple[int, ...]) -> Rows | None:
    perm = ints(node, "perm")
    if perm is None or perm[-1] != len(shape) - 1:
        return None
    return rows[0].transpose(perm[:-1])


def _slice(node: ir.Node, place: int, rows: list[Rows], shape: tuple[int, ...]) -> Rows | None:
    numbers = [constant(v) for v in node.inputs[1:]]
    if len(numbers) < 3 or any(n is None for n in numbers):
        return None
    starts, ends, axes, *steps = (n.reshape(-1).tolist() for n in numbers if n is not None)
    cuts = [slice(None)] * len(shape)
    for k, axis in enumerate(axes):
        cuts[axis] = slice(starts[k], ends[k], steps[0][k] if steps else 1)
    return None if cuts[-1] != slice(None) else rows[0][tuple(cuts[:-1])]


def _split(node: ir.Node, place: int, rows: list[Rows], shape: tuple[int, ...]) -> Rows | None:
    axis = node.attributes.get_int("axis", 0) % len(shape)
    sizes = [static_shape(v) for v in node.outputs]
    if axis == len(shape) - 1 or any(s is None for s in sizes):
        return None
    ends = np.cumsum([s[axis] for s in sizes if s is not None])
    part = np.arange(ends[place] - shape[axis], ends[place])
    return rows[0].take(part, axis=axis)


def _concat(node: ir.Node, place: int, rows: list[Rows], shape: tuple[int, ...]) -> Rows | None:
    axis = node.attributes.get_int("axis", 0) % len(shape)
    return None if axis == len(shape) - 1 else np.concatenate(rows, axis=axis)


def _gather(node: ir.Node, place: int, rows: list[Rows], shape: tuple[int, ...]) -> Rows | None:
    """Rows by constant numbers, as torch.index_select has them."""
    index = constant(node.inputs[1])
    axis = node.attributes.get_int("axis", 0) % (rows[0].ndim + 1)
    if index is None or index.ndim != 1 or axis == rows[0].ndim:
        return None
    return rows[0].take(index, axis=axis)


def _pad(node: ir.Node, place: int, rows: list[Rows], shape: tuple[int, ...]) -> Rows | None:
    """torch pads windows that fit by nothing at all."""
    pads = constant(node.inputs[1])
    return rows[0] if pads is not None and not pads.any() else None


_MOVES = {
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Identity": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Gather": _gather,
    "Pad": _pad,
}


def moves_rows(node: ir.Node, channels: int) -> bool:
    """Whether a node moves rows of so many channels, sizes known or not; empty ones are zeros.

    Of its operands, those that are rows are the first, or all of a Concat.
    """
    dims = rank(node.outputs[0])
    data = rows_read(node)
    if node.domain != "" or node.op_type not in _SYMBOLIC_MOVES or dims is None or not data:
        return False
    widths = {static_dim(v, -1) for v in (*data, node.outputs[0])}
    if widths - {channels, None} or (None in widths and node.op_type in ("Reshape", "Pad")):
        return False
    match node.op_type:
        case "Transpose":
            perm = ints(node, "perm")
            return perm is not None and perm[-1] == dims - 1
        case "Concat":
            return node.attributes.get_int("axis", 0) % dims != dims - 1
        case "Gather":
            return node.attributes.get_int("axis", 0) == 0 and (rank(data[0]) or 0) > 1
        case "Slice":
            axes = constant(node.inputs[3]) if len(node.inputs) > 3 else None
            return axes is not None and all(int(a) % dims != dims - 1 for a in axes.reshape(-1))
        case "Pad":
            return _pads_with_zeros(node)
    return True


def rows_read(node: ir.Node) -> list[ir.Value]:
    """Operands of a move that are rows."""
    count = len(node.inputs) if node.op_type == "Concat" else 1
    return [v for v in node.inputs[:count] if v is not None]


def _pads_with_zeros(node: ir.Node) -> bool:
    mode = node.attributes.get("mode")
    given = node.inputs[2] if len(node.inputs) > 2 else None
    value = constant(given)
    zero = given is None or (value is not None and not value.any())
    return zero and (mode is None or mode.as_string() == "constant")


def alone(node: ir.Node) -> int | None:
    """At which input a node reads rows that it treats one by one; None when it does not."""
    # Constant has no inputs: the graphs of torch's first exporter keep it between other nodes.
    if node.domain != "" or len(node.outputs) != 1 or not node.inputs:
        return None
    first = node.inputs[0]
    if node.op_type in UNARY:
        return 0
    if node.op_type in NORMS and first is not None and first.shape is not None:
        axis = node.attributes.get_int("axis", -1)
        return 0 if axis in (-1, len(first.shape) - 1) else None
    if node.op_type == "MatMul":
        weight = constant(node.inputs[1])
        return 0 if weight is not None and weight.ndim == 2 and constant(first) is None else None
    if node.op_type in BINARY:
        for place in (0, 1):
            other, value = constant(node.inputs[1 - place]), node.inputs[place]
            if other is None or value is None or value.shape is None:
                continue
            over_channels = other.size == 1 or other.shape[-1] == other.size
            return place if over_channels and other.ndim <= len(value.shape) else None
    return None


def joins(node: ir.Node) -> bool:
    """Whether a node adds or multiplies two computed values row by row."""
    if node.domain != "" or node.op_type not in BINARY:
        return False
    one, other = node.inputs
    if one is None or other is None or constant(one) is not None or constant(other) is not None:
        return False
    shape = static_shape(one)
    return shape is not None and len(shape) > 1 and shape == static_shape(other)
