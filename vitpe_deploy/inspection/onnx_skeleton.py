"""An ONNX graph without its weights, read straight from the protobuf wire format.

The base install has no ``onnx`` package, and a file of somebody else is not to be trusted: what is
read here are names, operators, shapes and small integers. Weights are skipped over, never copied.
Field numbers are those of ``onnx.proto``.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from vitpe_deploy.errors import ArtifactError
from vitpe_deploy.runtimes.onnx_file import DamagedError, check_onnx_file, wire_fields, wire_varint

Attribute: TypeAlias = "int | float | str | tuple[int, ...] | Weight"
Dim: TypeAlias = "int | str | None"

_BYTES, _VARINT, _FIXED32 = 2, 0, 5
_SMALL = 64
"""Integers of tensors up to this many bytes are read; they are sizes and axes."""

_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    16: "bfloat16", 21: "uint4", 22: "int4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant: its name, type and dimensions, and its numbers when they are few integers."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    integers: tuple[int, ...] | None = None

    @property
    def count(self) -> int:
        """Number of elements."""
        total = 1
        for n in self.dims:
            total *= n
        return total


@dataclass(frozen=True, slots=True)
class SkeletonNode:
    """One operator."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    inner: tuple[SkeletonNode, ...] = ()

    @property
    def kind(self) -> str:
        """``MatMul``, or ``com.microsoft.MultiHeadAttention`` outside the standard."""
        return self.op_type if self.domain in ("", "ai.onnx") else f"{self.domain}.{self.op_type}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else self.kind


@dataclass(frozen=True, slots=True)
class SkeletonValue:
    """An input or output; ``dims`` is None when the file does not say its rank."""

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None


@dataclass(slots=True)
class Skeleton:
    """One model."""

    opsets: dict[str, int] = field(default_factory=dict)
    producer: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    nodes: list[SkeletonNode] = field(default_factory=list)
    functions: list[SkeletonNode] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    inputs: list[SkeletonValue] = field(default_factory=list)
    outputs: list[SkeletonValue] = field(default_factory=list)

    def all_nodes(self) -> Iterator[SkeletonNode]:
        """Nodes of the graph, of its subgraphs, and of the functions of the file."""
        waiting = [*self.nodes, *self.functions]
        while waiting:
            node = waiting.pop(0)
            yield node
            waiting[:0] = node.inner


def read_skeleton(path: Path) -> Skeleton:
    """Read a file.

    Raises:
        ArtifactError: missing, damaged, not ONNX, or its data files are missing or elsewhere.
    """
    check_onnx_file(path)
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            return _Reader(view).model()
    except (DamagedError, UnicodeDecodeError, struct.error, RecursionError) as problem:
        raise ArtifactError(
            f"{path} is not a whole ONNX file: {problem}",
            hint="It was cut short or is something else: copy it again, or export it again.",
        ) from problem


