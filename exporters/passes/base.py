"""What a graph pass is: it changes a model in place and says what it did and what it left alone.

A candidate that a pass does not change is refused with the reason and the offending value, so that
``--json`` and ``vitpe-inspect`` can say why a model came out slower than it could.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from vitpe_deploy.request import Target
from vitpe_deploy.results import Refusal


@dataclass(frozen=True, slots=True)
class PassContext:
    """What a pass may know about the export it works for.

    Attributes:
        target: whose kernels the graph is spelled for.
        opset: version of the default operator set.
        symbolic: whether any input dimension is symbolic.
        half: whether nodes will be made to compute in float16.
    """

    target: Target
    opset: int
    symbolic: bool = False
    half: bool = False


@dataclass(slots=True)
class PassOutcome:
    """What one pass did.

    Attributes:
        changed: how many places.
        refused: candidates left alone.
        facts: what later steps must know of it.
    """

    changed: int = 0
    refused: list[Refusal] = field(default_factory=list)
    facts: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def refuse(self, node: ir.Node, reason: str) -> None:
        """Note a candidate that was left alone."""
        self.refused.append(Refusal(node=node.name or node.op_type, reason=reason))


class GraphPass(ABC):
    """One change to a graph that keeps its results."""

    name: ClassVar[str]
    """Name in reports and for ``--skip-pass``."""

    required: ClassVar[bool] = False
    """Whether a file without this pass would be wrong or unloadable, so it cannot be skipped."""

    @abstractmethod
    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Change ``model`` in place."""


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The numbers of an initializer or Constant node, or None when it is computed."""
    if value is None:
        return None
    tensor = value.const_value
    if tensor is None:
        node = value.producer()
        if node is None or node.op_type != "Constant":
            return None
        attribute = node.attributes.get("value")
        if attribute is None:
            return None
        tensor = attribute.as_tensor()
    return tensor.numpy()


def new_initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """A new initializer of ``graph`` under a free name near ``name``."""
    free, suffix = name, 0
    while free in graph.initializers:
        suffix += 1
        free = f"{name}_{suffix}"
    value = ir.Value(
        name=free,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.tensor(array, name=free),
    )
    graph.register_initializer(value)
    return value


def insert_before(anchor: ir.Node, nodes: Iterable[ir.Node]) -> None:
    """Put nodes into the anchor's graph, in order, just before it."""
    graph = anchor.graph
    if graph is None:
        raise ValueError(f"node {anchor.name} is in no graph")
    graph.insert_before(anchor, list(nodes))


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let every reader of ``old`` read ``new``; as an output of the graph it keeps its name."""
    if old.is_graph_output():
        name, old.name = old.name, f"{old.name}_replaced"
        new.name = name
        if new.shape is None:
            new.shape = old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def remove_dead(graph: ir.Graph) -> int:
    """Remove nodes and initializers that nothing reads. Gives the number of nodes removed."""
    removed = 0
    for node in reversed(list(graph)):
        if all(not v.uses() and not v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)
            removed += 1
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
    return removed


def only_reader(value: ir.Value, operator: str, *, place: int = 0) -> ir.Node | None:
    """The one node that reads a value, when it is an ``operator`` that reads it at ``place``.

    None when others read it too, or the graph returns it.
    """
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    node, index = uses[0]
    return node if node.op_type == operator and index == place else None


def rank(value: ir.Value | None) -> int | None:
    """Number of dimensions, when known."""
    return None if value is None or value.shape is None else len(value.shape)


def static_dim(value: ir.Value | None, axis: int) -> int | None:
    """One dimension, when it is a known number."""
    if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else None


def same_dims(
    one: ir.Value | None, axes: Sequence[int], other: ir.Value | None, others: Sequence[int]
) -> bool:
    """Whether pairs of dimensions are known to be equal, as numbers or as the same expression."""
    if one is None or other is None or one.shape is None or other.shape is None:
        return False
    for a, b in zip(axes, others, strict=True):
        left, right = one.shape[a], other.shape[b]
        if isinstance(left, int) or isinstance(right, int):
            if left != right:
                return False
        elif left.value is None or left.value != right.value:
            return False
    return True


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """All dimensions, when every one is a known number."""
    if value.shape is None or not all(isinstance(d, int) for d in value.shape):
        return None
    return tuple(d for d in value.shape if isinstance(d, int))


@dataclass(frozen=True, slots=True)
class Linear:
    """``source @ weight + bias`` with constant weight [D_in, D_out] and bias [D_out], or none.

    Attributes:
        source: what is multiplied.
        product: the MatMul.
        last: the Add of the bias, or the MatMul where there is none.
        weight_value: the initializer of the weight.
        bias_place: at which input of ``last`` the bias is.
    """

    source: ir.Value
    product: ir.Node
    last: ir.Node
    weight: np.ndarray
    weight_value: ir.Value
    bias: np.ndarray | None
    bias_place: int


def linear_of(value: ir.Value) -> Linear | None:
    """The linear layer that makes a value, when nothing else reads its product before the bias."""
    last = value.producer()
    if last is None:
        return None
    product, bias, place = last, None, 1
    if last.op_type == "Add":
        for place in (1, 0):
            bias, inner = constant(last.inputs[place]), last.inputs[1 - place]
            if bias is not None and bias.ndim == 1 and inner is not None:
                break
        else:
            return None
        made = inner.producer()
        if made is None or len(inner.uses()) != 1 or inner.is_graph_output():
            return None
        product = made
    if product.op_type != "MatMul" or product.domain != "":
        return None
    source, weight_value = product.inputs
    weight = constant(weight_value)
    if source is None or weight_value is None or weight is None or weight.ndim != 2:
        return None
    if bias is not None and bias.shape[0] != weight.shape[1]:
        return None
    return Linear(source, product, last, weight, weight_value, bias, place)


def ints(node: ir.Node, attribute: str) -> Sequence[int] | None:
    """An integer-list attribute, or None."""
    found = node.attributes.get(attribute)
    return None if found is None else tuple(found.as_ints())
