"""Constants of a graph, computed through the operators that stand between them and their reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.reference
import onnx_ir as ir

Array = npt.NDArray[Any]

_DEPTH = 64


def initializer_behind(value: ir.Value) -> ir.Value:
    """The initializer that a chain of operators on one constant starts from, else the value."""
    for _ in range(_DEPTH):
        node = value.producer()
        if node is None:
            return value
        first = node.inputs[0] if node.inputs else None
        if first is None or node.op_type not in (
            "Cast", "Reshape", "Transpose", "Slice", "Unsqueeze", "Squeeze", "Identity", "Flatten"
        ):  # fmt: skip
            return value
        value = first
    return value


def constant_array(value: ir.Value | None, opset: int, depth: int = _DEPTH) -> Array | None:
    """The numbers of a value that no input reaches, or None when one does.

    Chains are computed by onnx's reference evaluator, Resize excepted: its readings of antialias
    and of the cubic's edges are not those of the engines.
    """
    if value is None or depth == 0:
        return None
    if value.const_value is not None:
        return np.asarray(value.const_value.numpy())
    node = value.producer()
    if node is None or node.op_type == "Resize" or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Constant":
        attribute = node.attributes.get("value")
        return None if attribute is None else np.asarray(attribute.as_tensor().numpy())
    arrays: list[Array | None] = []
    for given in node.inputs:
        array = constant_array(given, opset, depth - 1)
        if given is not None and array is None:
            return None
        arrays.append(array)
    if not any(a is not None for a in arrays):
        return None
    if node.op_type == "Transpose" and arrays[0] is not None:
        perm = node.attributes.get("perm")
        return np.transpose(arrays[0], None if perm is None else perm.as_ints())
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(arrays)]
    proto = onnx.helper.make_node(node.op_type, names, [f"o{k}" for k in range(len(node.outputs))])
    proto.attribute.extend(ir.to_proto(a) for a in node.attributes.values())
    feeds = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    graph = onnx.helper.make_graph(
        [proto],
        "constant",
        [
            onnx.helper.make_tensor_value_info(
                n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
            )
            for n, a in feeds.items()
        ],
        [onnx.ValueInfoProto(name=n) for n in proto.output],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        results = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # whatever the evaluator lacks is not a constant for us
        return None
    place = next(k for k, v in enumerate(node.outputs) if v is value)
    return np.asarray(results[place])
