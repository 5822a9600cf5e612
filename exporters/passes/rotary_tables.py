"""The tables that ``RotaryEmbedding`` reads: constants, or cut from what the model computes.

With fixed sizes (case 1) the measured numbers become constants. With symbolic ones (case 2) the
table is one of the values that the rotation multiplies by, a column per pair kept of it and rows
for the prefix tokens put before it. Which value, which columns and how many rows is read off the
measurements. Rotations of equal angles get the same table.

Letters used in shapes: B batch, M heads, N tokens, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from exporters.passes.base import insert_before, new_initializer
from exporters.passes.rotation import Measured, Region, Turn

Which: TypeAlias = Literal["cos", "sin"]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a table is in a graph.

    Attributes:
        value: [..., rows, columns].
        lead: leading dimensions that stay: none, or the heads.
        columns: one or two per pair.
        prefix: rows that it lacks at its front.
    """

    value: ir.Value
    lead: tuple[int, ...]
    columns: int
    prefix: int


class RotaryTables:
    """Tables and row numbers of one graph, each written once."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._written: dict[tuple[object, ...], ir.Value] = {}

    def integers(self, *numbers: int) -> ir.Value:
        """An int64 vector; equal ones are one initializer."""
        key = ("integers", *numbers)
        if key not in self._written:
            array = np.array(numbers, dtype=np.int64)
            self._written[key] = new_initializer(self._graph, "rotary_shape", array)
        return self._written[key]

    def table(
        self, anchor: ir.Node, region: Region, arrays: Measured, turn: Turn, which: Which
    ) -> ir.Value | None:
        """Cosines or sines: [N, d/2] where heads share them, else [N * M, d/2], head by head.

        Args:
            anchor: new nodes go before it.
            region: the rotation.
            arrays: what its free values are at each size.
            turn: what it does.
            which: of the two.

        Returns:
            None when sizes are symbolic and no value in the graph is the table.
        """
        wanted = [getattr(table, which) for table in turn.tables]  # [M, N, d/2] per size
        key = (which, *((a.shape, a.tobytes()) for a in wanted))
        if key not in self._written:
            if isinstance(region.shape[2], int):  # as many tokens as ever, whatever the batch
                rows = wanted[0].swapaxes(0, 1).reshape(-1, wanted[0].shape[-1])
                array = np.ascontiguousarray(rows)
                self._written[key] = new_initializer(self._graph, f"rotary_{which}", array)
            else:
                source = _source_of(region, arrays, turn, wanted, still=which == "cos")
                if source is None:
                    return None
                self._written[key] = self._computed(anchor, source, turn, which)
        return self._written[key]

    def _computed(self, anchor: ir.Node, source: _Source, turn: Turn, which: Which) -> ir.Value:
        value, nodes = source.value, list[ir.Node]()
        width = turn.tables[0].cos.shape[-1]

        def then(kind: str, *inputs: ir.Value, **attributes: Any) -> None:
            nonlocal value
            nodes.append(ir.node(kind, inputs, attributes))
            value = nodes[-1].outputs[0]
            value.type = source.value.type

        if value.shape is None or len(value.shape) != len(source.lead) + 2:
            then("Reshape", value, self.integers(*source.lead, -1, source.columns))
        if source.columns != width:  # two columns per pair say the same
            stop, step = (source.columns, 2) if turn.interleaved else (width, 1)
            then("Slice", value, *map(self.integers, (0, stop, -1, step)))
        if source.prefix:
            still = np.full((*source.lead, source.prefix, width), which == "cos", np.float32)
            rows = new_initializer(self._graph, f"rotary_{which}_prefix", still)
            then("Concat", rows, value, axis=-2)
        if source.lead:  # [M, N, d/2] -> [N * M, d/2]
            then("Transpose", value, perm=[1, 0, 2])
            then("Reshape", value, self.integers(-1, width))
        insert_before(anchor, nodes)
        return value

    def row_numbers(
        self, anchor: ir.Node, flat: ir.Value, table: ir.Value, region: Region, turn: Turn
    ) -> ir.Value:
        """Which row of ``table`` each token of each sequence reads: int64 [B, rows]."""
        batch = region.shape[0]
        key = ("rows", str(batch), *(t.cos.shape[:2] for t in turn.tables))
        if key not in self._written:
            fixed = table.const_value
            if fixed is not None and isinstance(batch, int):
                rows = np.tile(np.arange(len(fixed.numpy()), dtype=np.int64), (batch, 1))
                self._written[key] = new_initializer(self._graph, "rotary_positions", rows)
            else:
                self._written[key] = self._counted(anchor, flat, table, batch)
        return self._written[key]

    def _counted(
        self, anchor: ir.Node, flat: ir.Value, table: ir.Value, batch: int | ir.SymbolicDim
    ) -> ir.Value:
        zero, one = (
            new_initializer(self._graph, f"rotary_{name}", np.array(n, dtype=np.int64))
            for name, n in (("first", 0), ("step", 1))
        )
        count = ir.node("Shape", [table], {"start": 0, "end": 1})
        number = ir.node("Squeeze", [count.outputs[0], self.integers(0)])
        rows = ir.node("Range", [zero, number.outputs[0], one])
        nodes = [count, number, rows, ir.node("Unsqueeze", [rows.outputs[0], self.integers(0)])]
        if batch != 1:
            if isinstance(batch, int):
                sequences = self.integers(batch)
            else:
                nodes.append(
                    ir.node("Shape", [self._of_batch(flat, batch)], {"start": 0, "end": 1})
                )
                sequences = nodes[-1].outputs[0]
            shape = ir.node("Concat", [sequences, count.outputs[0]], {"axis": 0})
            nodes += [shape, ir.node("Expand", [nodes[3].outputs[0], shape.outputs[0]])]
        insert_before(anchor, nodes)
        for node in nodes:
            node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        return nodes[-1].outputs[0]

    def _of_batch(self, flat: ir.Value, batch: ir.SymbolicDim) -> ir.Value:
        """What to read the batch off: an input, so that queries stay read by attention alone."""
        for value in self._graph.inputs:
            if value.shape is not None and len(value.shape) and value.shape[0] == batch:
                return value
        return flat


def _source_of(
    region: Region, measured: Measured, turn: Turn, wanted: Sequence[np.ndarray], *, still: bool
) -> _Source | None:
    """The free value that holds the wanted numbers at every size.

    ``still`` is what a prefix row must hold: cosine 1 or sine 0.
    """
    heads, _, width = wanted[0].shape
    lead = () if turn.shared else (heads,)
    for value in region.free:
        arrays = [at_size[id(value)] for at_size in measured]
        columns = arrays[0].shape[-1] if arrays[0].ndim > 1 else 0
        if columns not in (width, 2 * width) or arrays[0].dtype != np.float32:
            continue
        if any(int(np.prod(a.shape[:-2])) != heads for a in arrays):
            continue
        kept = slice(None) if columns == width else turn.first_of_pairs
        tables = [a.reshape(heads, -1, columns)[..., kept] for a in arrays]
        missing = {w.shape[1] - t.shape[1] for w, t in zip(wanted, tables, strict=True)}
        prefix = missing.pop()
        if missing or prefix < 0:
            continue
        if all(
            (w[:, :prefix] == still).all() and (w[:, prefix:] == t).all()
            for w, t in zip(wanted, tables, strict=True)
        ):
            return _Source(value, lead, columns, prefix)
    return None
