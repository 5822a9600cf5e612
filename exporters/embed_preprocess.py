"""``--embed-preprocess``: pixels in, scaling and normalisation inside the file.

``value = (pixel * scale - mean) / std`` is linear per channel, and so is a patch convolution:

1. every reader of the input is a convolution without padding and with constant float32 weights:
   the factor goes into its weights and the offset into its bias, and nothing is computed at run
   time. (Padding would have to be with the mean's pixel, which no convolution does.)
2. anything else: one Mul and one Add before the model.

Either way a Cast is left, and a Transpose where channels come last. Weights in float16 are not
folded into: divided by 255 they would leave its range.
"""

from __future__ import annotations

import time

import numpy as np
import onnx_ir as ir

from exporters.passes import PassRun
from exporters.passes.base import PassOutcome, constant, new_initializer
from vitpe_deploy.pixels import PixelInput
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.results import Refusal

NAME = "embed-preprocess"
"""How the report lists it among the passes."""


def embed_preprocess(
    model: ir.Model, layout: PixelInput, preprocess: Preprocess, *, may_fold: bool
) -> PassRun:
    """Give ``model``, whose one input is [B, C, H, W], the input of ``layout`` instead; in place.

    ``changed`` of the outcome counts convolutions that took it in; a refusal says why none did.
    """
    start = time.perf_counter()
    graph = model.graph
    (old,) = graph.inputs
    pixels = _pixels(old, layout)
    readers = [usage.node for usage in old.uses()]
    reason = _why_not(readers, old) if may_fold else "weights are not float32"
    values = _as_float(graph, pixels, layout)
    factor, offset = _affine(preprocess, layout.channels)
    reverse = preprocess.color_order == "BGR" and layout.channels == 3
    outcome = PassOutcome()
    if not reason:
        for conv in readers:
            _fold(graph, conv, factor, offset, reverse=reverse)
            outcome.changed += 1
        result = values
    else:
        outcome.refused.append(Refusal(node=old.name or "input", reason=reason))
        result = _written_out(graph, values, factor, offset, reverse=reverse)
    ir.convenience.replace_all_uses_with(old, result)
    graph.inputs.clear()
    graph.inputs.append(pixels)
    graph.sort()
    return PassRun(NAME, outcome, time.perf_counter() - start)


def _pixels(old: ir.Value, layout: PixelInput) -> ir.Value:
    """The new input, with the dimensions of the old one by their names."""
    dims = list(old.shape or ())
    if layout.order == "nhwc":
        dims = [dims[0], dims[2], dims[3], dims[1]]
    return ir.Value(name=layout.name, shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.UINT8))


def _affine(preprocess: Preprocess, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """``value = pixel * factor + offset`` per channel of the model, in float64."""
    mean = np.array(preprocess.mean[:channels])
    std = np.array(preprocess.std[:channels])
    return preprocess.scale / std, -mean / std


def _why_not(readers: list[ir.Node], value: ir.Value) -> str:
    """Why the readers cannot take the normalisation in; empty when they can."""
    if value.is_graph_output():
        return "the input is an output as well"
    for node in readers:
        if node.op_type != "Conv" or node.inputs[0] is not value:
            return f"it is read by {node.op_type} {node.name or ''}".rstrip()
        pads = node.attributes.get_ints("pads", ())
        padding = node.attributes.get_string("auto_pad", "NOTSET")
        if any(pads) or padding not in ("NOTSET", "VALID"):
            return f"the convolution {node.name or ''} pads by {list(pads) or padding}"
        if node.attributes.get_int("group", 1) != 1:
            return f"the convolution {node.name or ''} works in groups"
        weights = [constant(v) for v in node.inputs[1:] if v is not None]
        if any(w is None or w.dtype != np.float32 for w in weights):
            return f"the weights of {node.name or 'the convolution'} are not float32 constants"
    return "" if readers else "nothing reads it"


def _as_float(graph: ir.Graph, pixels: ir.Value, layout: PixelInput) -> ir.Value:
    """[B, C, H, W] in float32; transposed as bytes, which are a quarter of the floats."""
    value = pixels
    if layout.order == "nhwc":
        transpose = ir.node("Transpose", [value], attributes={"perm": [0, 3, 1, 2]})
        value = _appended(graph, transpose, f"{layout.name}_nchw", ir.DataType.UINT8)
    cast = ir.node("Cast", [value], attributes={"to": int(ir.DataType.FLOAT)})
    return _appended(graph, cast, f"{layout.name}_float", ir.DataType.FLOAT)


def _fold(
    graph: ir.Graph, conv: ir.Node, factor: np.ndarray, offset: np.ndarray, *, reverse: bool
) -> None:
    """``W * (a x + b) + c = (W a) x + (c + sum(W b))``, channel by channel."""
    old = constant(conv.inputs[1])
    if old is None:
        raise ValueError("a convolution without weights")
    weight = old.astype(np.float64)  # [O, C, kh, kw]
    scaled = weight * factor[None, :, None, None]
    shift = (weight * offset[None, :, None, None]).sum(axis=(1, 2, 3))
    bias = constant(conv.inputs[2]) if len(conv.inputs) > 2 else None
    shift += 0.0 if bias is None else bias.astype(np.float64)
    if reverse:  # the model reads B, G, R; pixels come as R, G, B
        scaled = scaled[:, ::-1]
    name = conv.inputs[1].name if conv.inputs[1] is not None else "patches"
    new_weight = new_initializer(graph, f"{name}.pixels", _float32(scaled))
    new_bias = new_initializer(graph, f"{name}.pixels_bias", _float32(shift))
    conv.resize_inputs(3)
    for place, (before, after) in enumerate(
        zip(tuple(conv.inputs[1:]), (new_weight, new_bias), strict=True), start=1
    ):
        conv.replace_input_with(place, after)
        if before is not None and not before.uses() and before.name in graph.initializers:
            graph.initializers.pop(str(before.name))


def _written_out(
    graph: ir.Graph, value: ir.Value, factor: np.ndarray, offset: np.ndarray, *, reverse: bool
) -> ir.Value:
    """The same as nodes."""
    if reverse:
        order = new_initializer(graph, "pixels_bgr", np.array([2, 1, 0], dtype=np.int64))
        gather = ir.node("Gather", [value, order], attributes={"axis": 1})
        value = _appended(graph, gather, "pixels_reversed", ir.DataType.FLOAT)
    shape = (1, len(factor), 1, 1)
    scale = new_initializer(graph, "pixels_scale", _float32(factor.reshape(shape)))
    shift = new_initializer(graph, "pixels_shift", _float32(offset.reshape(shape)))
    scaled = _appended(graph, ir.node("Mul", [value, scale]), "pixels_scaled", ir.DataType.FLOAT)
    return _appended(graph, ir.node("Add", [scaled, shift]), "pixel_values", ir.DataType.FLOAT)


def _appended(graph: ir.Graph, node: ir.Node, name: str, dtype: ir.DataType) -> ir.Value:
    node.name = name
    value: ir.Value = node.outputs[0]
    value.name, value.type = name, ir.TensorType(dtype)
    graph.append(node)
    return value


def _float32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=np.float32)
