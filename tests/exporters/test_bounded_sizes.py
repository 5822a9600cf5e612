"""``--res-range``: the engine itself refuses sizes outside, our loader also those between steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import ViTConfig, ViTForImageClassification

import vitpe_deploy
from vitpe_deploy import cli
from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.runtimes.openvino import shared_core

CLASSES = 10


@pytest.fixture(scope="module", params=["reference", "timm", "transformers"])
def bounded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One bounded file in both formats: of a network of ours, and of libraries."""
    folder = tmp_path_factory.mktemp(request.param)
    options: dict[str, Any] = {"model_kwargs": {"depth": 1, "num_classes": CLASSES}}
    if request.param == "timm":
        options["model_kwargs"]["img_size"] = (64, 64)
    model = {"reference": "vit_tiny_patch16_224", "timm": "timm:vit_tiny_patch16_224"}.get(
        request.param
    )
    if model is None:
        config = ViTConfig(image_size=64, hidden_size=32, num_hidden_layers=1, num_labels=CLASSES,
                           num_attention_heads=2, intermediate_size=64)  # fmt: skip
        ViTForImageClassification(config).eval().save_pretrained(folder / "vit")
        model, options = f"hf:{folder / 'vit'}", {}
    report = vitpe_deploy.export(
        model,
        64,
        dynamic="all",
        size_range="32:96:32",
        formats=["onnx", "openvino"],
        output_dir=folder / "out",
        verify_resolutions=["32x96"],
        **options,
    )
    assert report.verdict == "passed"
    return {a.format: Path(a.path) for a in report.artifacts}


def picture(height: int, width: int) -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal((1, 3, height, width))
    return noise.astype(np.float32)


def test_the_ir_alone_refuses_sizes_outside(bounded: dict[str, Path]) -> None:
    core = shared_core()
    model = core.read_model(str(bounded["openvino"]))
    shape = model.input(0).get_partial_shape()
    ends = [(d.get_min_length(), d.get_max_length()) for d in shape]
    assert ends[1:] == [(3, 3), (32, 96), (32, 96)]
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    inside = compiled({0: picture(96, 64)})[0]
    assert inside.shape == (1, CLASSES)
    for height, width in ((128, 64), (64, 128), (16, 64)):
        with pytest.raises(RuntimeError, match="shape"):
            compiled({0: picture(height, width)})


@pytest.mark.parametrize(
    ("kind", "engine"),
    [("onnx", "onnxruntime"), ("onnx", "openvino"), ("openvino", "openvino")],
)
def test_our_runtimes_refuse_outside_and_between(
    bounded: dict[str, Path], kind: str, engine: str
) -> None:
    with open_runtime(engine, bounded[kind]) as runtime:
        name = runtime.inputs[0].name
        assert runtime.run({name: picture(96, 32)})["logits"].shape == (1, CLASSES)
        with pytest.raises(SizeError, match="128 is outside what this file takes: 32 to 96"):
            runtime.run({name: picture(128, 64)})
        with pytest.raises(SizeError, match="80 is not a size of this file"):
            runtime.run({name: picture(64, 80)})


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_verify_refuses_sizes_outside(
    bounded: dict[str, Path], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.verify_main([str(bounded[kind]), "--res", "128"]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert said.count("error:") == 1
    assert "128" in said
    assert "32" in said
    assert "96" in said
