"""hf: networks of clips, each against the library's own call: VideoMAE, TimeSformer, ViViT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vitpe_deploy.errors import SizeError, UnsupportedError
from vitpe_deploy.request import ModelRequest, ResampleOverride, Resolution
from vitpe_deploy.sources import open_source

COMMON: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "image_size": 64, "num_frames": 4,
}  # fmt: skip


def build(kit: Any, name: str, *, head: bool = False, **options: Any) -> Any:
    import transformers

    own = {
        "VideoMAE": {"patch_size": 16, "tubelet_size": 2},
        "Timesformer": {"patch_size": 16},
        "Vivit": {"tubelet_size": [2, 16, 16]},
    }[name]
    config = getattr(transformers, f"{name}Config")(**{**COMMON, **own, "num_labels": 5, **options})
    cls = getattr(transformers, f"{name}ForVideoClassification" if head else f"{name}Model")
    module = cls(config).eval()
    kit.randomise(module)
    with torch.no_grad():
        for n, parameter in module.named_parameters():
            if "embeddings" in n and "patch" not in n:  # of places and of times
                parameter.mul_(0.5)
    return module


def clip(*size: int, batch: int = 1, frames: int = 4) -> Tensor:
    """[B, T, C, H, W], no two frames alike."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, frames, 3, *size, generator=generator)


def tokens(module: Any, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        return module(pixels).last_hidden_state  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["VideoMAE", "Vivit"])
def test_clips_at_the_native_size(name: str, kit: Any, export: Any) -> None:
    module = build(kit, name)
    exported = export(kit.save(module), dynamic="batch", outputs=["tokens"])
    assert exported.input_shape() == ["batch", 4, 3, 64, 64]
    pixels = clip(64, 64, batch=2)
    right = tokens(module, pixels)
    assert not torch.allclose(right, tokens(module, pixels.flip(1)), atol=1e-2)  # times matter
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["tokens"], right) <= 1e-5, engine


@pytest.mark.parametrize("size", [(64, 64), (80, 128)])
def test_timesformer_at_sizes_of_its_rule(size: tuple[int, int], kit: Any, export: Any) -> None:
    """5x8 patches in rows of four: not the map's own rows, but what the library computes."""
    module = build(kit, "Timesformer")
    exported = export(kit.save(module), size, outputs=["tokens", "cls"])
    assert exported.operators.isdisjoint({"Resize", "Interpolate"})
    pixels = clip(*size)
    right = tokens(module, pixels)
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["tokens"], right) <= 1e-5, engine
        assert kit.max_rel(given["cls"], right[:, 0]) <= 1e-5, engine
    assert exported.report.resample_rule == (None if size == (64, 64) else "nearest")


def test_a_head_and_its_labels(kit: Any, export: Any) -> None:
    names = {k: f"action {k}" for k in range(5)}
    module = build(kit, "VideoMAE", head=True, id2label=names)
    exported = export(kit.save(module))
    pixels = clip(64, 64)
    with torch.no_grad():
        right = module(pixels).logits
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["logits"], right) <= 1e-5, engine
    manifest = json.loads(Path(f"{exported.path()}.manifest.json").read_text())
    assert manifest["labels"] == [f"action {k}" for k in range(5)]
    assert manifest["input_layout"] == {
        "kind": "video", "channels": 3, "frames": 4, "frames_first": True
    }  # fmt: skip


def facts(kit: Any, name: str, **options: Any) -> Any:
    folder = kit.save(build(kit, name, **options), name)
    return open_source(ModelRequest(model=f"hf:{folder}")).facts()


def test_refusals(kit: Any) -> None:
    """Each for what the library does there."""
    videomae, vivit = facts(kit, "VideoMAE"), facts(kit, "Vivit")
    with pytest.raises(SizeError, match=r"doesn't match model \(64\*64\)"):
        videomae.size_rule.check(Resolution(96, 96))
    with pytest.raises(SizeError, match="forward fails there"):
        vivit.size_rule.check(Resolution(96, 96))
    for found in (videomae, vivit):
        with pytest.raises(UnsupportedError, match="forward fails there"):
            found.sizes(symbolic=True)
    rule = facts(kit, "Timesformer")
    with pytest.raises(SizeError, match="5x7 = 35 patches, which is no multiple of 4") as refused:
        rule.size_rule.check(Resolution(80, 112))
    assert refused.value.hint == "Use for example 64x112."
    rule.size_rule.check(Resolution(64, 112))
    with pytest.raises(UnsupportedError, match=r"TimesformerLayer\.forward"):
        rule.sizes(symbolic=True)
    override = ResampleOverride(interpolation="bilinear")
    source = open_source(ModelRequest(model=f"hf:{kit.root / 'VideoMAE'}", resample=override))
    with pytest.raises(UnsupportedError, match="one rule for clips"):
        source.facts()


def test_the_library_itself_fails_where_we_refuse(kit: Any) -> None:
    """ViViT's own flag for other sizes, and TimeSformer's layers."""
    with pytest.raises(RuntimeError):
        build(kit, "Vivit")(clip(96, 96), interpolate_pos_encoding=True)
    with pytest.raises(RuntimeError):
        build(kit, "Timesformer")(clip(80, 112))


def test_another_size_of_videomae_is_another_config(kit: Any, export: Any) -> None:
    """Its table is computed, so the same weights fit: the library makes it of the config."""
    import transformers

    folder = kit.save(build(kit, "VideoMAE"))
    exported = export(folder, model_kwargs={"image_size": "96"}, outputs=["tokens"])
    module = transformers.VideoMAEModel.from_pretrained(folder, image_size=96).eval()
    pixels = clip(96, 96)
    right = tokens(module, pixels)
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["tokens"], right) <= 1e-5, engine
