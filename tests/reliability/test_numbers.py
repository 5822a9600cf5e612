"""Numbers that misbehave are found and named; nothing passes because of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import vitpe_deploy
from vitpe_deploy.errors import SourceError
from vitpe_deploy.models.vit import VisionTransformer
from vitpe_deploy.request import ModelRequest
from vitpe_deploy.results import ExportReport
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.sources import open_source

TINY = {"depth": 3, "embed_dim": 32, "num_heads": 2, "num_classes": 5, "image_size": 32}


def _network() -> VisionTransformer:
    loaded = open_source(ModelRequest("vit_tiny_patch16_224", kwargs=TINY)).load()
    module = loaded.fresh()
    assert isinstance(module, VisionTransformer)
    return module


def _export(module: torch.nn.Module, folder: Path) -> ExportReport:
    return vitpe_deploy.export(module, 32, output_dir=folder)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, bad: float) -> None:
    module = _network()
    name = next(n for n, p in module.named_parameters() if ".1." in n and p.dim() == 2)
    with torch.no_grad():
        dict(module.named_parameters())[name][0, 0] = bad
    with pytest.raises(SourceError, match="hold NaN or infinity") as caught:
        _export(module, tmp_path / "out")
    assert name in caught.value.message
    assert not (tmp_path / "out").exists()


def test_activations_that_overflow_are_named_by_block(tmp_path: Path) -> None:
    module = _network()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if ".1." in name and name.endswith("bias") and parameter.numel() == 32:
                parameter.fill_(3e38)  # two of them add up to infinity in the second block
    report = _export(module, tmp_path)
    assert report.verdict == "failed"
    problems = {row.problem for row in report.parity}
    assert problems == {"the reference itself holds NaN or inf, from block:1 on"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network in both formats."""
    folder = tmp_path_factory.mktemp("numbers")
    report = vitpe_deploy.export(
        _network(), 32, formats=["onnx", "openvino"], output_dir=folder, threads=2
    )
    assert report.verdict == "passed"
    return Path(report.artifacts[0].path)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("engine", "suffix"), [("onnxruntime", ".onnx"), ("openvino", ".onnx"), ("openvino", ".xml")]
)
def test_outputs_are_equal_from_run_to_run(
    exported: Path, engine: str, suffix: str, threads: int
) -> None:
    """Bit for bit: within a session, and in another."""
    x = np.random.default_rng(5).standard_normal((1, 3, 32, 32)).astype(np.float32)
    found = []
    for _ in range(2):
        with open_runtime(engine, exported.with_suffix(suffix), threads=threads) as runtime:
            found += [runtime.run({"pixel_values": x})["logits"].copy() for _ in range(2)]
    assert len({a.tobytes() for a in found}) == 1
    assert np.ptp(found[0]) > 0


class _Deaf(torch.nn.Module):
    """A network whose output does not depend on the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = torch.nn.Conv2d(3, 8, 16, 16)
        self.constant = torch.nn.Parameter(torch.arange(4.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.patch_embed(x).mean((1, 2, 3)).unsqueeze(1) * 0 + self.constant


def test_output_that_ignores_its_input_never_passes(tmp_path: Path) -> None:
    report = _export(_Deaf().eval(), tmp_path)
    assert report.verdict == "failed"
    assert {row.problem for row in report.parity} == {
        "the reference output does not depend on the input"
    }
