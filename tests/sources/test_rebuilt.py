"""py:module:callable whose callable takes the size: the network of another size is built for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vitpe_deploy.errors import SizeError, UnsupportedError
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.sources import open_source

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    # One size only: it is checked, and a buffer and a frozen table are computed for it.
    def __init__(self, img_size=64, dim=32):
        super().__init__()
        self.size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        self.grid = (self.size[0] // 16, self.size[1] // 16)
        count = self.grid[0] * self.grid[1]
        self.patch = nn.Conv2d(3, dim, 16, 16)
        self.where = nn.Parameter(0.5 * torch.randn(1, count, dim))
        self.same = nn.Parameter(0.5 * torch.randn(1, 16, dim))  # 4x4 rows, and no table
        self.register_buffer("ramp", torch.linspace(0, 2, count)[None, :, None])
        waves = torch.sin(torch.arange(count)[:, None] * torch.linspace(0.1, 1, dim))[None]
        self.waves = nn.Parameter(waves, requires_grad=False)
        self.mix = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, 5)
    def forward(self, x):
        assert tuple(x.shape[-2:]) == self.size, "another size"
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.where * self.ramp + self.waves
        read = torch.softmax(x @ self.same.transpose(1, 2), -1) @ self.same
        return self.head(torch.relu(self.mix(x + read)).mean(1))

class Square(Net):
    def __init__(self, image_size=64):
        assert isinstance(image_size, int), "one number"
        super().__init__(image_size)

class Odd(Net):
    # A learned tensor that follows the size and is no table.
    def __init__(self, img_size=64):
        super().__init__(img_size)
        self.weights = nn.Parameter(torch.randn(self.grid[0] + 3))
    def forward(self, x):
        return super().forward(x) * self.weights.sum()
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"built_{abs(hash(tmp_path)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def resampled(native: Any, other: Any) -> Any:
    """Weights of one size in the network of another: the table by torch, the rest as it is."""
    with torch.no_grad():
        grid = native.where.reshape(1, *native.grid, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=other.grid, mode="bicubic", antialias=True)
        other.where.copy_(grid.flatten(2).transpose(1, 2))
        for name in ("same", "mix.weight", "mix.bias", "head.weight", "head.bias"):
            other.get_parameter(name).copy_(native.get_parameter(name))
        other.patch.load_state_dict(native.patch.state_dict())
    return other.eval()


def test_another_size_is_built(code: str, kit: Any, export: Any, tmp_path: Path) -> None:
    module = __import__(code)
    torch.manual_seed(7)
    native = module.Net().eval()
    path = tmp_path / "w.pt"
    torch.save(native.state_dict(), path)
    for size in ((64, 64), (96, 48)):
        exported = export(f"py:{code}:Net", size, weights=path)
        pixels = kit.pictures(*size)
        network = native if size == (64, 64) else resampled(native, module.Net(size))
        with torch.no_grad():
            right = network(pixels)
        for engine, given in exported.run(pixels):
            assert kit.max_rel(given["logits"], right) <= 1e-5, (engine, size)
    rule = exported.report.resample_rule
    assert rule is not None
    assert rule.startswith("bicubic antialias (ours")


def test_what_is_refused(code: str) -> None:
    source = open_source(ModelRequest(model=f"py:{code}:Net"))
    assert source.facts().native == Resolution(64, 64)
    with pytest.raises(UnsupportedError, match=r"built for each size \(img_size\)"):
        source.facts().sizes(symbolic=True)
    square = open_source(ModelRequest(model=f"py:{code}:Square")).facts().size_rule
    square.check(Resolution(96, 96))
    with pytest.raises(SizeError, match=r"only squares are: .*one number"):
        square.check(Resolution(96, 48))
    odd = open_source(ModelRequest(model=f"py:{code}:Odd")).facts().size_rule
    with pytest.raises(SizeError, match="runs at no other"):
        odd.check(Resolution(96, 96))


def test_a_size_that_the_user_gave_is_the_native_one(code: str) -> None:
    request = ModelRequest(model=f"py:{code}:Net", kwargs={"img_size": "96"})
    facts = open_source(request).facts()
    assert facts.native == Resolution(96, 96)
    with pytest.raises(SizeError):
        facts.size_rule.check(Resolution(64, 64))
    assert code in sys.modules
