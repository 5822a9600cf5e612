"""An ONNX graph as bytes on disk, the same bytes for the same graph."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

EXTERNAL_BYTES = 1_500_000_000
"""Weights above this go to ``<file>.data``: protobuf ends at 2 GB."""

_EXTERNAL_TENSOR_BYTES = 1024


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Files of one ONNX model; the first is the ``.onnx`` itself."""

    paths: tuple[Path, ...]
    sha256: str


def write_onnx(
    model: ir.Model,
    path: Path,
    metadata: Mapping[str, str],
    *,
    external_bytes: int = EXTERNAL_BYTES,
) -> WrittenFile:
    """Write ``model`` with ``metadata_props``; large weights go to ``<name>.data`` beside it.

    The hash covers the ``.onnx`` file, which names the data file and its lengths.
    """
    model.metadata_props.clear()
    model.metadata_props.update(sorted(metadata.items()))
    weights = sum(
        v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None
    )
    paths = [path]
    if weights > external_bytes:
        data = path.with_name(f"{path.name}.data")
        ir.save(
            model,
            path,
            external_data=data.name,
            size_threshold_bytes=_EXTERNAL_TENSOR_BYTES,
        )
        paths.append(data)
        content = path.read_bytes()
    else:
        content = ir.to_proto(model).SerializeToString(deterministic=True)
        path.write_bytes(content)
    return WrittenFile(tuple(paths), hashlib.sha256(content).hexdigest())
