"""Numbers that misbehave are found and named; nothing passes because of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitpe_deploy
from vitpe_deploy.errors import SourceError
from vitpe_deploy.models.vit import VisionTransformer
from vitpe_deploy.request import ModelRequest
from vitpe_deploy.results import ExportReport
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
