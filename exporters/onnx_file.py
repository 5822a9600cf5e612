"""An ONNX graph as bytes on disk, the same bytes for the same graph.

A ViT is nearly all weights. Building a protobuf message of them and serialising that holds the
model three times and takes longer than writing it, so weights are framed by hand: each goes from
where it is to the file and the hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

EXTERNAL_BYTES = 1_500_000_000
"""Weights above this go to ``<file>.data``: protobuf ends at 2 GB."""

_EXTERNAL_TENSOR_BYTES = 1024

# Numbers of the length-delimited fields of onnx.proto3 that are framed here.
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9
_LENGTH_DELIMITED = 2


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Files of one ONNX model; the first is the ``.onnx`` itself."""

    paths: tuple[Path, ...]
    sha256: str


def write_onnx(
    model: ir.Model,
    path: Path,
    metadata: Mapping[str, str],
) -> WrittenFile:
    """Write ``model`` with ``metadata_props``; large weights go to ``<name>.data`` beside it.

    The hash covers the ``.onnx`` file, which names the data file and its lengths.
    """
    set_metadata(model, metadata)
    weights = sum(
        v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None
    )
    if weights > EXTERNAL_BYTES:
        data = path.with_name(f"{path.name}.data")
        ir.save(
            model,
            path,
            external_data=data.name,
            size_threshold_bytes=_EXTERNAL_TENSOR_BYTES,
        )
        return WrittenFile((path, data), hashlib.sha256(path.read_bytes()).hexdigest())
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in _serialized(model):
            digest.update(part)
            file.write(part)
    return WrittenFile((path,), digest.hexdigest())


def set_metadata(model: ir.Model, metadata: Mapping[str, str]) -> None:
    """Make ``metadata`` all that the file says beside its graph, in the order of the keys."""
    model.metadata_props.clear()
    model.metadata_props.update(sorted(metadata.items()))


def serialized_tensor(tensor: ir.TensorProtocol) -> bytes | memoryview:
    """Little-endian values in row order, as ``raw_data`` and data files hold them."""
    array = tensor.numpy()
    if array.dtype.isbuiltin != 1:
        return tensor.tobytes()  # packed and 16-bit brain floats, which numpy lacks
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def forget_weights(model: ir.Model) -> None:
    """Let go of the weights of a graph that has been written; its structure stays."""
    for value in model.graph.initializers.values():
        value.const_value = None


def _serialized(model: ir.Model) -> Iterator[bytes | memoryview]:
    """The bytes of the model in the order of protobuf's own serialiser, weight by weight."""
    shell, initializers = _without_initializers(model)
    graph = shell.graph
    first = onnx.GraphProto(node=graph.node, name=graph.name)
    rest = onnx.GraphProto()
    rest.CopyFrom(graph)
    rest.ClearField("node")
    rest.ClearField("name")
    head, tail = _bytes(first), _bytes(rest)
    framed = [_Weight(value) for value in initializers]
    graph_size = len(head) + sum(w.size for w in framed) + len(tail)
    before, after = _around_graph(shell)
    yield before + _frame(_MODEL_GRAPH, graph_size) + head
    for weight in framed:
        yield weight.head
        yield weight.data()
    yield tail + after


def _without_initializers(model: ir.Model) -> tuple[onnx.ModelProto, list[ir.Value]]:
    """The model as a message without its initializers, and those."""
    graph = model.graph
    values = list(graph.initializers.values())
    graph.initializers.clear()
    try:
        return ir.to_proto(model), values
    finally:
        for value in values:
            graph.register_initializer(value)


def _around_graph(shell: onnx.ModelProto) -> tuple[bytes, bytes]:
    """The fields of a model numbered below and above its graph."""
    before, after = onnx.ModelProto(), onnx.ModelProto()
    for part, keep in ((before, int.__lt__), (after, int.__gt__)):
        part.CopyFrom(shell)
        for field, _ in shell.ListFields():
            if not keep(field.number, _MODEL_GRAPH):
                part.ClearField(field.name)
    return _bytes(before), _bytes(after)


class _Weight:
    """One initializer as a framed field: its head, and its data when their turn comes."""

    def __init__(self, value: ir.Value) -> None:
        tensor = value.const_value
        if tensor is None:
            raise ValueError(f"initializer {value.name} has no value")
        self._tensor = tensor
        if tensor.dtype == ir.DataType.STRING:
            raise ValueError(f"initializer {value.name} holds text")
        message = onnx.TensorProto(
            name=value.name, data_type=tensor.dtype.value, dims=tensor.shape.numpy()
        )
        start = _bytes(message) + _frame(_TENSOR_RAW_DATA, tensor.nbytes)
        self.head = _frame(_GRAPH_INITIALIZER, len(start) + tensor.nbytes) + start
        self.size = len(self.head) + tensor.nbytes

    def data(self) -> bytes | memoryview:
        """Little-endian values in row order."""
        return serialized_tensor(self._tensor)


def _bytes(message: onnx.ModelProto | onnx.GraphProto | onnx.TensorProto) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _frame(field: int, size: int) -> bytes:
    """Tag and length of a length-delimited field, both as varints."""
    out = bytearray()
    for number in (field << 3 | _LENGTH_DELIMITED, size):
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)
