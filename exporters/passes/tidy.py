"""Last of all: what a reader or an engine does not need leaves the file.

torch writes local file paths and stack traces into node metadata, and inferred shapes that later
passes made untrue. The names of the graph's values stay: per-layer parity reads ``block:k``.
"""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    rank,
    remove_dead,
    same_dims,
)


class Tidy(GraphPass):
    """Remove debug metadata, inner shapes, idle nodes and unread or repeated initializers."""

    name: ClassVar[str] = "tidy"
    required: ClassVar[bool] = True

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Leave computation, input and output shapes, and value names."""
        outcome = PassOutcome(changed=_skip_idle_expands(model.graph))
        outcome.changed += remove_dead(model.graph)
        outcome.changed += _share_equal_initializers(model.graph)
        model.metadata_props.clear()
        model.graph.metadata_props.clear()
        model.doc_string = None
        model.graph.doc_string = None
        model.graph.name = "main_graph"
        model.producer_name = "vitpe-deploy"
        kept = {id(v) for v in (*model.graph.inputs, *model.graph.outputs)}
        for node in model.graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
                value.doc_string = None
                if id(value) not in kept:
                    value.shape = None
        for value in (
            *model.graph.inputs,
            *model.graph.outputs,
            *model.graph.initializers.values(),
        ):
            value.metadata_props.clear()
            value.doc_string = None
        used = {node.domain for node in model.graph.all_nodes()}
        for domain in [d for d in model.opset_imports if d not in used and d != ""]:
            del model.opset_imports[domain]
        model.functions.clear()
        return outcome


def _skip_idle_expands(graph: ir.Graph) -> int:
    """Readers of an Expand to the shape that its operand has read the operand. Gives how many."""
    skipped = 0
    for node in graph:
        if node.op_type != "Expand" or node.domain != "":
            continue
        read, made = node.inputs[0], node.outputs[0]
        axes = range(rank(made) or 0)
        if read is None or made.is_graph_output() or not axes or rank(read) != rank(made):
            continue
        if same_dims(read, axes, made, axes):
            ir.convenience.replace_all_uses_with(made, read)
            skipped += 1
    return skipped


def _share_equal_initializers(graph: ir.Graph) -> int:
    """Initializers with the same numbers become one. Gives how many fell away."""
    first: dict[tuple[object, ...], ir.Value] = {}
    shared = 0
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_output() or value.is_graph_input():
            continue
        # Weights that size are compared by their first kilobyte before their whole.
        data = tensor.numpy()
        key = (str(tensor.dtype), tuple(data.shape), data.flat[:256].tobytes())
        other = first.setdefault(key, value)
        if other is value or other.const_value is None:
            continue
        if (other.const_value.numpy() == data).all():
            ir.convenience.replace_all_uses_with(value, other)
            del graph.initializers[name]
            shared += 1
    return shared
