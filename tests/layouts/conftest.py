"""Manifests of artifacts as servers would meet them, made without exporting anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.manifest import Manifest, TensorRecord
from vitpe_deploy.preprocess import Preprocess


@pytest.fixture
def manifest() -> Callable[..., Manifest]:
    """A static 64x96 classifier in ONNX; keyword arguments change it."""

    def make(**changes: Any) -> Manifest:
        fields: dict[str, Any] = {
            "version": "1",
            "files": ("vit+rope-2d-64x96-fp32.onnx",),
            "format": "onnx",
            "sha256": "",
            "size_bytes": 1,
            "model": "vit",
            "source": None,
            "weights": "random",
            "weights_sha256": "",
            "encoding": "rope-2d",
            "encoding_params": {},
            "resample_rule": None,
            "native_resolution": (96, 96),
            "resolution": (64, 96),
            "patch_size": (16, 16),
            "prefix_tokens": 1,
            "dynamic": "none",
            "batch": 1,
            "precision": "fp32",
            "target": "ort",
            "opset": 20,
            "inputs": (TensorRecord(name="pixel_values", shape=(1, 3, 64, 96), dtype="float32"),),
            "outputs": (TensorRecord(name="logits", shape=(1, 7), dtype="float32"),),
            "preprocess": Preprocess().as_dict(),
            "input_layout": ImageInput().as_dict(),
            "tolerance": {"rtol": 1e-4, "atol": 0.0},
            "verdict": "passed",
        }
        return Manifest(**{**fields, **changes})

    return make


@pytest.fixture
def dynamic(manifest: Callable[..., Manifest]) -> Manifest:
    """Any batch, sizes 64 to 256, class names with what text formats have to escape."""
    return manifest(
        files=("vit-dynall-fp32.onnx",),
        resolution=None,
        resolution_range=(64, 256, 32),
        dynamic="all",
        batch=None,
        labels=('a "cat"', "dog"),
        inputs=(
            TensorRecord(
                name="pixel_values", shape=("batch", 3, "height", "width"), dtype="float32"
            ),
        ),
        outputs=(
            TensorRecord(name="logits", shape=("batch", 2), dtype="float32"),
            TensorRecord(name="tokens", shape=("batch", "(h//16)*(w//16)", 32), dtype="float32"),
        ),
    )
