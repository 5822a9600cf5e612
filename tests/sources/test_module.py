"""Modules passed to the Python interface; C06: one checkpoint is two models, by library."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import vitpe_deploy
from vitpe_deploy.errors import SizeError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.sources.module import ModuleSource, named_outputs, open_module
from vitpe_deploy.sources.reference import ReferenceModuleSource
from vitpe_deploy.sources.transformers import TransformersModuleSource


class TinyViT(nn.Module):
    """A patch convolution, one learned row per patch, blocks, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 16, 16)
        self.positions = nn.Parameter(torch.randn(1, 8, 4, 4))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.patch(x)
        table = nn.functional.interpolate(self.positions, x.shape[-2:], mode="bilinear")
        x = (x + table).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = x + layer(x)
        return {"last_hidden_state": x, "pooled": x.mean(1)}


def _timm_weights(folder: Path) -> dict[str, Tensor]:
    """A transformers ViT checkpoint under timm's names."""
    given = load_file(folder / "model.safetensors")
    rename = {
        "cls_token": "vit.embeddings.cls_token",
        "pos_embed": "vit.embeddings.position_embeddings",
        "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
        "norm": "vit.layernorm",
        "head": "classifier",
    }
    for k in range(2):
        layer = f"vit.encoder.layer.{k}"
        rename |= {
            f"blocks.{k}.norm1": f"{layer}.layernorm_before",
            f"blocks.{k}.norm2": f"{layer}.layernorm_after",
            f"blocks.{k}.attn.proj": f"{layer}.attention.output.dense",
            f"blocks.{k}.mlp.fc1": f"{layer}.intermediate.dense",
            f"blocks.{k}.mlp.fc2": f"{layer}.output.dense",
        }
    weights = {}
    for new, old in rename.items():
        for kind in ("", ".weight", ".bias"):
            if old + kind in given:
                weights[new + kind] = given[old + kind]
    for k in range(2):
        for kind in ("weight", "bias"):
            parts = [
                given[f"vit.encoder.layer.{k}.attention.attention.{part}.{kind}"]
                for part in ("query", "key", "value")
            ]
            weights[f"blocks.{k}.attn.qkv.{kind}"] = torch.cat(parts)
    assert sum(v.numel() for v in weights.values()) == sum(v.numel() for v in given.values())
    return weights


def _timm_vit(img_size: int, **options: Any) -> Any:
    return timm.models.VisionTransformer(
        img_size=img_size, patch_size=16, embed_dim=32, depth=2, num_heads=2, mlp_ratio=2,
        num_classes=5, **options,
    ).eval()  # fmt: skip


def test_one_checkpoint_in_two_libraries(kit: Any, export: Any) -> None:
    """C06, from 96 to 160: each file matches its own library, and the report says the rule."""
    module = kit.build("vit", head=True, layer_norm_eps=1e-6)
    folder = kit.save(module)
    weights = _timm_weights(folder)
    dynamic = _timm_vit(96, dynamic_img_size=True)
    dynamic.load_state_dict(weights)
    resampled = _timm_vit(160)
    resampled.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(
        dict(weights), resampled))  # fmt: skip

    native, pixels = kit.pictures(96, 96), kit.pictures(160, 160)
    with torch.no_grad():
        assert kit.max_rel(dynamic(native), kit.forward(module, native).logits) <= 1e-5
        timms = dynamic(pixels).numpy()
        assert kit.max_rel(resampled(pixels), timms) <= 1e-5
    transformers = kit.forward(module, pixels).logits.numpy()
    assert kit.max_rel(timms, transformers) > 1e-3  # as much as 5e-3 with some versions

    from_timm = export(dynamic, 160)
    from_transformers = export(folder, 160)
    assert from_timm.report.resample_rule == "bicubic antialias"
    assert from_transformers.report.resample_rule == "bicubic"
    for exported, right in ((from_timm, timms), (from_transformers, transformers)):
        assert not exported.operators & {"Resize", "Upsample", "Interpolate"}
        for engine, given in exported.run(pixels):
            assert kit.max_rel(given["logits"], right) <= 1e-5, engine


def test_a_plain_module_is_described_by_looking(kit: Any, export: Any) -> None:
    module = TinyViT().eval()
    exported = export(module, (64, 96), dynamic="size", verify_layers=True)
    report = exported.report
    assert (report.model, report.resample_rule) == ("TinyViT", "bilinear")
    assert [len(v.rows) for v in report.layers] == [3, 3]
    assert not exported.operators & {"Resize", "Upsample"}
    for size in ((64, 64), (32, 144)):
        pixels = kit.pictures(*size)
        with torch.no_grad():
            right = module(pixels)
        for engine, given in exported.run(pixels):
            assert list(given) == ["tokens", "pooled"], engine
            assert kit.max_rel(given["tokens"], right["last_hidden_state"]) <= 1e-5, engine
            assert kit.max_rel(given["pooled"], right["pooled"]) <= 1e-5, engine