class _Reader:
    """Messages of one mapped file by their place."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def _fields(self, low: int, high: int) -> Iterator[tuple[int, int, int, int]]:
        return wire_fields(self._view, low, high)

    def _text(self, low: int, high: int) -> str:
        return bytes(self._view[low:high]).decode("utf-8")

    def _int(self, low: int, high: int) -> int:
        value = wire_varint(self._view, low, high)[0]
        return value - (1 << 64) if value >= 1 << 63 else value

    def _ints(self, wire: int, low: int, high: int) -> Iterator[int]:
        """One number, or several that are packed."""
        if wire == _VARINT:
            yield self._int(low, high)
            return
        while low < high:
            value, low = wire_varint(self._view, low, high)
            yield value - (1 << 64) if value >= 1 << 63 else value

    def _pair(self, low: int, high: int) -> tuple[str, str]:
        found = {n: self._text(a, b) for n, w, a, b in self._fields(low, high) if w == _BYTES}
        return found.get(1, ""), found.get(2, "")

    def model(self) -> Skeleton:
        found = Skeleton()
        producer = {2: "", 3: ""}
        for number, wire, low, high in self._fields(0, len(self._view)):
            if wire != _BYTES:
                continue
            if number in producer:
                producer[number] = self._text(low, high)
            elif number == 7:
                self._graph(low, high, found)
            elif number == 8:
                domain, version = "", 0
                for n, w, a, b in self._fields(low, high):
                    if n == 1 and w == _BYTES:
                        domain = self._text(a, b)
                    elif n == 2 and w == _VARINT:
                        version = self._int(a, b)
                found.opsets["" if domain == "ai.onnx" else domain] = version
            elif number == 14:
                key, value = self._pair(low, high)
                found.metadata[key] = value
            elif number == 25:
                found.functions += [
                    self._node(a, b) for n, w, a, b in self._fields(low, high) if (n, w) == (7, 2)
                ]
        found.producer = " ".join(text for text in producer.values() if text)
        return found

    def _graph(self, low: int, high: int, found: Skeleton) -> None:
        for number, wire, a, b in self._fields(low, high):
            if wire != _BYTES:
                continue
            if number == 1:
                node = self._node(a, b)
                constant = node.attributes.get("value")
                if node.op_type == "Constant" and isinstance(constant, Weight) and node.outputs:
                    name = node.outputs[0]
                    found.weights[name] = Weight(
                        name, constant.dtype, constant.dims, constant.integers
                    )
                found.nodes.append(node)
            elif number == 5:
                weight = self._tensor(a, b)
                found.weights[weight.name] = weight
            elif number == 11:
                found.inputs.append(self._value(a, b))
            elif number == 12:
                found.outputs.append(self._value(a, b))

    def _node(self, low: int, high: int) -> SkeletonNode:
        inputs: list[str] = []
        outputs: list[str] = []
        words = {3: "", 4: "", 7: ""}
        attributes: dict[str, Attribute] = {}
        inner: list[SkeletonNode] = []
        for number, wire, a, b in self._fields(low, high):
            if wire != _BYTES:
                continue
            if number == 1:
                inputs.append(self._text(a, b))
            elif number == 2:
                outputs.append(self._text(a, b))
            elif number in words:
                words[number] = self._text(a, b)
            elif number == 5:
                name, value, nodes = self._attribute(a, b)
                inner += nodes
                if value is not None:
                    attributes[name] = value
        return SkeletonNode(
            words[4], words[7], words[3], tuple(inputs), tuple(outputs), attributes, tuple(inner)
        )

    def _attribute(self, low: int, high: int) -> tuple[str, Attribute | None, list[SkeletonNode]]:
        name = ""
        value: Attribute | None = None
        integers: list[int] = []
        inner: list[SkeletonNode] = []
        for number, wire, a, b in self._fields(low, high):
            if number == 1 and wire == _BYTES:
                name = self._text(a, b)
            elif number == 2 and wire == _FIXED32:
                value = struct.unpack("<f", self._view[a:b])[0]
            elif number == 3 and wire == _VARINT:
                value = self._int(a, b)
            elif number == 4 and wire == _BYTES:
                value = bytes(self._view[a:b]).decode("utf-8", "replace")
            elif number == 5 and wire == _BYTES:
                value = self._tensor(a, b)
            elif number == 8:
                integers += self._ints(wire, a, b)
            elif number in (6, 11) and wire == _BYTES:
                inner += [
                    self._node(c, d) for n, w, c, d in self._fields(a, b) if (n, w) == (1, _BYTES)
                ]
        return name, tuple(integers) if integers else value, inner

    def _tensor(self, low: int, high: int) -> Weight:
        name, kind = "", 0
        dims: list[int] = []
        raw: tuple[int, int] | None = None
        stated: list[int] = []
        for number, wire, a, b in self._fields(low, high):
            if number == 1:
                dims += self._ints(wire, a, b)
            elif number == 2 and wire == _VARINT:
                kind = self._int(a, b)
            elif number == 8 and wire == _BYTES:
                name = self._text(a, b)
            elif number == 9 and wire == _BYTES:
                raw = (a, b)
            elif number in (5, 7) and b - a <= _SMALL:
                stated += self._ints(wire, a, b)
        dtype = _DTYPES.get(kind, f"type {kind}")
        integers: tuple[int, ...] | None = None
        if kind in (6, 7):
            size, code = (4, "i") if kind == 6 else (8, "q")
            if raw is not None and raw[1] - raw[0] <= _SMALL and (raw[1] - raw[0]) % size == 0:
                count = (raw[1] - raw[0]) // size
                integers = struct.unpack(f"<{count}{code}", self._view[raw[0] : raw[1]])
            elif raw is None and stated:
                integers = tuple(stated)
        return Weight(name, dtype, tuple(dims), integers)

    def _value(self, low: int, high: int) -> SkeletonValue:
        name, dtype = "", "?"
        dims: list[Dim] | None = None
        for number, wire, a, b in self._fields(low, high):
            if number == 1 and wire == _BYTES:
                name = self._text(a, b)
            elif number == 2 and wire == _BYTES:
                for n, w, c, d in self._fields(a, b):
                    if n == 1 and w == _BYTES:
                        dtype, dims = self._tensor_type(c, d)
        return SkeletonValue(name, dtype, None if dims is None else tuple(dims))

    def _tensor_type(self, low: int, high: int) -> tuple[str, list[Dim] | None]:
        dtype = "?"
        dims: list[Dim] | None = None
        for number, wire, a, b in self._fields(low, high):
            if number == 1 and wire == _VARINT:
                kind = self._int(a, b)
                dtype = _DTYPES.get(kind, f"type {kind}")
            elif number == 2 and wire == _BYTES:
                dims = [
                    self._dim(c, d) for n, w, c, d in self._fields(a, b) if (n, w) == (1, _BYTES)
                ]
        return dtype, dims

    def _dim(self, low: int, high: int) -> Dim:
        for number, wire, a, b in self._fields(low, high):
            if number == 1 and wire == _VARINT:
                return self._int(a, b)
            if number == 2 and wire == _BYTES:
                return self._text(a, b) or None
        return None
