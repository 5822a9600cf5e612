"""One walk through a graph at all probe sizes, collecting what has to change with the size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import shape_inference

from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.retarget import repairs
from vitpe_deploy.retarget.constants import constant_array
from vitpe_deploy.retarget.find_positions import NotPositionsError, classify
from vitpe_deploy.retarget.info import Blank, Findings, Info, Spread
from vitpe_deploy.retarget.probes import Probes, Vector, same
from vitpe_deploy.retarget.shape_values import LARGEST, evaluate
from vitpe_deploy.retarget.sizes import UnknownSizeError

Array = npt.NDArray[Any]

_BINARY = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "LessOrEqual", "Greater",
     "GreaterOrEqual", "And", "Or", "Xor", "Max", "Min", "Where", "Mod", "PRelu", "Sum", "Mean",
     "BiasGelu"}
)  # fmt: skip
_SAME_SHAPE = frozenset(
    {"Softmax", "LogSoftmax", "Sqrt", "Erf", "Tanh", "Relu", "Sigmoid", "Gelu", "Cast",
     "Identity", "Neg", "Exp", "Log", "Abs", "Reciprocal", "Dropout", "Clip", "LeakyRelu", "Elu",
     "HardSigmoid", "HardSwish", "Mish", "Softplus", "Sin", "Cos", "Floor", "Ceil", "Round", "Not",
     "RMSNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization",
     "LpNormalization"}
)  # fmt: skip
_REFUSED = {
    **dict.fromkeys(("If", "Loop", "Scan"), "a branch or loop decides on the size"),
    **dict.fromkeys(
        ("ScatterND", "ScatterElements", "GatherND", "GatherElements", "GridSample", "RoiAlign",
         "NonZero", "Compress", "Trilu", "TopK", "Tile", "EyeLike", "DepthToSpace"),
        "what its numbers mean at another size cannot be told",
    ),
}  # fmt: skip
_INDEPENDENT = frozenset({"Tile", "DepthToSpace", "Trilu"})


def walk(model: ir.Model, source: ir.Value, dims: Sequence[Vector], probes: Probes) -> Findings:
    """Follow the sizes of an input through a graph.

    Args:
        model: the graph, in execution order.
        source: its picture input.
        dims: dimensions of the input at every probe.
        probes: the sizes.

    Raises:
        UnsupportedError: a node whose dependence on the size cannot be told; it is named.
    """
    return _Walk(model, probes).run(source, dims)


class _Walk:
    def __init__(self, model: ir.Model, probes: Probes) -> None:
        self.model = model
        self.probes = probes
        self.found = Findings()
        self.opsets = dict(model.opset_imports)

    def run(self, source: ir.Value, dims: Sequence[Vector]) -> Findings:
        values = self.found.values
        for value in self.model.graph.initializers.values():
            values[value] = self._constant(value.const_value)
        values[source] = Info(list(dims), None, live=True, dtype=_dtype(source))
        for node in self.model.graph:
            try:
                self._visit(node)
            except (UnknownSizeError, NotPositionsError) as problem:
                name = node.name or (node.outputs[0].name if node.outputs else "") or "?"
                raise UnsupportedError(
                    f"the graph cannot change its size: node {name!r} ({node.op_type}): {problem}",
                    hint="Export it from the source model at the size that you need.",
                ) from problem
        return self.found

    # values

    def _constant(self, tensor: ir.TensorProtocol | None) -> Info:
        if tensor is None:
            return Info(None, None, live=False, dtype=1)
        shape = [int(n) for n in tensor.shape.numpy()]
        count = int(np.prod(shape, dtype=np.int64))
        small = count <= 16 or (tensor.dtype.is_integer() and count <= LARGEST)
        data = [np.array(tensor.numpy())] * len(self.probes) if small else None
        return Info(self._fixed(shape), data, live=False, dtype=tensor.dtype.value)

    def _fixed(self, shape: Sequence[int]) -> list[Vector]:
        return [np.full(len(self.probes), n, dtype=np.int64) for n in shape]

    def _info(self, value: ir.Value | None) -> Info | None:
        if value is None:
            return None
        if value not in self.found.values:
            raise UnknownSizeError(f"its input {value.name!r} is unknown")
        return self.found.values[value]

    # nodes

    def _visit(self, node: ir.Node) -> None:
        if node.op_type == "Constant" and node.domain == "":
            self.found.values[node.outputs[0]] = self._constant(_constant_tensor(node))
            return
        inputs = [self._info(v) for v in node.inputs]
        present = [i for i in inputs if i is not None]
        live = any(i.live for i in present)
        varies = any(i.varies for i in present)
        if node.op_type in ("If", "Loop", "Scan") or (
            node.op_type in _REFUSED
            and live
            and varies
            and not (node.op_type in _INDEPENDENT and not present[0].varies)
        ):
            raise UnknownSizeError(_REFUSED[node.op_type])
        data = self._data(node, inputs)
        if data is not None:
            dims = _dims_of(data)
            kind = onnx.helper.np_dtype_to_tensor_dtype(data[0].dtype)
            # What Shape gives is known without being the content of a picture.
            self.found.values[node.outputs[0]] = Info(dims, data, live=False, dtype=kind)
            return
        outputs = self._dims(node, inputs, varies=varies)
        for value, (found, element) in zip(node.outputs, outputs, strict=False):
            self.found.values[value] = Info(found, None, live=live, dtype=element)

    def _data(self, node: ir.Node, inputs: Sequence[Info | None]) -> list[Array] | None:
        if node.op_type in ("Shape", "Size") and inputs[0] is not None and inputs[0].dims:
            dims = inputs[0].dims
            whole = np.stack(dims, axis=1)
            if node.op_type == "Size":
                return [np.asarray(np.prod(row), dtype=np.int64) for row in whole]
            start = node.attributes["start"].as_int() if "start" in node.attributes else 0
            end = node.attributes["end"].as_int() if "end" in node.attributes else len(dims)
            return [row[start:end].copy() for row in whole]
        if len(node.outputs) != 1 or any(i is not None and i.data is None for i in inputs):
            return None
        if not inputs and node.op_type != "Constant":
            return None
        results: list[Array] = []
        for k in range(len(self.probes)):
            result = evaluate(node, [None if i is None else _data_at(i, k) for i in inputs])
            if result is None:
                return None
            results.append(result)
        if len({r.ndim for r in results}) > 1:
            return None
        return results

    def _dims(
        self, node: ir.Node, inputs: list[Info | None], *, varies: bool
    ) -> list[tuple[list[Vector], int]]:
        first = inputs[0] if inputs else None
        # A table with a Resize of baked sizes varies in nothing yet, but belongs to the size.
        if (varies or node.op_type == "Resize") and first is not None and first.dims is not None:
            special = repairs.repair(node, inputs, self.probes, self.found)
            if special is not None:
                return [(dims, first.dtype) for dims in special]
            if node.op_type in _BINARY:
                return [(self._broadcast(node, inputs), _binary_dtype(node, inputs))]
            if node.op_type == "Concat":
                return [(self._concat(node, inputs), first.dtype)]
            if node.op_type in _SAME_SHAPE and len(node.outputs) == 1:
                kind = first.dtype
                if node.op_type == "Cast":
                    kind = node.attributes["to"].as_int()
                return [(first.dims, kind)] * len(node.outputs)
            self._check_contraction(node, inputs)
        return self._infer(node, inputs, varies=varies)

    def _broadcast(self, node: ir.Node, inputs: list[Info | None]) -> list[Vector]:
        dims: list[Vector] = []
        for place, info in enumerate(inputs):
            if info is None or info.dims is None:
                raise UnknownSizeError("an input has no known shape")
            merged = _merge(dims, info.dims) if place else list(info.dims)
            if merged is None:
                merged = self._positions(node, place, dims, inputs)
            dims = merged
        return dims

    def _positions(
        self, node: ir.Node, place: int, before: list[Vector], inputs: list[Info | None]
    ) -> list[Vector]:
        """Dimensions of the result where a constant fits at the file's own size only."""
        constants = [k for k, i in enumerate(inputs) if i is not None and not i.live]
        if len(inputs) != 2 or len(constants) != 1 or place != 1:
            raise NotPositionsError("two values that follow the size differently meet")
        which = constants[0]
        constant, other = inputs[which], inputs[1 - which]
        if constant is None or other is None or constant.dims is None or other.dims is None:
            raise NotPositionsError("a shape is unknown")
        if any(not same(d) for d in constant.dims):
            raise NotPositionsError("a constant that the graph resizes does not fit")
        shape = [int(d[0]) for d in constant.dims]
        found = classify(node, which, shape, other.dims, self.probes)
        if found.kind == "bias" and self._is_blank(found.value):
            self.found.blank.append(Blank(node, which))
            return list(other.dims)
        self.found.positions.append(found)
        shift = len(other.dims) - len(shape)
        dims = list(constant.dims)
        for axis in found.axes:
            dims[axis] = other.dims[axis + shift]
        merged = _merge(dims, other.dims)
        if merged is None:
            raise NotPositionsError(f"a constant of {shape} does not fit")
        return merged

    def _is_blank(self, value: ir.Value) -> bool:
        array = constant_array(value, self.opsets.get("", 1))
        return array is not None and bool((array == array[..., :1, :1]).all())

    def _concat(self, node: ir.Node, inputs: list[Info | None]) -> list[Vector]:
        infos = [i for i in inputs if i is not None and i.dims is not None]
        leader = next((i for i in infos if i.live), infos[0])
        rank = len(leader.dims or [])
        axis = node.attributes["axis"].as_int() % rank
        total = np.zeros(len(self.probes), dtype=np.int64)
        lead = leader.dims or []
        for place, info in enumerate(inputs):
            if info is None or info.dims is None:
                raise UnknownSizeError("an input has no known shape")
            dims = list(info.dims)
            wrong = [k for k in range(rank) if k != axis and (dims[k] != lead[k]).any()]
            if wrong and info.live:
                raise UnknownSizeError("two values that follow the size differently meet")
            if 0 in wrong and dims[0][0] == lead[0][0] and (lead[0] == self.probes.batches()).all():
                self.found.spread.append(Spread(node, place))
                wrong.remove(0)
            if wrong:
                shape = [int(d[0]) for d in dims]
                padded = [d if k != axis else dims[k] for k, d in enumerate(lead)]
                self.found.positions.append(classify(node, place, shape, padded, self.probes))
            total = total + dims[axis]
        result = list(lead)
        result[axis] = total
        return result

    def _check_contraction(self, node: ir.Node, inputs: list[Info | None]) -> None:
        """Products whose inner dimension follows the size on one side only."""
        if node.op_type not in ("MatMul", "Gemm", "Einsum"):
            return
        if node.op_type == "Einsum":
            return
        a, b = inputs[0], inputs[1]
        if a is None or b is None or not a.dims or not b.dims:
            return
        turned = [
            node.attributes[n].as_int() if n in node.attributes else 0 for n in ("transA", "transB")
        ]
        left = a.dims[-2] if turned[0] else a.dims[-1]
        right = b.dims[-1] if turned[1] or len(b.dims) == 1 else b.dims[-2]
        if (left != right).any():
            raise NotPositionsError(
                f"a weight of {[int(d[0]) for d in b.dims]} fits {int(left[0])} values alone, "
                "which follow the size"
            )

    def _infer(
        self, node: ir.Node, inputs: list[Info | None], *, varies: bool
    ) -> list[tuple[list[Vector], int]]:
        """onnx's own shape inference, once per probe where the probes differ."""
        version = self.opsets.get(node.domain, self.opsets.get("", 1))
        try:
            schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        except onnx.defs.SchemaError:
            raise UnknownSizeError(f"operator domain {node.domain!r} is not known") from None
        proto = _light_proto(node)
        imports = [onnx.helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        count = len(self.probes) if varies else 1
        rows: list[list[tuple[list[int], int]]] = []
        for k in range(count):
            types, data = {}, {}
            for name, info in zip(proto.input, inputs, strict=True):
                if info is None or info.dims is None:
                    continue
                shape = [int(d[k]) for d in info.dims]
                types[name] = onnx.helper.make_tensor_type_proto(info.dtype, shape)
                if info.data is not None:
                    data[name] = onnx.numpy_helper.from_array(np.ascontiguousarray(info.data[k]))
            try:
                result = shape_inference.infer_node_outputs(
                    schema, proto, types, data, None, imports
                )
            except Exception as problem:  # its classes share no base but Exception
                said = str(problem).strip().splitlines()
                raise UnknownSizeError(said[-1][:160] if said else "no shape") from problem
            rows.append([_shape_of(result.get(name)) for name in proto.output])
        outputs: list[tuple[list[Vector], int]] = []
        for column in zip(*rows, strict=True):
            ranks = {len(shape) for shape, _ in column}
            if len(ranks) != 1:
                raise UnknownSizeError("its rank follows the size")
            stacked = np.array([shape for shape, _ in column], dtype=np.int64).reshape(count, -1)
            full = stacked if varies else np.repeat(stacked, len(self.probes), axis=0)
            outputs.append(([full[:, k].copy() for k in range(full.shape[1])], column[0][1]))
        return outputs


def _merge(one: Sequence[Vector], two: Sequence[Vector]) -> list[Vector] | None:
    """Broadcast of two shapes at every probe, or None when they do not fit at some."""
    rank = max(len(one), len(two))
    result: list[Vector] = []
    for k in range(-rank, 0):
        a = one[k] if -k <= len(one) else None
        b = two[k] if -k <= len(two) else None
        if a is None or b is None:
            result.append(b if a is None else a)  # type: ignore[arg-type]
        elif (a == b).all() or (b == 1).all():
            result.append(a)
        elif (a == 1).all():
            result.append(b)
        else:
            return None
    return result


def _data_at(info: Info, k: int) -> Array | None:
    return None if info.data is None else info.data[k]


def _dims_of(data: list[Array]) -> list[Vector]:
    shapes = np.array([a.shape for a in data], dtype=np.int64).reshape(len(data), -1)
    return [shapes[:, k].copy() for k in range(shapes.shape[1])]


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    for name, kind in (("value", None), ("value_int", np.int64), ("value_float", np.float32),
                       ("value_ints", np.int64), ("value_floats", np.float32)):  # fmt: skip
        attribute = node.attributes.get(name)
        if attribute is None:
            continue
        return attribute.as_tensor() if kind is None else ir.tensor(np.array(attribute.value, kind))
    return None


def _light_proto(node: ir.Node) -> onnx.NodeProto:
    """The node with short names of its own, since values may be anonymous."""
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    proto.input.extend("" if v is None else f"i{k}" for k, v in enumerate(node.inputs))
    proto.output.extend(f"o{k}" for k in range(len(node.outputs)))
    proto.attribute.extend(ir.to_proto(a) for a in node.attributes.values())
    return proto


def _shape_of(found: onnx.TypeProto | None) -> tuple[list[int], int]:
    if found is None or not found.tensor_type.HasField("shape"):
        raise UnknownSizeError("onnx cannot infer its shape")
    dims = found.tensor_type.shape.dim
    if any(not d.HasField("dim_value") for d in dims):
        raise UnknownSizeError("onnx cannot infer its shape")
    return [d.dim_value for d in dims], found.tensor_type.elem_type


def _binary_dtype(node: ir.Node, inputs: Sequence[Info | None]) -> int:
    if node.op_type in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or"):
        return int(ir.DataType.BOOL)
    info = inputs[-1]
    return 1 if info is None else info.dtype


def _dtype(value: ir.Value) -> int:
    return 1 if value.dtype is None else value.dtype.value
