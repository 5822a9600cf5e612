"""A model repository for Triton Inference Server: ``<model>/1/<file>`` and ``config.pbtxt``.

The fields are those of Triton's ``ModelConfig`` message. A file whose batch is symbolic is batched
by the server; any other takes the batch it was made for, as the first of its dims. Every model is
warmed up: Triton calls a model with wrong dims ready as long as nobody has run it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import ClassVar

from vitpe_deploy.layouts.base import MAX_BATCH, Layout, ServedModel, versioned
from vitpe_deploy.manifest import TensorRecord

_BACKENDS = {"onnx": "onnxruntime", "openvino": "openvino"}
_TYPES = {
    "float32": "TYPE_FP32", "float16": "TYPE_FP16", "int64": "TYPE_INT64", "int32": "TYPE_INT32",
    "uint8": "TYPE_UINT8", "int8": "TYPE_INT8", "bool": "TYPE_BOOL",
}  # fmt: skip
_QUEUE_DELAY_US = 1000
"""How long a request waits for others to share a batch with; below the time of one inference."""

_LABELS = "labels.txt"


class TritonRepository(Layout):
    """``--layout triton``."""

    name: ClassVar[str] = "triton"

    def place(self, file_name: str) -> PurePosixPath:
        """In the folder of version 1 of its model."""
        return versioned(file_name)

    def texts(self, models: Sequence[ServedModel]) -> Mapping[PurePosixPath, str]:
        """A configuration for each model, and the names of its classes where they are known."""
        found = {}
        for model in models:
            found[PurePosixPath(model.name, "config.pbtxt")] = config(model)
            if model.manifest.labels:
                lines = "".join(f"{label}\n" for label in model.manifest.labels)
                found[PurePosixPath(model.name, _LABELS)] = lines
        return found


def config(model: ServedModel) -> str:
    """The ``config.pbtxt`` of one model."""
    manifest = model.manifest
    blocks = [
        f"name: {_text(model.name)}",
        f"backend: {_text(_BACKENDS[manifest.format])}",
        f"default_model_filename: {_text(manifest.files[0])}",
        f"max_batch_size: {MAX_BATCH if model.batched else 0}",
        *(_tensor("input", tensor, model) for tensor in manifest.inputs),
        *(_tensor("output", tensor, model) for tensor in manifest.outputs),
    ]
    if model.batched:
        blocks.append(f"dynamic_batching {{\n  max_queue_delay_microseconds: {_QUEUE_DELAY_US}\n}}")
    blocks += [
        "instance_group [\n  {\n    count: 1\n    kind: KIND_CPU\n  }\n]",
        _warm_up(model),
    ]
    return "\n".join(blocks) + "\n"


def _tensor(kind: str, tensor: TensorRecord, model: ServedModel) -> str:
    dims: Iterable[int | str] = tensor.shape[1:] if model.batched else tensor.shape
    written = ", ".join(str(-1 if isinstance(n, str) else n) for n in dims)
    lines = [
        f"    name: {_text(tensor.name)}",
        f"    data_type: {_TYPES[tensor.dtype]}",
        f"    dims: [ {written} ]",
    ]
    if kind == "output" and tensor.name == "logits" and model.manifest.labels:
        lines.append(f"    label_filename: {_text(_LABELS)}")
    return "\n".join([f"{kind} [", "  {", *lines, "  }", "]"])


def _warm_up(model: ServedModel) -> str:
    """One run at a size that the file was proved at; token 0 for text, whose ids have a limit."""
    shape = model.example_shape()[1 if model.batched else 0 :]
    data = "random_data" if model.input.dtype.startswith("float") else "zero_data"
    return "\n".join(
        [
            "model_warmup [",
            "  {",
            '    name: "one input"',
            "    batch_size: 1",  # of a model without batches too: at 0 nothing is run
            "    inputs {",
            f"      key: {_text(model.input.name)}",
            "      value {",
            f"        data_type: {_TYPES[model.input.dtype]}",
            f"        dims: [ {', '.join(map(str, shape))} ]",
            f"        {data}: true",
            "      }",
            "    }",
            "  }",
            "]",
        ]
    )


def _text(value: str) -> str:
    """A string of the text format, whose escapes are those of JSON for what names are made of."""
    return json.dumps(value)
