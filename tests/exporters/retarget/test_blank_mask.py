"""Masks that mask nothing: a plain export writes them at the size of the trace."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitpe_deploy
from vitpe_deploy.errors import VitpeError
from vitpe_deploy.runtimes import open_runtime

PATCH, WIDTH = 8, 16


class Masked(nn.Module):
    """One attention over patches, with a mask of its own size between scores and softmax."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.table = nn.Parameter(0.5 * torch.randn(1, 16, WIDTH))
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = (x.shape[2] // PATCH, x.shape[3] // PATCH)
        table = self.table.transpose(1, 2).reshape(1, WIDTH, 4, 4)
        if side != (4, 4):
            table = F.interpolate(table, side, mode="bicubic", antialias=True)
        tokens = (self.embed(x) + table).flatten(2).transpose(1, 2)
        query, key, value = self.qkv(tokens).chunk(3, dim=-1)
        scores = query @ key.transpose(1, 2) / WIDTH**0.5
        if scores.shape == self.mask.shape:
            scores = scores + self.mask
        return (scores.softmax(-1) @ value).mean(1)


def plain_export(model: nn.Module, path: Path) -> Path:
    """As a user without this package would: one size, everything baked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), (torch.zeros(1, 3, 32, 32),), str(path), dynamo=True)
    return path


@pytest.mark.parametrize("value", [0.0, 1.5])
@pytest.mark.parametrize("flags", [{"resolution": (48, 40)}, {"dynamic": "size"}])
def test_what_is_the_same_for_all_pairs_follows_the_size(
    tmp_path: Path, value: float, flags: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model = Masked(torch.full((1, 16, 16), value))
    path = plain_export(model, tmp_path / "plain.onnx")
    report = vitpe_deploy.export(path, output_dir=tmp_path / "out", threads=1, **flags)
    assert report.verdict == "passed"
    x = np.random.default_rng(0).standard_normal((1, 3, 48, 40)).astype(np.float32)
    with torch.no_grad():
        right = model(torch.from_numpy(x)).numpy()
    for runtime in ("onnxruntime", "openvino"):
        with open_runtime(runtime, Path(report.artifacts[0].path)) as engine:
            (got,) = engine.run({engine.inputs[0].name: x}).values()
        np.testing.assert_allclose(got, right, atol=1e-5 * np.abs(right).max())


def test_a_mask_of_some_pairs_is_still_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mask = torch.full((1, 16, 16), -1e9).triu(1)
    path = plain_export(Masked(mask), tmp_path / "causal.onnx")
    with pytest.raises(VitpeError, match="attention bias"):
        vitpe_deploy.export(path, dynamic="size", output_dir=tmp_path / "out", threads=1)
    assert not (tmp_path / "out").exists()
