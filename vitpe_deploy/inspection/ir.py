"""OpenVINO IR as OpenVINO itself reads it; nothing is compiled or run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitpe_deploy.inspection.report import TensorFacts
from vitpe_deploy.limits import KEY
from vitpe_deploy.runtimes.openvino import read_model

_ATTENTION = "ScaledDotProductAttention"


@dataclass(frozen=True, slots=True)
class ReadIr:
    """What an IR holds. ``bounds`` are those of symbolic input dimensions, by name and axis."""

    operators: tuple[str, ...]
    opsets: dict[str, int]
    parameters: int
    weight_dtypes: tuple[str, ...]
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    bounds: Mapping[tuple[str, int], tuple[int, int | None]]
    metadata: dict[str, str]
    attention: int
    by_hand: int
    wrong: tuple[str, ...]


def read_ir(path: Path) -> ReadIr:
    """Read an IR.

    Raises:
        ArtifactError: missing, damaged, or without its weights.
    """
    model = read_model(path)
    operations = [o for o in model.get_ordered_ops() if o.get_type_name() not in _PLUMBING]
    constants = [o for o in model.get_ops() if o.get_type_name() == "Constant"]
    sizes: Counter[str] = Counter()
    for constant in constants:
        port = constant.output(0)
        count = 1
        for n in port.get_shape():
            count *= n
        sizes[_dtype(port)] += count
    floats = ("f16", "f32", "bf16", "f64", "i8", "u8", "i4", "u4")
    fused = sum(o.get_type_name() == _ATTENTION for o in operations)
    softmax = sum(_is_attention(o) for o in operations)
    return ReadIr(
        operators=tuple(o.get_type_name() for o in operations),
        opsets=_opsets(operations),
        parameters=sum(n for kind, n in sizes.items() if kind in floats),
        weight_dtypes=tuple(kind for kind, n in sizes.most_common() if n),
        inputs=tuple(_tensor(p) for p in model.inputs),
        outputs=tuple(_tensor(p) for p in model.outputs),
        bounds=_bounds(model.inputs),
        metadata=_metadata(model),
        attention=fused,
        by_hand=softmax,
        wrong=tuple(_wrong(operations)),
    )


_PLUMBING = ("Constant", "Parameter", "Result")


def _opsets(operations: Iterable[Any]) -> dict[str, int]:
    """How many operations are of each operator set."""
    counts = Counter(str(o.get_type_info().version_id) for o in operations)
    return dict(sorted(counts.items()))


def _is_attention(operation: Any) -> bool:
    """A softmax whose result a matrix product reads."""
    if operation.get_type_name() not in ("Softmax", "SoftMax"):
        return False
    return any(
        t.get_node().get_type_name() == "MatMul" for t in operation.output(0).get_target_inputs()
    )


def _wrong(operations: Iterable[Any]) -> Iterable[str]:
    """Interpolations with antialias, which the CPU plugin computes without (see graph.py)."""
    for operation in operations:
        if operation.get_type_name() != "Interpolate":
            continue
        attributes = operation.get_attributes()
        if attributes.get("antialias"):
            yield (
                f"Interpolate {operation.get_friendly_name()!r}: {attributes.get('mode')} with "
                "antialias; the CPU plugin computes it without, which differs wherever the result "
                "is smaller than what is resized"
            )


def _dtype(port: Any) -> str:
    return str(port.get_element_type().get_type_name())


def _name(port: Any) -> str:
    names = sorted(port.get_names())
    return names[0] if names else str(port.get_node().get_friendly_name())


def _tensor(port: Any) -> TensorFacts:
    shape: tuple[int | str, ...] = tuple(
        d.get_length() if d.is_static else _range(d) for d in port.get_partial_shape()
    )
    return TensorFacts(name=_name(port), shape=shape, dtype=_dtype(port))


def _range(dim: Any) -> str:
    low, high = dim.get_min_length(), dim.get_max_length()
    return "?" if high < 0 else f"{low}..{high}"


def _bounds(ports: Iterable[Any]) -> dict[tuple[str, int], tuple[int, int | None]]:
    found = {}
    for port in ports:
        for axis, dim in enumerate(port.get_partial_shape()):
            if not dim.is_static:
                high = dim.get_max_length()
                found[_name(port), axis] = (dim.get_min_length(), None if high < 0 else high)
    return found


_KEYS = (
    "schema", "version", "model", "weights_sha256", "encoding", "encoding_params",
    "resample_rule", "native_resolution", "resolution", "resolution_range", "patch_size",
    "prefix_tokens", "dynamic", "precision", "outputs", "preprocess",
)  # fmt: skip


def _metadata(model: Any) -> dict[str, str]:
    """Our keys under ``framework``, where OpenVINO keeps the metadata of ONNX files."""
    found = {}
    for key in (*(f"vitpe.{k}" for k in _KEYS), KEY):
        if model.has_rt_info(["framework", key]):
            found[key] = str(model.get_rt_info(["framework", key]).astype(str))
    return found
