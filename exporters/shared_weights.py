"""One data file that several models point into: equal bytes are stored once.

The buckets of a model differ in what their size decides, which is little: positions, and a few
shapes. Weights are told apart by their bytes, so that nothing depends on how passes name them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import onnx
import onnx_ir as ir

from exporters.onnx_file import WrittenFile, serialized_tensor, set_metadata

SHARED_TENSOR_BYTES = 1024
"""Smaller initializers stay in the ONNX file: they are shapes and scalars."""

_ALIGNMENT = 64
_PAGE = 4096
_PAGED_BYTES = 1 << 20
"""Tensors from this size on start at a page, so that an engine can map them."""

_IR_CONSTANT = re.compile(rb'offset="(\d+)" size="(\d+)"')


class SharedWeights:
    """A data file that is being written. Use it in a ``with``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[tuple[bytes, int], int] = {}
        self._end = 0

    def __enter__(self) -> Self:
        self._file = self.path.open("wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, data: bytes | memoryview) -> int:
        """Where these bytes are in the file, written unless they are there already."""
        size = memoryview(data).nbytes
        key = (hashlib.sha256(data).digest(), size)
        if key not in self._known:
            step = _PAGE if size >= _PAGED_BYTES else _ALIGNMENT
            start = -(-self._end // step) * step
            self._file.write(b"\0" * (start - self._end))
            self._file.write(data)
            self._known[key] = start
            self._end = start + size
        return self._known[key]

    def flush(self) -> None:
        """Let engines read what was added so far."""
        self._file.flush()


def write_sharing_onnx(
    model: ir.Model, path: Path, metadata: Mapping[str, str], weights: SharedWeights
) -> WrittenFile:
    """Write ``model`` with its large initializers in ``weights``, which lies beside it.

    The graph itself stays as it is. The hash covers the ``.onnx`` file, which holds the place and
    the length of every weight.
    """
    set_metadata(model, metadata)
    graph = model.graph
    values = list(graph.initializers.values())
    large = [v for v in values if v.const_value is not None and _is_shared(v.const_value)]
    for value in large:
        graph.initializers.pop(value.name or "")
    try:
        proto = ir.to_proto(model)
    finally:
        for value in large:
            graph.register_initializer(value)
    for value in large:
        tensor = value.const_value
        if tensor is None:
            continue
        place = weights.add(serialized_tensor(tensor))
        message = proto.graph.initializer.add(
            name=value.name,
            data_type=tensor.dtype.value,
            dims=tensor.shape.numpy(),
            data_location=onnx.TensorProto.EXTERNAL,
        )
        for key, text in (
            ("location", weights.path.name),
            ("offset", str(place)),
            ("length", str(tensor.nbytes)),
        ):
            message.external_data.add(key=key, value=text)
    data = proto.SerializeToString(deterministic=True)
    path.write_bytes(data)
    weights.flush()
    return WrittenFile((path, weights.path), hashlib.sha256(data).hexdigest())


def share_ir_weights(xml: Path, weights: SharedWeights) -> None:
    """Move the constants of an IR from its own ``.bin`` into ``weights``; the ``.bin`` goes."""
    own = xml.with_suffix(".bin")
    data = np.memmap(own, dtype=np.uint8, mode="r")
    text = xml.read_bytes()

    def moved(match: re.Match[bytes]) -> bytes:
        offset, size = int(match[1]), int(match[2])
        place = weights.add(data[offset : offset + size].data)
        return b'offset="%d" size="%d"' % (place, size)

    xml.write_bytes(_IR_CONSTANT.sub(moved, text))
    own.unlink()
    weights.flush()


def _is_shared(tensor: ir.TensorProtocol) -> bool:
    return tensor.nbytes >= SHARED_TENSOR_BYTES and tensor.dtype != ir.DataType.STRING
