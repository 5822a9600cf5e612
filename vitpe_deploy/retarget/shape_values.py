"""Small tensors that sizes are computed with, evaluated at every probe.

Exporters leave Shape, Gather, Concat and arithmetic in a graph to compute the targets of Reshape,
Expand and Resize. The operators that occur there are evaluated here in numpy; anything else is
left unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

Array: TypeAlias = npt.NDArray[Any]
Inputs: TypeAlias = Sequence[Array | None]

LARGEST = 4096
"""Values with more elements than this are data, not sizes."""


def evaluate(node: ir.Node, inputs: Inputs) -> Array | None:
    """The result of one operator, or None when it is not one that sizes are computed with."""
    known = _OPERATORS.get(node.op_type)
    if known is None or node.domain not in ("", "ai.onnx"):
        return None
    try:
        result = np.asarray(known(node, inputs))
    except (IndexError, ValueError, TypeError, ZeroDivisionError):
        return None
    return result if result.size <= LARGEST else None


def integer(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    found = node.attributes.get(name)
    return default if found is None else found.as_int()


def _axes(node: ir.Node, inputs: Inputs, place: int) -> tuple[int, ...] | None:
    found = node.attributes.get("axes")
    if found is not None:
        return tuple(found.as_ints())
    given = inputs[place] if len(inputs) > place else None
    return None if given is None else tuple(int(a) for a in given.reshape(-1))


def _need(inputs: Inputs, place: int) -> Array:
    array = inputs[place]
    if array is None:
        raise ValueError("an input is missing")
    return array


def _divide(node: ir.Node, inputs: Inputs) -> Array:
    a, b = _need(inputs, 0), _need(inputs, 1)
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if (b == 0).any():
        raise ZeroDivisionError
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)), dtype=a.dtype)


def _cast(node: ir.Node, inputs: Inputs) -> Array:
    kind = onnx.helper.tensor_dtype_to_np_dtype(node.attributes["to"].as_int())
    return _need(inputs, 0).astype(kind)


def _slice(node: ir.Node, inputs: Inputs) -> Array:
    data, starts, ends = (_need(inputs, k).reshape(-1) if k else _need(inputs, 0) for k in range(3))
    axes = _axes(node, inputs, 3) or tuple(range(len(starts)))
    steps = inputs[4] if len(inputs) > 4 and inputs[4] is not None else np.ones_like(starts)
    where: list[slice] = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, np.asarray(steps), strict=True):
        stop: int | None = int(end)
        if step < 0 and end < -data.shape[axis]:
            stop = None
        where[axis] = slice(int(start), stop, int(step))
    return np.asarray(data[tuple(where)])


def _unsqueeze(node: ir.Node, inputs: Inputs) -> Array:
    return np.expand_dims(_need(inputs, 0), _axes(node, inputs, 1) or ())


def _squeeze(node: ir.Node, inputs: Inputs) -> Array:
    return np.squeeze(_need(inputs, 0), _axes(node, inputs, 1))


def _constant_of_shape(node: ir.Node, inputs: Inputs) -> Array:
    shape = tuple(int(n) for n in _need(inputs, 0))
    if np.prod(shape, dtype=np.int64) > LARGEST:
        raise ValueError("too large")
    value = node.attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
    return np.full(shape, fill.reshape(-1)[0], dtype=fill.dtype)


def _reshape(node: ir.Node, inputs: Inputs) -> Array:
    data = _need(inputs, 0)
    target = [int(n) for n in _need(inputs, 1)]
    if not integer(node, "allowzero", 0):
        target = [data.shape[k] if n == 0 else n for k, n in enumerate(target)]
    return data.reshape(target)


def _range(node: ir.Node, inputs: Inputs) -> Array:
    start, limit, step = (_need(inputs, k).reshape(()).item() for k in range(3))
    if abs((limit - start) / step) > LARGEST:
        raise ValueError("too large")
    return np.arange(start, limit, step, dtype=_need(inputs, 0).dtype)


def _reduce_prod(node: ir.Node, inputs: Inputs) -> Array:
    keep = bool(integer(node, "keepdims", 1))
    return np.asarray(np.prod(_need(inputs, 0), axis=_axes(node, inputs, 1), keepdims=keep))


def _gather(node: ir.Node, inputs: Inputs) -> Array:
    index = _need(inputs, 1).astype(np.int64)
    return np.take(_need(inputs, 0), index, axis=integer(node, "axis", 0))


def _concat(node: ir.Node, inputs: Inputs) -> Array:
    arrays = [_need(inputs, k) for k in range(len(inputs))]
    return np.concatenate(arrays, axis=node.attributes["axis"].as_int())


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[ir.Node, Inputs], Array]:
    return lambda node, inputs: function(_need(inputs, 0), _need(inputs, 1))


def _unary(function: Callable[[Array], Array]) -> Callable[[ir.Node, Inputs], Array]:
    return lambda node, inputs: function(_need(inputs, 0))


def _pow(a: Array, b: Array) -> Array:
    return np.asarray(np.power(a, b), dtype=a.dtype)


_OPERATORS: Mapping[str, Callable[[ir.Node, Inputs], Array]] = {
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _divide,
    "Mod": _binary(np.mod),
    "Pow": _binary(_pow),
    "Max": _binary(np.maximum),
    "Min": _binary(np.minimum),
    "Equal": _binary(np.equal),
    "Less": _binary(np.less),
    "Greater": _binary(np.greater),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Not": _unary(np.logical_not),
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Sqrt": _unary(np.sqrt),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Identity": _unary(lambda a: a),
    "Cast": _cast,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Where": lambda node, i: np.where(_need(i, 0), _need(i, 1), _need(i, 2)),
    "ConstantOfShape": _constant_of_shape,
    "Reshape": _reshape,
    "Range": _range,
    "ReduceProd": _reduce_prod,
}
