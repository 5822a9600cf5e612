"""Rotate queries and keys with one ``com.microsoft.RotaryEmbedding`` each.

Libraries spell the rotation of a head with Slice, Neg, Concat, Mul and Add, and take the prefix
tokens off before it and put them back after it. :mod:`exporters.passes.rotation` measures what
such a region does, whatever its spelling; rows of prefix tokens come out as cosine 1 and sine 0.
:mod:`exporters.passes.rotary_tables` writes the tables, one for all layers of equal angles, with
sizes and batch fixed or symbolic.

The node reads [B, N, D], so that heads need not be moved forward and back. Where every head has
angles of its own, heads are counted as tokens: [B, N * M, d] are the same numbers in the same
order. Row numbers are written out as [B, N]: OpenVINO misreads the single offset that the operator
also allows.

Letters used in shapes: B batch, M heads, N tokens, d head size, D = M * d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from exporters.passes.attention import HeadsFlattener
from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    insert_before,
    remove_dead,
    static_dim,
)
from exporters.passes.rotary_tables import RotaryTables
from exporters.passes.rotation import Measurer, Region, Turn, region_before
from exporters.passes.size_only import Bindings, SizeOnly
from vitpe_deploy.request import Target

_CONTRIB = "com.microsoft"
_PIXELS = ((112, 224), (224, 168))
"""Two sizes to measure at: neither square, more than one patch of up to 56 pixels."""
_LENGTHS = (12, 20)
_BATCH = 2


class FuseRotary(GraphPass):
    """One node per rotated operand, one table for all layers."""

    name: ClassVar[str] = "rotary"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Replace the rotation before every fused attention node."""
        outcome = PassOutcome()
        if context.target is Target.PORTABLE:
            return outcome
        graph, opset = model.graph, model.opset_imports[""]
        sizes = SizeOnly(graph, opset)
        candidates = _candidates(graph, sizes)
        measurer = Measurer(sizes, _bindings([region for *_, region in candidates]), opset)
        writer = _Writer(graph, measurer)
        for node, place, region in candidates:
            turn = measurer.turn(region)
            refused = turn if isinstance(turn, str) else writer.rotate(node, place, region, turn)
            if refused is None:
                outcome.changed += 1
            else:
                outcome.refuse(node, refused)
        remove_dead(graph)
        return outcome


def _candidates(graph: ir.Graph, sizes: SizeOnly) -> list[tuple[ir.Node, int, Region]]:
    """Attention nodes, which of their inputs is rotated, and by what."""
    order = {id(node): k for k, node in enumerate(graph)}
    found = []
    for node in graph:
        if node.op_type != "MultiHeadAttention":
            continue
        for place in (0, 1):
            rotated = _heads_before(node.inputs[place])
            region = None if rotated is None else region_before(rotated, sizes, order)
            if region is not None:
                found.append((node, place, region))
    return found


def _heads_before(flat: ir.Value | None) -> ir.Value | None:
    """[B, M, N, d] whose heads are moved behind the tokens and joined, as attention reads them."""
    joined = None if flat is None else flat.producer()
    if joined is None or joined.op_type != "Reshape" or joined.inputs[0] is None:
        return None
    turned = joined.inputs[0].producer()
    return turned.inputs[0] if turned is not None and turned.op_type == "Transpose" else None


def _bindings(regions: Sequence[Region]) -> tuple[Bindings, ...]:
    """Numbers for the symbols of all regions, twice; once nothing where all sizes are fixed."""
    symbols, batches, lengths = set[str](), set[str](), set[str]()
    for region in regions:
        symbols |= region.shape.free_symbols()
        for dim, found in zip(region.shape, (batches, None, lengths), strict=False):
            if found is not None and isinstance(dim, ir.SymbolicDim):
                # Tokens that are a lone symbol are counted by the input, not made of pixels.
                alone = dim.free_symbols() == {dim.value}
                found |= dim.free_symbols() if found is batches or alone else set()
    if not symbols:
        return ({},)
    pixels = sorted(symbols - batches - lengths)
    return tuple(
        dict.fromkeys(batches, _BATCH)
        | dict.fromkeys(lengths - batches, length)
        | {name: pair[k % 2] for k, name in enumerate(pixels)}
        for pair, length in zip(_PIXELS, _LENGTHS, strict=True)
    )


class _Writer:
    """Writes the new nodes of one graph."""

    def __init__(self, graph: ir.Graph, measurer: Measurer) -> None:
        self._measurer = measurer
        self._flattener = HeadsFlattener(graph)
        self._tables = RotaryTables(graph)

    def rotate(self, node: ir.Node, place: int, region: Region, turn: Turn) -> str | None:
        """Let attention ``node`` read heads that one operator turns; or say why not."""
        num_heads, head_dim = static_dim(region.x, 1), static_dim(region.x, 3)
        if num_heads is None or head_dim is None:
            return f"heads {region.shape} have no fixed size"
        arrays = self._measurer.free_arrays(region)
        cos = self._tables.table(node, region, arrays, turn, "cos")
        sin = self._tables.table(node, region, arrays, turn, "sin")
        if cos is None or sin is None:
            return "no value that the rotation multiplies by is its table"
        flat = self._flattener.flatten_heads(node, region.x, num_heads)  # [B, N, D]
        rows = self._tables.row_numbers(node, flat, cos, region, turn)
        turned = ir.node(
            "RotaryEmbedding",
            [flat, rows, cos, sin],
            {
                "num_heads": num_heads if turn.shared else 1,
                "interleaved": int(turn.interleaved),
            },
            domain=_CONTRIB,
            name=f"{node.name}_rotary_{'qk'[place]}" if node.name else None,
        )
        nodes = [turned]
        if not turn.shared:
            ints = self._tables.integers
            apart = ir.node("Reshape", [flat, ints(0, -1, head_dim)])
            turned.replace_input_with(0, apart.outputs[0])
            whole = ir.node("Reshape", [turned.outputs[0], ints(0, -1, num_heads * head_dim)])
            nodes = [apart, turned, whole]
        insert_before(node, nodes)
        for one in nodes:
            one.outputs[0].type = region.x.type
        out = nodes[-1].outputs[0]
        out.shape = ir.Shape([region.shape[0], region.shape[2], num_heads * head_dim])
        node.replace_input_with(place, out)
        return None
