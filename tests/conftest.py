"""Expensive things that are built once for the whole session."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.manifest import Manifest, TensorRecord
from vitpe_deploy.preprocess import Preprocess

ROOT = Path(__file__).resolve().parent.parent

# One thread for each of several workers, so that they do not wait for one another.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


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


@pytest.fixture(scope="session")
def make_dinov2() -> ModuleType:
    """``benchmarks/make_dinov2.py``, which users run as a script."""
    name = "benchmarks_make_dinov2"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / "make_dinov2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def dinov2_dir(make_dinov2: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained DINOv2-small as a transformers folder."""
    if make_dinov2.onnx_path() is None:
        pytest.skip(f"{make_dinov2.REQUIREMENT} is not installed")
    directory: Path = make_dinov2.build(tmp_path_factory.mktemp("hf") / "dinov2-small")
    return directory


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four photographs that scikit-image ships."""
    from skimage import data

    folder = tmp_path_factory.mktemp("photographs")
    for name in ("astronaut", "chelsea", "coffee", "rocket"):
        Image.fromarray(getattr(data, name)()).save(folder / f"{name}.png")
    return folder
