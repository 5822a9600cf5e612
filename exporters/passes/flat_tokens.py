"""What treats tokens alone works on lists of tokens [1, N, C], for OpenVINO.

Windows keep tokens as maps [B, H, W, C] or groups [B, windows, rows, C]. Norms, linear layers,
activations and residual adds treat each of them alone, so any list of the same tokens will do, and
OpenVINO's CPU plugin has better kernels for three dimensions than for four:

* LayerNorm is one node (MVN); of a map it becomes mean, difference and RMS norm;
* a linear layer followed by GELU is a 1x1 convolution; of a map it is a product a fifth slower;
* a view between a residual add and a norm copies.

Nodes that are next to each other are taken together, so that views stand at their borders alone; a
border at another view is one view. Of symbolic sizes, where a view back would have to be computed,
a node goes before the view of a list that it reads, a norm before moves as well, and one after an
image [B, C, H, W] with its channels put last is that of a list. Left alone: neighbours without a
norm or a linear layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    constant,
    insert_before,
    ints,
    new_initializer,
    rank,
    remove_dead,
    replace_value,
    static_dim,
    static_shape,
)
from exporters.passes.row_moves import BINARY, NORMS, UNARY, alone, moves_rows
from vitpe_deploy.request import Target

_LIST = 3
_CHANNELS_LAST = (0, 2, 3, 1)
_ORDERS = frozenset({"Reshape", "Transpose", "Slice", "Gather"})
"""Moves that leave no place empty."""


class FlatTokens(GraphPass):
    """Norms, linear layers and what is between them on [1, B H W, C] in place of [B, H, W, C]."""

    name: ClassVar[str] = "flat-tokens"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Flatten every group of neighbours that holds a norm or a linear layer."""
        outcome = PassOutcome()
        if context.target is not Target.OPENVINO:
            return outcome
        graph = model.graph
        writer = _Writer(graph)
        outcome.changed += sum(writer.list_symbolic(node) for node in list(graph))
        nodes = [node for node in graph if _treats_tokens_alone(node, outcome)]
        for group in _neighbours(nodes):
            if any(_gains(node) for node in group):
                writer.flatten(group)
                outcome.changed += len(group)
        remove_dead(graph)
        return outcome


def _gains(node: ir.Node) -> bool:
    return node.op_type in NORMS or node.op_type == "MatMul"


def _treats_tokens_alone(node: ir.Node, outcome: PassOutcome) -> bool:
    """Whether a node works on the channels of each token of [.., C], more than three dimensions."""
    dims = rank(node.outputs[0]) if node.outputs else None
    if node.domain != "" or dims is None or dims <= _LIST:
        return False
    problem = _problem(node, dims)
    if problem:
        outcome.refuse(node, problem)
    return problem == ""


def _problem(node: ir.Node, dims: int) -> str | None:
    """Why a node stays: empty where it need not, None where it is no candidate at all."""
    operands = _data(node)
    if operands is None:
        return None
    if node.op_type in NORMS:
        if node.attributes.get_int("axis", -1) not in (-1, dims - 1):
            return "it normalises over more than channels"
        if len(node.outputs) > 1:
            return "its mean or deviation is read"
    shapes = [static_shape(v) for v in (*operands, node.outputs[0])]
    if any(s is None for s in shapes):
        return f"sizes are symbolic: {node.outputs[0].shape}" if _gains(node) else None
    same = len({s[:-1] for s in shapes if s is not None}) == 1
    return "" if same else None


def _data(node: ir.Node) -> list[ir.Value] | None:
    """Operands that are tokens; None where the node does not treat each of them alone."""
    first = node.inputs[0] if node.inputs else None
    if first is None:
        return None
    if node.op_type in NORMS or node.op_type in UNARY:
        return [first]
    if node.op_type == "MatMul":
        weight = constant(node.inputs[1])
        return [first] if weight is not None and weight.ndim == 2 else None
    if node.op_type in BINARY:
        return [v for v in node.inputs if v is not None and not _of_channels(v)]
    return None


def _of_channels(value: ir.Value) -> bool:
    """Whether a constant says the same of all tokens."""
    numbers = constant(value)
    return numbers is not None and prod(numbers.shape[:-1]) == 1


def _place_of_symbolic_view(node: ir.Node) -> int | None:
    """At which input a node of as many channels reads a list [B, N, C] that is viewed as a map."""
    place = alone(node)
    read = None if place is None else node.inputs[place]
    view = None if read is None else read.producer()
    dims = rank(read)
    if read is None or view is None or view.op_type != "Reshape" or dims is None or dims <= _LIST:
        return None
    width, source = static_dim(read, -1), view.inputs[0]
    widths = (static_dim(source, -1), static_dim(node.outputs[0], -1))
    if static_shape(read) is not None or rank(source) != _LIST or widths != (width, width):
        return None
    others = [constant(v) for k, v in enumerate(node.inputs) if k != place]
    return place if all(n is not None and n.ndim <= _LIST for n in others) else None


