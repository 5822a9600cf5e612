"""Expensive things that are built once for the whole session."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent

# One thread for each of several workers, so that they do not wait for one another.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


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
