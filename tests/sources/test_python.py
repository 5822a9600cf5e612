"""py:module:callable: networks of the user's own code, tables found and resampled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vitpe_deploy.errors import SizeError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.sources import open_source

CODE = '''
import math
import torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self, dim=32, heads=2):
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.heads = heads
    def turn(self, q, turns):
        return q
    def forward(self, x, turns=None):
        B, N, D = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.turn(q, turns), self.turn(k, turns)
        out = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj(out.transpose(1, 2).reshape(B, N, D))

class Fixed(nn.Module):
    """One table, added; nothing interpolates it."""
    def __init__(self, size=64, num_classes=5):
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 16, 16)
        self.cls = nn.Parameter(torch.randn(1, 1, 32))
        self.where = nn.Parameter(0.5 * torch.randn(1, 1 + (size // 16) ** 2, 32))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, num_classes)
    def positions(self, x, height, width):
        return self.where
    def forward(self, x):
        height, width = x.shape[-2:]
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.positions(x, height, width)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])

class Meta(Fixed):
    """As DINO and DINOv2 do it: scale factors with an offset, in Python floats."""
    def positions(self, x, height, width):
        N = self.where.shape[1] - 1
        if x.shape[1] - 1 == N and height == width:
            return self.where
        rows, columns, side = height // 16, width // 16, int(math.sqrt(N))
        scale = float(rows + 0.1) / side, float(columns + 0.1) / side
        table = self.where[:, 1:].reshape(1, side, side, 32).permute(0, 3, 1, 2)
        table = F.interpolate(table, scale_factor=scale, mode="bicubic")
        assert (rows, columns) == table.shape[-2:]
        return torch.cat([self.where[:, :1], table.permute(0, 2, 3, 1).reshape(1, -1, 32)], 1)

class Windows(nn.Module):
    """Patch 16 and 2x2 windows."""
    def __init__(self):
        super().__init__()
        self.patch, self.num_windows = nn.Conv2d(3, 32, 16, 16), 2
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(32, 5)
    def forward(self, x):
        x = self.patch(x).permute(0, 2, 3, 1)
        B, h, w, D = x.shape
        x = x.reshape(B, 2, h // 2, 2, w // 2, D).permute(0, 1, 3, 2, 4, 5).reshape(B * 4, -1, D)
        for block in self.blocks:
            x = block(x)
        return self.head(x.reshape(B, -1, D).mean(1))

class Turning(Block):
    def turn(self, q, turns):
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(q)

class Rotary(nn.Module):
    """Axial rotary positions in complex numbers."""
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 16, 16)
        self.blocks, self.head = nn.ModuleList(Turning() for _ in range(2)), nn.Linear(32, 5)
    def forward(self, x):
        x = self.patch(x)
        h, w = x.shape[-2:]
        at = torch.arange(h * w).float()
        speed = 1 / (100.0 ** (torch.arange(0, 16, 4).float() / 16))
        down = torch.outer(torch.div(at, w, rounding_mode="floor"), speed)
        right = torch.outer(at % w, speed)
        angle = torch.cat([right, down], -1)
        turns = torch.polar(torch.ones_like(angle), angle)
        x = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, turns)
        return self.head(x.mean(1))

class Either(Fixed):
    """Two tables of which either would do."""
    def __init__(self):
        super().__init__()
        self.other = nn.Parameter(0.5 * torch.randn(1, 17, 32))
    def positions(self, x, height, width):
        fits = [t for t in (self.where, self.other) if t.shape[1] == x.shape[1]]
        return fits[0]

class Strict(Fixed):
    def forward(self, x):
        assert x.shape[-2:] == (64, 64), "only 64 pixels"
        return super().forward(x)

def build(size=64, num_classes=5):
    return Fixed(size, num_classes)
def number():
    return 3
def broken():
    raise RuntimeError("no such file")
limit = 3
'''  # noqa: E501


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, under a name of its own."""
    name = f"mine_{abs(hash(tmp_path)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(CODE)
    (tmp_path / f"{name}_bad.py").write_text("import nothing_of_that_name")
    (tmp_path / f"{name}_worse.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def _network(name: str, what: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return getattr(sys.modules[name], what)().eval()


def _resampled(network: Any, grid: tuple[int, int], **rule: Any) -> Any:
    """The referee by hand: another table, the rest untouched."""
    table = network.where.detach()
    picture = table[:, 1:].transpose(1, 2).reshape(1, 32, 4, 4)
    given = {"mode": "bicubic", "antialias": True, **rule}
    fitted = torch.nn.functional.interpolate(picture, size=grid, **given)
    rows = torch.cat([table[:, :1], fitted.flatten(2).transpose(1, 2)], 1)
    network.where = torch.nn.Parameter(rows)
    return network


def _matches(kit: Any, exported: Any, network: Any, *pixels: Tensor, limit: float = 1e-5) -> None:
    for name, engine in exported.engines():
        for x in pixels:
            with torch.no_grad():
                right = network(x)
            assert kit.max_rel(engine(x)["logits"], right) <= limit, name


def test_a_fixed_table_is_found_and_resampled(kit: Any, export: Any, code: str) -> None:
    exported = export(f"py:{code}:build", (96, 48), seed=2)
    assert exported.report.resample_rule == "bicubic antialias (ours: the module has no rule)"
    pixels = kit.pictures(96, 48)
    _matches(kit, exported, _resampled(_network(code, "build", 2), (6, 3)), pixels)
    named = export(f"py:{code}:build", (96, 48), seed=2, pos_embed="where",
                   interpolation="bilinear", antialias=False)  # fmt: skip
    bilinear = {"mode": "bilinear", "antialias": False}
    _matches(kit, named, _resampled(_network(code, "build", 2), (6, 3), **bilinear), pixels)


def test_a_fixed_table_in_a_dynamic_file(kit: Any, export: Any, code: str) -> None:
    exported = export(f"py:{code}:build", dynamic="size", verify_resolutions=["48x112"])
    assert not exported.operators & {"Resize", "Loop", "If", "ScatterND"}
    _matches(kit, exported, _network(code, "build"), kit.pictures(64, 64))
    for h, w in ((3, 7), (6, 5), (2, 2)):
        right = _resampled(_network(code, "build"), (h, w))
        _matches(kit, exported, right, kit.pictures(16 * h, 16 * w))


def test_the_offset_of_dino(kit: Any, export: Any, code: str) -> None:
    """C03: scale factors that miss their sizes by 0.1, static and dynamic."""
    sizes = ((64, 64), (48, 112), (96, 80))
    static = export(f"py:{code}:Meta", (48, 112))
    assert static.report.resample_rule == "bicubic offset 0.1"
    _matches(kit, static, _network(code, "Meta"), kit.pictures(48, 112))
    exported = export(f"py:{code}:Meta", dynamic="size")
    _matches(kit, exported, _network(code, "Meta"), *(kit.pictures(*s) for s in sizes))


def test_windows_say_what_they_need(export: Any, code: str) -> None:
    """C17: refused before a weight file is opened, which does not even exist."""
    with pytest.raises(SizeError) as refused:
        export(f"py:{code}:Windows", 225, weights="nothing.pt")
    assert refused.value.message == (
        "--res 225 does not fit 2x2 windows of patch size 16 (225 = 7*32 + 1)."
    )
    assert refused.value.hint == "Use 224 or 256."
    export(f"py:{code}:Windows", (64, 96))


def test_complex_rotary_in_real_numbers(kit: Any, export: Any, code: str) -> None:
    """C21."""
    static = export(f"py:{code}:Rotary", (48, 80))
    _matches(kit, static, _network(code, "Rotary"), kit.pictures(48, 80), limit=1e-6)
    exported = export(f"py:{code}:Rotary", 64, dynamic="size")
    pixels = (kit.pictures(48, 80), kit.pictures(128, 64))
    _matches(kit, exported, _network(code, "Rotary"), *pixels, limit=2e-6)


def _facts(model: str, **options: Any) -> Any:
    return open_source(ModelRequest(model=model, **options)).facts()


def test_two_tables_are_a_question(code: str) -> None:
    with pytest.raises(UnsupportedError, match=r"more than one place: where .*, other") as asked:
        _facts(f"py:{code}:Either")
    assert "--pos-embed where" in asked.value.hint
    facts = _facts(f"py:{code}:Either", pos_embed="other")
    assert facts.encoding_params == {"table": "other"}
    assert (facts.native, facts.prefix_tokens) == (Resolution(64, 64), 1)


def test_pos_embed_that_is_wrong(code: str) -> None:
    with pytest.raises(UsageError, match="is no parameter or buffer") as refused:
        _facts(f"py:{code}:build", pos_embed="were")
    assert refused.value.hint.startswith("Did you mean 'where'?")
    with pytest.raises(UnsupportedError, match=r"\[5\], which is no table"):
        _facts(f"py:{code}:build", pos_embed="head.bias")
    with pytest.raises(UnsupportedError, match=r"\[96, 32\], which is no table"):
        _facts(f"py:{code}:Either", pos_embed="blocks.0.qkv.weight")


def test_a_module_that_refuses_other_sizes(code: str) -> None:
    facts = _facts(f"py:{code}:Strict", kwargs={})
    with pytest.raises(UnsupportedError, match="runs at no other: only 64 pixels"):
        facts.sizes(symbolic=True)
    with pytest.raises(SizeError, match="only 64 pixels"):
        facts.size_rule.check(Resolution(96, 96))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("py:", "is not py:module:callable"),
        ("py:{0}", "is not py:module:callable"),
        ("py:{0}_nowhere:build", "there is no module '{0}_nowhere'"),
        ("py:{0}_bad:build", "{0}_bad needs 'nothing_of_that_name', which is not installed"),
        ("py:{0}_worse:build", "importing {0}_worse fails: ZeroDivisionError: division by zero"),
        ("py:{0}:biuld", "{0} has no 'biuld'"),
        ("py:{0}:limit", "limit is int, which cannot be called"),
        ("py:{0}:number", "gives int, not a torch.nn.Module"),
        ("py:{0}:broken", "does not build a network: RuntimeError: no such file"),
    ],
)
def test_one_clear_error_each(code: str, model: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        _facts(model.format(code))
    assert message.format(code) in refused.value.message
    assert refused.value.exit_code == 2


def test_options(code: str) -> None:
    assert _facts(f"py:{code}:build", kwargs={"size": "96"}).native == Resolution(96, 96)
    with pytest.raises(UsageError, match="num_clases is not an argument") as refused:
        _facts(f"py:{code}:build", kwargs={"num_clases": "7"})
    assert refused.value.hint.startswith("Did you mean 'num_classes'?")


def test_weights(kit: Any, export: Any, code: str, tmp_path: Path) -> None:
    _facts(f"py:{code}:build")
    torch.manual_seed(9)
    trained = sys.modules[code].Fixed(64, 3).eval()
    path = tmp_path / "w.pt"
    torch.save({"state_dict": {k: v.bfloat16() for k, v in trained.state_dict().items()}}, path)
    exported = export(f"py:{code}:build", (32, 80), weights=path)
    trained.bfloat16().float()
    _matches(kit, exported, _resampled(trained, (2, 5)), kit.pictures(32, 80))
    source = open_source(ModelRequest(model=f"py:{code}:build", weights=path))
    assert source.load().weights == "from w.pt, unwrapped state_dict, bfloat16 read as float32"
    torch.save({"where": torch.zeros(1, 17, 32)}, path)
    with pytest.raises(SourceError, match=r"does not fit the model: missing cls"):
        open_source(ModelRequest(model=f"py:{code}:build", weights=path)).load()


def test_the_current_folder_is_searched_by_the_command(code: str, tmp_path: Path) -> None:
    command = "from vitpe_deploy.cli import export_main; raise SystemExit(export_main())"
    root = Path(__file__).parents[2]
    for res, expected in (("--res=96x64", 0), ("--res=100", 2)):
        done = subprocess.run(
            [sys.executable, "-P", "-c", command, f"py:{code}:build", res, "-q"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == expected, done.stderr
    assert (tmp_path / "out" / f"{code}-build-96x64-fp32.onnx").is_file()