def _source(module: nn.Module, size: tuple[int, int] | None = (64, 64)) -> ModuleSource:
    found = None if size is None else Resolution(*size)
    return ModuleSource(module, ModelRequest(model=type(module).__name__), found)


def test_facts_of_a_module() -> None:
    facts = _source(TinyViT().eval()).facts()
    assert (facts.name, facts.spec, facts.depth) == ("tinyvit", "TinyViT", 3)
    assert (facts.native, facts.grid_divisor) == (Resolution(64, 64), (16, 16))
    assert facts.outputs == facts.default_outputs == ("tokens", "pooled")
    loaded = _source(TinyViT().eval()).load()
    assert loaded.block_paths() == ("layers.0", "layers.1", "layers.2")
    (fit,) = loaded.position_fits(Resolution(64, 144))
    assert str(fit) == "grid 4x4 -> 4x9, bilinear"
    (fit,) = loaded.position_fits(None)
    assert str(fit) == "grid 4x4 -> from H and W, bilinear"


def test_the_module_is_left_alone() -> None:
    module = TinyViT().eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    loaded = _source(module).load()
    loaded.position_fits(Resolution(32, 32))
    assert all(p.requires_grad for p in module.parameters())
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert next(loaded.fresh().parameters()).data_ptr() == next(module.parameters()).data_ptr()


def test_refusals() -> None:
    with pytest.raises(UsageError, match="is in training mode"):
        _source(TinyViT())
    with pytest.raises(UnsupportedError, match="Linear has no patch embedding"):
        _source(nn.Linear(2, 2).eval()).facts()
    strict = _timm_vit(96)
    with pytest.raises(SourceError, match="does not run at 64x64"):
        _source(strict).facts()
    with pytest.raises(SizeError, match="--res 100 does not fit patch size 16") as refused:
        _source(strict, (100, 100)).facts()
    assert refused.value.hint.startswith("Use 96 or 112.")


def test_modules_of_known_libraries_go_to_their_source(kit: Any) -> None:
    from vitpe_deploy.models.presets import ViTConfig
    from vitpe_deploy.models.vit import VisionTransformer

    def source_of(module: nn.Module) -> type:
        return type(open_module(module, ModelRequest(model="x"), Resolution(84, 84)))

    assert source_of(kit.build("dinov2")) is TransformersModuleSource
    mine = type("Mine", (type(kit.build("vit", head=True)),), {})
    derived = mine(kit.build("vit", head=True).config).eval()
    assert source_of(derived) is TransformersModuleSource
    facts = open_module(derived, ModelRequest(model="x"), None).facts()
    assert facts.default_outputs == ("logits",)
    reference = VisionTransformer(ViTConfig(embed_dim=32, depth=1, num_heads=2)).eval()
    assert source_of(reference) is ReferenceModuleSource
    # A class that is not among the supported ones is described by looking at it.
    from transformers import Dinov2Backbone, Dinov2Config

    config = Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                          image_size=84, patch_size=14)  # fmt: skip
    assert source_of(Dinov2Backbone(config).eval()) is ModuleSource


def test_a_module_without_a_pooler_has_no_pooled_output(kit: Any) -> None:
    from transformers import ViTModel

    module = ViTModel(kit.build("vit").config, add_pooling_layer=False).eval()
    facts = open_module(module, ModelRequest(model="x"), None).facts()
    assert facts.default_outputs == ("tokens",)


def test_names_of_outputs() -> None:
    a, b = torch.zeros(1, 5), torch.zeros(1, 4, 8)
    assert list(named_outputs(a)) == ["logits"]
    assert list(named_outputs(b)) == ["tokens"]
    assert list(named_outputs(b.unsqueeze(-1))) == ["feature-map"]
    assert list(named_outputs((a, None, b))) == ["output0", "output1"]
    kept = OrderedDict(last_hidden_state=b, pooler_output=a, loss=None)
    assert list(named_outputs(kept)) == ["tokens", "pooled"]
    for nothing in (None, "text", {}, [], {"a": 1}):
        with pytest.raises(UnsupportedError, match="holds no tensor"):
            named_outputs(nothing)


def test_modules_of_open_clip_and_torchvision(tmp_path: Path) -> None:
    """Two libraries without a MODEL prefix: their modules go in from Python."""
    from open_clip.transformer import VisionTransformer as OpenClip
    from torchvision.models import VisionTransformer as Torchvision

    torch.manual_seed(0)
    clip = OpenClip(64, 16, 32, 2, 2, 4.0, output_dim=16).eval()
    vision = Torchvision(64, 16, 2, 2, 32, 64, num_classes=10).eval()
    nn.init.normal_(vision.heads.head.weight)
    for module in (clip, vision):
        report = vitpe_deploy.export(module, 64, output_dir=tmp_path, force=True)
        assert report.verdict == "passed"
        assert len(report.parity) == 2
        assert max(row.max_rel for row in report.parity) <= 1e-5


def test_what_is_no_model_is_said() -> None:
    with pytest.raises(UsageError, match="a name, a path or a torch module, got int"):
        vitpe_deploy.export(3)  # type: ignore[arg-type]
