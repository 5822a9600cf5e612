"""What treats tokens alone works on lists of tokens [1, N, C], for OpenVINO.

Windows keep tokens as maps [B, H, W, C] or groups [B, windows, rows, C]. Norms, linear layers,
activations and residual adds treat each of them alone, so any list of the same tokens will do, and
OpenVINO's CPU plugin has better kernels for three dimensions than for four:

* LayerNorm is one node (MVN); of a map it becomes mean, difference and RMS norm;
* a linear layer followed by GELU is a 1x1 convolution; of a map it is a product a fifth slower;
* a view between a residual add and a norm copies.

Nodes that are next to each other are taken together, so that views stand at their borders alone; a
border at another view is one view. Of symbolic sizes, where a view back would have to be computed,
a norm after a view of a list goes before that view. Left alone: neighbours without a norm or a
linear layer.
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
    new_initializer,
    rank,
    remove_dead,
    replace_value,
    static_dim,
    static_shape,
)
from vitpe_deploy.request import Target

_LIST = 3
_ONE_OPERAND = frozenset({"Gelu", "Relu", "Sigmoid", "Tanh", "Erf", "Neg", "Identity", "HardSwish"})
_TWO_OPERANDS = frozenset({"Add", "Sub", "Mul", "Div"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})


class FlatTokens(GraphPass):
    """Norms, linear layers and what is between them on [1, B H W, C] in place of [B, H, W, C]."""

    name: ClassVar[str] = "flat-tokens"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Flatten every group of neighbours that holds a norm or a linear layer."""
        outcome = PassOutcome()
        if context.target is not Target.OPENVINO:
            return outcome
        graph = model.graph
        nodes = [node for node in graph if _treats_tokens_alone(node, outcome)]
        writer = _Writer(graph)
        for node in list(graph):
            if _is_norm_of_symbolic_view(node):
                writer.norm_before_view(node)
                outcome.changed += 1
        for group in _neighbours(nodes):
            if any(_gains(node) for node in group):
                writer.flatten(group)
                outcome.changed += len(group)
        remove_dead(graph)
        return outcome


def _gains(node: ir.Node) -> bool:
    return node.op_type in _NORMS or node.op_type == "MatMul"


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
    if node.op_type in _NORMS:
        if node.attributes.get_int("axis", -1) not in (-1, dims - 1):
            return "it normalises over more than channels"
        if len(node.outputs) > 1:
            return "its mean or deviation is read"
    shapes = [static_shape(v) for v in (*operands, node.outputs[0])]
    if any(s is None for s in shapes):
        stays = _gains(node) and not _is_norm_of_symbolic_view(node)
        return f"sizes are symbolic: {node.outputs[0].shape}" if stays else None
    same = len({s[:-1] for s in shapes if s is not None}) == 1
    return "" if same else None


def _data(node: ir.Node) -> list[ir.Value] | None:
    """Operands that are tokens; None where the node does not treat each of them alone."""
    first = node.inputs[0] if node.inputs else None
    if first is None:
        return None
    if node.op_type in _NORMS or node.op_type in _ONE_OPERAND:
        return [first]
    if node.op_type == "MatMul":
        weight = constant(node.inputs[1])
        return [first] if weight is not None and weight.ndim == 2 else None
    if node.op_type in _TWO_OPERANDS:
        return [v for v in node.inputs if v is not None and not _of_channels(v)]
    return None


def _of_channels(value: ir.Value) -> bool:
    """Whether a constant says the same of all tokens."""
    numbers = constant(value)
    return numbers is not None and prod(numbers.shape[:-1]) == 1


def _is_norm_of_symbolic_view(node: ir.Node) -> bool:
    """Whether a norm over channels reads a list [B, N, C] that is viewed as a map."""
    if node.op_type not in _NORMS or node.domain != "" or len(node.outputs) != 1:
        return False
    viewed = node.inputs[0]
    view = None if viewed is None else viewed.producer()
    dims = rank(viewed)
    if view is None or view.op_type != "Reshape" or dims is None or dims <= _LIST:
        return False
    if node.attributes.get_int("axis", -1) not in (-1, dims - 1):
        return False
    width = static_dim(viewed, -1)
    source = view.inputs[0]
    symbolic = viewed is not None and static_shape(viewed) is None
    return (
        symbolic and rank(source) == _LIST and width is not None and static_dim(source, 2) == width
    )


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
                if read is not None and node.op_type in _TWO_OPERANDS and _of_channels(read):
                    self._drop_ones(node, place, read)
            if "axis" in node.attributes:
                node.attributes["axis"] = ir.AttrInt64("axis", -1)
        for node in group:
            out = node.outputs[0]
            shape = static_shape(out) or ()
            out.shape = ir.Shape(_listed(shape))
            self._view_for_others(node, shape, before[id(node)], inside)

    def norm_before_view(self, node: ir.Node) -> None:
        """The list is normalised, then viewed."""
        old = node.outputs[0]
        view = None if node.inputs[0] is None else node.inputs[0].producer()
        if view is None or view.inputs[0] is None:
            raise ValueError(f"{node.name} reads no view")
        attributes = dict(node.attributes) | {"axis": ir.AttrInt64("axis", -1)}
        source = view.inputs[0]
        norm = ir.node(node.op_type, [source, *node.inputs[1:]], attributes, name=node.name)
        after = ir.node("Reshape", [norm.outputs[0], view.inputs[1]], dict(view.attributes))
        insert_before(node, [norm, after])
        norm.outputs[0].shape, after.outputs[0].shape = source.shape, old.shape
        norm.outputs[0].type = after.outputs[0].type = old.type
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


def _listed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1, prod(shape[:-1]), shape[-1])


def _under_views(value: ir.Value) -> ir.Value:
    """What a value is a view of: itself, or the operand of Reshapes."""
    made = value.producer()
    while made is not None and made.op_type == "Reshape" and made.inputs[0] is not None:
        value = made.inputs[0]
        made = value.producer()
    return value
