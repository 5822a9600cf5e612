"""Is an ONNX file whole, and are the data files it points to there and long enough?

The base install has no ``onnx`` package, engines word the same fault differently (OpenVINO also
prints protobuf noise to stderr), and a data file that was left behind is the most common fault of
all. So the few fields that matter are read straight from the protobuf wire format. Field numbers
are those of ``onnx.proto``; weights are skipped over, never copied.

Locations must stay inside the model's folder, symbolic links resolved. Both engines refuse most of
what leaves it; refusing it here makes the answer the same everywhere.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from vitpe_deploy.errors import ArtifactError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# message -> field number -> message of that field; only what can hold a tensor
_NESTED = {
    "Model": {7: "Graph", 25: "Function"},
    "Function": {7: "Node"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor",
    },
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
}  # fmt: skip
_DEEPEST = 100
"""Messages inside messages; protobuf's own readers go no deeper either."""

_GRAPH_FIELD = 7
_TENSOR_NAME = 8
_TENSOR_EXTERNAL_DATA = 13


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """A weight that lives in another file; ``length`` is None for "up to the end"."""

    name: str
    location: str
    offset: int
    length: int | None


class DamagedError(Exception):
    """The bytes are not the protobuf they should be."""


def check_onnx_file(path: Path) -> None:
    """Refuse a file that no engine could load, naming what is wrong with it.

    Raises:
        ArtifactError: missing, empty, damaged or not ONNX; a data file is missing, too short, or
            outside the model's folder.
    """
    folder = path.parent.resolve()
    for tensor in external_tensors(path):
        location = tensor.location
        rule = "Data files must lie in the model's own folder; export the model again."
        if Path(location).is_absolute() or PureWindowsPath(location).is_absolute():
            raise ArtifactError(
                f"{path} stores weight {tensor.name!r} under the absolute path {location!r}",
                hint=rule,
            )
        try:
            data = (folder / location).resolve()
            data.is_file()
        except (OSError, ValueError) as error:  # too long, or a zero byte
            raise ArtifactError(
                f"{path} stores weight {tensor.name[:100]!r} under a name that no file can have: "
                f"{location[:100]!r}",
                hint=rule,
            ) from error
        if not data.is_relative_to(folder):
            raise ArtifactError(
                f"{path} stores weight {tensor.name!r} outside its folder: {location!r}", hint=rule
            )
        if not data.is_file():
            raise ArtifactError(
                f"{path} needs the data file {location!r}, which is not there",
                hint=f"Copy {Path(location).name} next to {path.name}: the two files are moved "
                "together.",
            )
        size = data.stat().st_size
        end = tensor.offset + (tensor.length or 0)
        if end > size:
            raise ArtifactError(
                f"data file {data} has {size} bytes, weight {tensor.name!r} ends at byte {end}",
                hint="It was cut short or belongs to another model: copy it again, or export "
                "the model again.",
            )


def external_tensors(path: Path) -> list[ExternalTensor]:
    """Every tensor of the file that is stored in another file.

    Raises:
        ArtifactError: missing, empty, damaged or not ONNX.
    """
    if path.is_dir():
        raise ArtifactError(f"{path} is a folder", hint="Name the .onnx file in it.")
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise DamagedError("it is empty")
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as view,
            ):
                found: list[ExternalTensor] = []
                _scan(view, 0, len(view), "Model", found)
                if not any(n == _GRAPH_FIELD for n, *_ in wire_fields(view, 0, len(view))):
                    raise DamagedError("it holds no graph")
                return found
    except FileNotFoundError:
        raise ArtifactError(
            f"{path} does not exist", hint="Check the path, or export the model first."
        ) from None
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read: {error.strerror}", hint="Check its permissions."
        ) from error
    except (DamagedError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"{path} is not a whole ONNX file: {error}",
            hint="It was cut short or is something else: copy it again, or export it again.",
        ) from error


def _scan(
    view: memoryview,
    start: int,
    end: int,
    kind: str,
    found: list[ExternalTensor],
    depth: int = 0,
) -> None:
    if depth > _DEEPEST:
        raise DamagedError(f"graphs inside graphs are nested more than {_DEEPEST} messages deep")
    if kind == "Tensor":
        tensor = _tensor(view, start, end)
        if tensor is not None:
            found.append(tensor)
        return
    nested = _NESTED[kind]
    for number, wire, low, high in wire_fields(view, start, end):
        if number in nested and wire == _BYTES:
            _scan(view, low, high, nested[number], found, depth + 1)


def _tensor(view: memoryview, start: int, end: int) -> ExternalTensor | None:
    name = ""
    entries: dict[str, str] = {}
    for number, wire, low, high in wire_fields(view, start, end):
        if wire != _BYTES:
            continue
        if number == _TENSOR_NAME:
            name = _text(view, low, high)
        elif number == _TENSOR_EXTERNAL_DATA:
            fields = wire_fields(view, low, high)
            pair = {n: _text(view, a, b) for n, w, a, b in fields if w == _BYTES}
            entries[pair.get(1, "")] = pair.get(2, "")
    if "location" not in entries:
        return None
    numbers = {key: entries.get(key) for key in ("offset", "length")}
    if any(value is not None and not value.isdigit() for value in numbers.values()):
        raise DamagedError(f"weight {name!r} has an offset or length that is not a number")
    offset, length = numbers["offset"], numbers["length"]
    return ExternalTensor(
        name, entries["location"], int(offset or 0), None if length is None else int(length)
    )


def wire_fields(view: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """``(field number, wire type, start, end)`` of each field's payload."""
    at = start
    while at < end:
        tag, at = wire_varint(view, at, end)
        number, wire = tag >> 3, tag & 7
        low = at
        if wire == _BYTES:
            size, low = wire_varint(view, at, end)
            at = low + size
        elif wire == _VARINT:
            _, at = wire_varint(view, at, end)
        elif wire in (_FIXED32, _FIXED64):
            at += 4 if wire == _FIXED32 else 8
        else:
            raise DamagedError(f"unreadable at byte {start}")
        if number == 0 or at > end:
            raise DamagedError(f"a field runs past byte {end}")
        yield number, wire, low, at


def wire_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """The number at ``at`` without its sign, and where the next byte is."""
    value = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DamagedError(f"a number is cut off at byte {at}")


def _text(view: memoryview, low: int, high: int) -> str:
    return bytes(view[low:high]).decode("utf-8")
