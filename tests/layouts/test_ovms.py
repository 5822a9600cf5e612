"""OpenVINO Model Server's repository, by what its configuration schema allows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import jsonschema

from vitpe_deploy.inputs import TextInput
from vitpe_deploy.layouts import ServedModel, layout_of
from vitpe_deploy.layouts.ovms import entry
from vitpe_deploy.manifest import Manifest, TensorRecord

_MODEL = {
    "type": "object",
    "required": ["name", "base_path"],
    "properties": {
        "name": {"type": "string"},
        "base_path": {"type": "string"},
        "batch_size": {"type": ["integer", "string"]},
        "shape": {"type": ["object", "string"]},
        "nireq": {"type": "integer"},
        "target_device": {"type": "string"},
        "plugin_config": {"type": "object"},
    },
    "additionalProperties": False,
}
"""The keys of a model and their types, as the server's documentation of parameters lists them."""


def _document(*manifests: Manifest) -> Any:
    texts = layout_of("ovms").texts([ServedModel.of(m) for m in manifests])
    assert list(texts) == [PurePosixPath("config.json")]
    return json.loads(texts[PurePosixPath("config.json")])


def test_all_models_stand_in_one_configuration(
    manifest: Callable[..., Manifest], dynamic: Manifest
) -> None:
    document = _document(manifest(), dynamic)
    assert list(document) == ["model_config_list"]
    configs = [item["config"] for item in document["model_config_list"]]
    assert [c["name"] for c in configs] == ["vit-rope-2d-64x96-fp32", "vit-dynall-fp32"]
    assert [c["base_path"] for c in configs] == [c["name"] for c in configs]
    for config in configs:
        jsonschema.validate(config, _MODEL)
        assert all(isinstance(v, str) for v in config["plugin_config"].values())


def test_open_sizes_are_ranges(manifest: Callable[..., Manifest], dynamic: Manifest) -> None:
    assert entry(ServedModel.of(dynamic))["shape"] == {"pixel_values": "(1:8, 3, 64:256, 64:256)"}
    assert "shape" not in entry(ServedModel.of(manifest()))
    free = dynamic.model_copy(update={"resolution_range": None})
    assert entry(ServedModel.of(free))["shape"] == {"pixel_values": "(1:8, 3, -1, -1)"}


def test_texts_end_at_the_longest(manifest: Callable[..., Manifest]) -> None:
    text = manifest(
        native_resolution=(1, 77),
        resolution=None,
        input_layout=TextInput(100, 77).as_dict(),
        inputs=(TensorRecord(name="input_ids", shape=(1, "length"), dtype="int64"),),
    )
    assert entry(ServedModel.of(text))["shape"] == {"input_ids": "(1, 1:77)"}


def test_precision_is_that_of_the_proof(manifest: Callable[..., Manifest]) -> None:
    def hint(precision: str) -> str | None:
        plugin = entry(ServedModel.of(manifest(precision=precision)))["plugin_config"]
        found = plugin.get("INFERENCE_PRECISION_HINT")
        return None if found is None else str(found)

    assert hint("fp32") == "f32"
    assert hint("int8") == "f32"
    assert hint("fp16") is None
