"""A ``Resize`` of a position table becomes a constant, or two matrix products.

OpenVINO's CPU plugin ignores ``antialias`` on a cubic Resize and rounds scales differently, so no
exported file may hold one on a table. Constant sizes give a constant; sizes that the graph
computes give ``W_h . P . W_w^T``.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir
import torch

from exporters.passes.base import (
    GraphPass,
    PassContext,
    PassOutcome,
    new_initializer,
    remove_dead,
    replace_value,
)
from vitpe_deploy.encodings.resample import Interpolation, ResampleRule, resample_grid
from vitpe_deploy.retarget.constants import Array, constant_array
from vitpe_deploy.retarget.nodes import Nodes, grid_nodes, why_not_in_graph


class UnfoldResize(GraphPass):
    """Replace Resize of constants [1, D, h, w] by constants or matrix products."""

    name: ClassVar[str] = "table-resize"

    def run(self, model: ir.Model, context: PassContext) -> PassOutcome:
        """Resize of computed features is none of its business and not listed as refused."""
        outcome = PassOutcome()
        graph = model.graph
        opset = model.opset_imports.get("", context.opset)
        for node in list(graph):
            if node.op_type != "Resize" or node.domain not in ("", "ai.onnx"):
                continue
            table = constant_array(node.inputs[0], opset)
            if table is None:
                continue
            reason = _replace(node, table, opset)
            if reason:
                outcome.refuse(node, reason)
            else:
                outcome.changed += 1
        if outcome.changed:
            remove_dead(graph)
        return outcome


def _replace(node: ir.Node, table: Array, opset: int) -> str:
    """Replace one node. Gives the reason when it cannot."""
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        return "it is inside a branch or loop"
    if table.ndim != 4 or table.shape[0] != 1 or table.dtype != np.float32:
        return f"a table of {list(table.shape)} {table.dtype} is not [1, D, h, w] float32"
    if "axes" in node.attributes:
        return "its axes attribute picks other axes than the last two"
    scales = constant_array(_input(node, 2), opset)
    sizes_value = _input(node, 3)
    sizes = constant_array(sizes_value, opset)
    size = _static_size(table, scales, sizes)
    rule = resize_rule(node, table, size, scales)
    if isinstance(rule, str):
        return rule
    pixels = np.array(table[0].transpose(1, 2, 0), order="C")  # [h, w, D]
    output = node.outputs[0]
    if size is not None:
        new = resample_grid(torch.from_numpy(pixels), size, rule).numpy()
        constant = np.ascontiguousarray(new.transpose(2, 0, 1)[None])
        replace_value(output, new_initializer(graph, f"{output.name}_resized", constant))
        graph.remove(node, safe=True)
        return ""
    if sizes_value is None or (scales is None and _given(node, 2, opset)):
        return "its scales are computed in the graph"
    why = why_not_in_graph(rule)
    if why:
        return why
    nodes = Nodes(graph, "resize")
    rows, columns = (nodes.op("Gather", sizes_value, nodes.ints(k), axis=0) for k in (2, 3))
    grid = grid_nodes(nodes, pixels, rows, columns, rule)
    turned = nodes.op("Transpose", grid, perm=[2, 0, 1])
    whole = nodes.op("Unsqueeze", turned, nodes.ints(0))
    nodes.insert_before(node)
    replace_value(output, whole)
    graph.remove(node, safe=True)
    return ""


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _given(node: ir.Node, place: int, opset: int) -> bool:
    """Whether an optional input is there and not empty."""
    value = _input(node, place)
    if value is None:
        return False
    array = constant_array(value, opset)
    return array is None or array.size > 0


def _static_size(table: Array, scales: Array | None, sizes: Array | None) -> tuple[int, int] | None:
    if sizes is not None and sizes.size == 4:
        return int(sizes[2]), int(sizes[3])
    if scales is not None and scales.size == 4:
        exact = [float(np.float32(s)) * n for s, n in zip(scales, table.shape, strict=True)]
        return int(np.floor(exact[2])), int(np.floor(exact[3]))
    return None


def resize_rule(
    node: ir.Node, table: Array, size: tuple[int, int] | None, scales: Array | None
) -> ResampleRule | str:
    """The rule that a Resize node follows, or the reason why it is none that we have."""

    def text(name: str, default: str) -> str:
        found = node.attributes.get(name)
        return default if found is None else found.as_string()

    mode = text("mode", "nearest")
    where = text("coordinate_transformation_mode", "half_pixel")
    antialias = "antialias" in node.attributes and bool(node.attributes["antialias"].as_int())
    if mode not in ("cubic", "linear"):
        return f"mode {mode} has no matrix of weights here"
    if where not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return f"coordinates {where} are not those of torch"
    if text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "it keeps the aspect ratio"
    coefficient = node.attributes.get("cubic_coeff_a")
    a = -0.75 if coefficient is None else float(coefficient.as_float())
    if mode == "cubic" and a != (-0.5 if antialias else -0.75):
        with_or_not = "with" if antialias else "without"
        return f"a cubic of a = {a:g} {with_or_not} antialias is not torch's"
    outside = node.attributes.get("exclude_outside")
    if mode == "cubic" and not antialias and outside is not None and outside.as_int():
        return "it leaves out samples beyond the border, where torch repeats the edge"
    if where == "align_corners" and antialias:
        return "align_corners under antialias is read differently by the engines"
    offset = 0.0
    if scales is not None and scales.size == 4 and size is not None:
        offsets = {
            round(float(np.float32(scales[k])) * table.shape[k] - size[k - 2], 4) for k in (2, 3)
        }
        if len(offsets) > 1:
            return f"its scales {scales[2:].tolist()} move the axes differently"
        offset = offsets.pop()
    kernel: Interpolation = "bicubic" if mode == "cubic" else "bilinear"
    return ResampleRule(kernel, antialias, where == "align_corners", offset)
