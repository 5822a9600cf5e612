"""A model repository for OpenVINO Model Server: ``<model>/1/<file>`` and one ``config.json``.

``base_path`` is relative to ``config.json``. Sizes that a file leaves open are written as ranges,
so that the server refuses what the model cannot take; precision and hint are those of the proof.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

from vitpe_deploy.layouts.base import MAX_BATCH, Layout, ServedModel, versioned

CONFIG = "config.json"


class ModelServerRepository(Layout):
    """``--layout ovms``."""

    name: ClassVar[str] = "ovms"

    def place(self, file_name: str) -> PurePosixPath:
        """In the folder of version 1 of its model."""
        return versioned(file_name)

    def texts(self, models: Sequence[ServedModel]) -> Mapping[PurePosixPath, str]:
        """One configuration for all models."""
        document = {"model_config_list": [{"config": entry(model)} for model in models]}
        return {PurePosixPath(CONFIG): json.dumps(document, indent=2) + "\n"}


def entry(model: ServedModel) -> dict[str, Any]:
    """What ``config.json`` says of one model."""
    plugin = {"PERFORMANCE_HINT": "LATENCY"}
    if model.manifest.precision != "fp16":
        # Left alone, capable CPUs compute in bfloat16, which the file was not proved in.
        plugin["INFERENCE_PRECISION_HINT"] = "f32"
    config: dict[str, Any] = {
        "name": model.name,
        "base_path": model.name,
        "target_device": "CPU",
        "plugin_config": plugin,
    }
    if any(isinstance(n, str) for n in model.input.shape):
        config["shape"] = {model.input.name: f"({', '.join(_dims(model))})"}
    return config


def _dims(model: ServedModel) -> list[str]:
    """``1:8`` for the batch, the bounds of a bounded size, ``-1`` for any size."""
    bounds = model.manifest.resolution_range
    free = "-1" if bounds is None else f"{bounds[0]}:{bounds[1]}"
    layout = model.manifest.layout()
    longest = getattr(layout, "max_length", None)
    dims = []
    for axis, size in enumerate(model.input.shape):
        if isinstance(size, int):
            dims.append(str(size))
        elif axis == 0:
            dims.append(f"1:{MAX_BATCH}")
        else:
            dims.append(free if longest is None else f"1:{longest}")
    return dims
