"""Two faults of other loaders: a size that is wrong without a word, preprocessing that is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vitpe_deploy
from vitpe_deploy.errors import SizeError
from vitpe_deploy.images import prepare
from vitpe_deploy.manifest import manifest_path
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.runtimes.openvino import shared_core

TINY = {"depth": 1, "embed_dim": 32, "num_heads": 2, "num_classes": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static artifact of 384x384 in both formats."""
    folder = tmp_path_factory.mktemp("cases")
    vitpe_deploy.export(
        "vit_tiny_patch16_224", 384, model_kwargs=TINY, formats=["onnx", "openvino"],
        output_dir=folder, verify=False,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_c18_another_size_is_refused_with_both_sizes(folder: Path, engine: str) -> None:
    with vitpe_deploy.load(folder, runtime=engine) as model:
        with pytest.raises(SizeError, match="takes 384x384, got 224x224"):
            model(np.zeros((1, 3, 224, 224), np.float32))
        assert model(np.zeros((1, 3, 384, 384), np.float32))["logits"].shape == (1, 5)


def test_c35_preprocessing_is_in_the_files(folder: Path) -> None:
    onnx = next(folder.glob("*.onnx"))
    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    in_onnx = session.get_modelmeta().custom_metadata_map["vitpe.preprocess"]
    core = shared_core()
    model = core.read_model(str(next(folder.glob("*.xml"))))
    in_ir = model.get_rt_info(["framework", "vitpe.preprocess"]).astype(str)
    for text in (in_onnx, in_ir):
        found = json.loads(text)
        assert Preprocess.from_dict(found) == Preprocess()
        wanted = {"mean", "std", "scale", "crop", "interpolation", "layout", "color_order", "fit"}
        assert set(found) == wanted


@pytest.mark.parametrize(
    "changed",
    [
        {"mean": [0.1, 0.2, 0.3]},
        {"std": [0.9, 0.2, 0.3]},
        {"crop": 0.5},
        {"interpolation": "nearest"},
        {"color_order": "BGR"},
        {"scale": 1 / 127.5},
        {"fit": "squash"},
    ],
)
def test_c35_the_loader_uses_each_of_them(
    folder: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """Another rule in the manifest is another input, that of :func:`prepare`."""
    picture = np.random.default_rng(0).integers(0, 256, (90, 130, 3), dtype=np.uint8)
    plain = next(folder.glob("*.onnx"))
    with vitpe_deploy.load(plain) as model:
        before = model.prepare(picture)
    path = tmp_path / plain.name
    path.write_bytes(plain.read_bytes())
    document = json.loads(manifest_path(plain).read_text())
    document["preprocess"].update(changed)
    manifest_path(path).write_text(json.dumps(document))
    with vitpe_deploy.load(path) as model:
        given = model.prepare(picture)
    rule = Preprocess.from_dict(document["preprocess"])
    np.testing.assert_array_equal(given[0], prepare(picture, 384, 384, rule))
    assert np.abs(given - before).max() > 1e-2
