"""Manifests of artifacts as servers would meet them, made without exporting anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vitpe_deploy.manifest import Manifest, TensorRecord


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