def _is_norm_of_symbolic_image(node: ir.Node) -> bool:
    """Whether a norm over channels reads an image [B, C, H, W] whose channels are put last."""
    turned = _symbolic_map_under(node, "Transpose")
    known = turned is not None and static_dim(turned.outputs[0], -1) is not None
    return turned is not None and known and ints(turned, "perm") == _CHANNELS_LAST


def _list_behind_moves(node: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """A list [B, N, C] whose rows get to a norm by moves that nothing else reads, and the first."""
    value = node.inputs[0]
    width = static_dim(value, -1)
    if _is_norm(node) is None or width is None or value is None or static_shape(value) is not None:
        return None
    while not value.is_graph_output() and len(value.uses()) == 1:
        move = value.producer()
        if move is None or move.op_type not in _ORDERS or not moves_rows(move, width):
            return None
        source = move.inputs[0]
        if source is None:
            return None
        if rank(source) == _LIST and static_dim(source, 2) == width:
            return source, move
        value = source
    return None


def _is_norm(node: ir.Node) -> int | None:
    """The rank of what a norm over channels reads, more than three; None for any other node."""
    if node.op_type not in NORMS or node.domain != "" or len(node.outputs) != 1:
        return None
    dims = rank(node.inputs[0])
    if dims is None or dims <= _LIST:
        return None
    return dims if node.attributes.get_int("axis", -1) in (-1, dims - 1) else None


def _symbolic_map_under(node: ir.Node, operator: str) -> ir.Node | None:
    """The node that makes what a norm over channels reads, a map of symbolic size."""
    read = node.inputs[0] if _is_norm(node) is not None else None
    made = None if read is None else read.producer()
    if read is None or made is None or made.op_type != operator or static_shape(read) is not None:
        return None
    return made


def _neighbours(nodes: Iterable[ir.Node]) -> list[list[ir.Node]]:
    """Nodes in groups, those together that read one another, in their order."""
    group_of: dict[int, list[ir.Node]] = {}
    for node in nodes:
        merged = [node]
        for value in _data(node) or ():
            made = value.producer()
            before = None if made is None else group_of.get(id(made))
            if before is not None and before is not merged:
                merged = [*before, *merged]
                group_of |= {id(n): merged for n in merged}
        group_of[id(node)] = merged
    return list({id(group): group for group in group_of.values()}.values())


class _Writer:
    """Puts views around groups of nodes; equal views and shapes of one graph are shared."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._shapes: dict[tuple[int, ...], ir.Value] = {}

    def flatten(self, group: list[ir.Node]) -> None:
        """Nodes work on lists; what others read of them is viewed as before."""
        inside = {id(node) for node in group}
        lists: dict[int, ir.Value] = {}
        before = {id(n): [(u, k) for u, k in n.outputs[0].uses()] for n in group}
        for node in group:
            for value in _data(node) or ():
                made = value.producer()
                if made is not None and id(made) in inside:
                    continue
                if id(value) not in lists:
                    lists[id(value)] = self._as_list(node, value)
                for place, read in enumerate(node.inputs):
                    if read is value:
                        node.replace_input_with(place, lists[id(value)])
            for place, read in enumerate(node.inputs):
                if read is not None and node.op_type in BINARY and _of_channels(read):
                    self._drop_ones(node, place, read)
            for name, attribute in _over_channels(node).items():
                node.attributes[name] = attribute
        for node in group:
            out = node.outputs[0]
            shape = static_shape(out) or ()
            out.shape = ir.Shape(_listed(shape))
            self._view_for_others(node, shape, before[id(node)], inside)

    def list_symbolic(self, node: ir.Node) -> bool:
        """A node that reads a map of symbolic size reads a list. Gives whether it could."""
        behind = _list_behind_moves(node)
        if behind is not None:
            self.norm_before_moves(node, *behind)
        elif (place := _place_of_symbolic_view(node)) is not None:
            self.before_view(node, place)
        elif _is_norm_of_symbolic_image(node):
            self.norm_of_list(node)
        else:
            return False
        return True

    def norm_before_moves(self, node: ir.Node, source: ir.Value, first: ir.Node) -> None:
        """Rows are normalised, then moved."""
        old, moved = node.outputs[0], node.inputs[0]
        read = [source, *node.inputs[1:]]
        norm = ir.node(node.op_type, read, _over_channels(node), name=node.name)
        insert_before(first, [norm])
        norm.outputs[0].type, norm.outputs[0].shape = old.type, source.shape
        first.replace_input_with(0, norm.outputs[0])
        if moved is not None:
            replace_value(old, moved)
        self._graph.remove(node, safe=True)

    def before_view(self, node: ir.Node, place: int) -> None:
        """The list is treated, then viewed."""
        read = node.inputs[place]
        view = None if read is None else read.producer()
        if view is None or view.inputs[0] is None:
            raise ValueError(f"{node.name} reads no view")
        how = dict(view.attributes)
        self._treated_then_viewed(node, place, view.inputs[0], view.inputs[1], how)

    def norm_of_list(self, node: ir.Node) -> None:
        """[B, C, H, W] -> [B, C, H W] -> [B, H W, C], normalised, -> [B, H, W, C]."""
        turned = None if node.inputs[0] is None else node.inputs[0].producer()
        image = None if turned is None else turned.inputs[0]
        if image is None or image.shape is None:
            raise ValueError(f"{node.name} reads no image")
        batch, width, *_ = image.shape
        rows = ir.node("Reshape", [image, self._shape((0, 0, -1))])
        listed = ir.node("Transpose", [rows.outputs[0]], {"perm": [0, 2, 1]})
        count = ir.node("Shape", [image], {"start": 0, "end": 1})
        sides = ir.node("Shape", [image], {"start": 2, "end": 4})
        channels = new_initializer(self._graph, "channels", np.array([width], dtype=np.int64))
        sizes = [count.outputs[0], sides.outputs[0], channels]
        shape = ir.node("Concat", sizes, {"axis": 0})
        insert_before(node, [rows, listed, count, sides, shape])
        listed.outputs[0].type, rows.outputs[0].type = image.type, image.type
        listed.outputs[0].shape = ir.Shape([batch, None, width])
        self._treated_then_viewed(node, 0, listed.outputs[0], shape.outputs[0], {})

    def _treated_then_viewed(
        self,
        node: ir.Node,
        place: int,
        source: ir.Value,
        shape: ir.Value | None,
        how: dict[str, ir.Attr],
    ) -> None:
        old = node.outputs[0]
        read = [source if k == place else v for k, v in enumerate(node.inputs)]
        treated = ir.node(node.op_type, read, _over_channels(node), name=node.name)
        after = ir.node("Reshape", [treated.outputs[0], shape], how)
        insert_before(node, [treated, after])
        treated.outputs[0].shape, after.outputs[0].shape = source.shape, old.shape
        treated.outputs[0].type = after.outputs[0].type = old.type
        replace_value(old, after.outputs[0])
        self._graph.remove(node, safe=True)

    def _as_list(self, anchor: ir.Node, value: ir.Value) -> ir.Value:
        """[1, N, C], of what the value is a view of where it is one."""
        wanted = _listed(static_shape(value) or ())
        numbers = constant(value)
        if numbers is not None:
            return new_initializer(self._graph, value.name or "tokens", numbers.reshape(wanted))
        source = _under_views(value)
        return source if static_shape(source) == wanted else self._view(anchor, source, wanted)

    def _drop_ones(self, node: ir.Node, place: int, value: ir.Value) -> None:
        numbers = constant(value)
        if numbers is not None and numbers.ndim > _LIST:
            array = np.ascontiguousarray(numbers.reshape(-1))
            fewer = new_initializer(self._graph, value.name or "channels", array)
            node.replace_input_with(place, fewer)

    def _view_for_others(
        self,
        node: ir.Node,
        shape: tuple[int, ...],
        uses: list[tuple[ir.Node, int]],
        inside: set[int],
    ) -> None:
        out = node.outputs[0]
        others = [(reader, place) for reader, place in uses if id(reader) not in inside]
        if not others and not out.is_graph_output():
            return
        back = ir.node("Reshape", [out, self._shape(shape)])
        back.outputs[0].type, back.outputs[0].shape = out.type, ir.Shape(shape)
        self._graph.insert_after(node, back)
        if out.is_graph_output():
            replace_value(out, back.outputs[0])
            back.replace_input_with(0, out)
            for reader, place in uses:
                reader.replace_input_with(place, out)
        for reader, place in others:
            reader.replace_input_with(place, back.outputs[0])

    def _view(self, anchor: ir.Node, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        node = ir.node("Reshape", [value, self._shape(shape)])
        insert_before(anchor, [node])
        node.outputs[0].type, node.outputs[0].shape = value.type, ir.Shape(shape)
        return node.outputs[0]

    def _shape(self, shape: tuple[int, ...]) -> ir.Value:
        if shape not in self._shapes:
            array = np.array(shape, dtype=np.int64)
            self._shapes[shape] = new_initializer(self._graph, "tokens_shape", array)
        return self._shapes[shape]


def _over_channels(node: ir.Node) -> dict[str, ir.Attr]:
    """Its attributes, for another number of dimensions."""
    attributes = dict(node.attributes)
    return attributes | ({"axis": ir.AttrInt64("axis", -1)} if "axis" in attributes else {})


def _listed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1, prod(shape[:-1]), shape[-1])


def _under_views(value: ir.Value) -> ir.Value:
    """What a value is a view of: itself, or the operand of Reshapes."""
    made = value.producer()
    while made is not None and made.op_type == "Reshape" and made.inputs[0] is not None:
        value = made.inputs[0]
        made = value.producer()
    return value
