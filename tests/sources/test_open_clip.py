"""open_clip: each tower against open_clip itself, loaded by its own loader. C26, C27 among them.

The oracle at a size is what open_clip makes for that size and fills with ``load_checkpoint``;
trunks of timm are taken there by ``set_input_size`` afterwards, as ``create_model`` does it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from open_clip.factory import load_checkpoint
from torch import Tensor, nn

import vitpe_deploy
from vitpe_deploy.errors import (
    MissingExtraError,
    SizeError,
    SourceError,
    UnsupportedError,
    UsageError,
)
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.sources import open_source

END = 98

CLIP: dict[str, Any] = {
    "embed_dim": 24, "quick_gelu": True,
    "vision_cfg": {"image_size": 64, "patch_size": 16, "width": 32, "head_width": 16, "layers": 2},
    "text_cfg": {"context_length": 77, "vocab_size": 99, "width": 32, "heads": 2, "layers": 2},
}  # fmt: skip
SIGLIP: dict[str, Any] = {
    "embed_dim": 64, "custom_text": True, "init_logit_bias": -10,
    "vision_cfg": {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "map",
                   "timm_proj": "none"},
    "text_cfg": {"context_length": 16, "vocab_size": 99, "width": 32, "heads": 2, "layers": 1,
                 "no_causal_mask": True, "proj_bias": True, "pool_type": "last"},
}  # fmt: skip
COCA: dict[str, Any] = {
    "embed_dim": 24, "custom_text": True, "multimodal_cfg": {"width": 24, "heads": 2, "layers": 1,
                                                              "context_length": 12},
    "vision_cfg": {**CLIP["vision_cfg"], "attentional_pool": True, "attn_pooler_heads": 2,
                   "attn_pooler_queries": 5, "output_tokens": True},
    "text_cfg": {**CLIP["text_cfg"], "context_length": 12, "embed_cls": True,
                 "output_tokens": True},
}  # fmt: skip


def build(config: dict[str, Any], size: tuple[int, int] | None = None) -> Any:
    """open_clip's model, of a size where one is given."""
    options = {k: v for k, v in deepcopy(config).items() if k != "custom_text"}
    if size is not None:
        options["vision_cfg"]["image_size"] = size
    if "multimodal_cfg" in options:
        return open_clip.CoCa(**options).eval()
    cls = open_clip.CustomTextCLIP if config.get("custom_text") else open_clip.CLIP
    return cls(**options).eval()


def redrawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """Weights in which every part matters, positions among them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "ln_" in name or "norm" in name or "logit" in name:
                continue
            scale = 0.5 if "pos" in name or "embedding" in name or "cls" in name else 0.2
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return module


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Writes a config and weights of its native size; gives MODEL, the file and the network."""

    def write(config: dict[str, Any], size: tuple[int, int] | None = None) -> Any:
        network = redrawn(build(config, size))
        file, weights = tmp_path / "tiny.json", tmp_path / "w.pt"
        file.write_text(json.dumps(config))
        torch.save({"state_dict": {f"module.{n}": t for n, t in network.state_dict().items()}},
                   weights)  # fmt: skip
        return f"open_clip:{file}", weights, network

    return write


def right(config: dict[str, Any], weights: Path, pixels: Tensor) -> Any:
    """The embedding that open_clip gives at the size of the pixels."""
    size = tuple(pixels.shape[-2:])
    network = build(config, size)
    load_checkpoint(network, str(weights))
    if hasattr(network.visual, "set_input_size"):
        network.visual.set_input_size(size)
    with torch.no_grad():
        options = {"normalize": False} if isinstance(network, open_clip.CoCa) else {}
        return network.encode_image(pixels, **options).numpy()


def texts(exported: Any, ids: Tensor) -> Iterator[tuple[str, dict[str, Any]]]:
    """The file in both engines."""
    for name in ("onnxruntime", "openvino"):
        with open_runtime(name, exported.path(), device="CPU", threads=2) as runtime:
            yield name, runtime.run({"input_ids": ids.numpy()})


def words(length: int, ends: tuple[int, ...]) -> Tensor:
    """[B, L]: words of no pattern, the end token at one place of each text, zeros behind it."""
    ids = torch.randint(3, END, (len(ends), length), generator=torch.Generator().manual_seed(5))
    for item, place in enumerate(ends):
        ids[item, place] = END
        ids[item, place + 1 :] = 0
    return ids


def test_a_static_vision_tower(kit: Any, export: Any, saved: Any) -> None:
    """Native, and one that is neither native nor square."""
    model, weights, _ = saved(CLIP)
    for size, rule in (((64, 64), None), ((96, 128), "bicubic antialias")):
        exported = export(model, size, tower="vision", weights=weights)
        assert exported.input_shape() == [1, 3, *size]
        assert exported.operators.isdisjoint({"Resize", "Interpolate"})
        assert exported.report.resample_rule == rule
        pixels = kit.pictures(*size)
        wanted = right(CLIP, weights, pixels)
        for engine, given in exported.run(pixels):
            assert kit.max_rel(given["embedding"], wanted) <= 1e-5, (engine, size)


def test_a_vision_tower_of_any_size(kit: Any, export: Any, saved: Any) -> None:
    """Weights of 96 px under a config of 64: open_clip resamples them even there."""
    model, weights, _ = saved(CLIP, (96, 96))
    exported = export(model, tower="vision", weights=weights, dynamic="all",
                      outputs=("embedding", "tokens", "cls", "feature-map", "block:1"))  # fmt: skip
    sizes = ((64, 64), (96, 96), (48, 112))
    pixels = {size: kit.pictures(*size, batch=2) for size in sizes}
    wanted = {size: right(CLIP, weights, x) for size, x in pixels.items()}
    for engine, run in exported.engines():
        for size in sizes:
            given = run(pixels[size])
            assert kit.max_rel(given["embedding"], wanted[size]) <= 1e-5, (engine, size)
            np.testing.assert_allclose(given["cls"], given["tokens"][:, 0], rtol=1e-4)
            assert given["feature-map"].shape == (2, 32, size[0] // 16, size[1] // 16)


def test_another_rule_is_the_users(kit: Any, export: Any, saved: Any) -> None:
    model, weights, network = saved(CLIP)
    exported = export(model, 96, tower="vision", weights=weights, interpolation="bilinear")
    other = build(CLIP, (96, 96))
    state = network.state_dict()
    rows = state["visual.positional_embedding"]
    grid = rows[1:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(6, 6), mode="bilinear", antialias=True)
    state["visual.positional_embedding"] = torch.cat([rows[:1], grid[0].flatten(1).T])
    other.load_state_dict(state)
    pixels = kit.pictures(96, 96)
    with torch.no_grad():
        wanted = other.encode_image(pixels)
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["embedding"], wanted) <= 1e-5, engine


def test_texts_of_any_length(export: Any, saved: Any, kit: Any) -> None:
    """C26, C27: lengths 1, 8, 77, three places of the end. The reference pads."""
    model, weights, network = saved(CLIP)
    exported = export(model, tower="text", weights=weights, dynamic="all")
    for ids in (words(77, (3, 76, 40)), words(8, (7, 2, 5)), words(1, (0, 0))):
        padded = F.pad(ids, (0, 77 - ids.shape[1]))
        with torch.no_grad():
            wanted = network.encode_text(padded)
        for engine, given in texts(exported, ids):
            assert kit.max_rel(given["embedding"], wanted) <= 1e-5, (engine, ids.shape)
    with pytest.raises(SizeError, match=r"length 78 .* 77"):
        next(texts(exported, words(78, (5,))))
    with pytest.raises(SizeError, match="78") as refused:
        open_source(ModelRequest(model=model, tower="text", max_length=78)).facts()
    assert "248" in str(refused.value.hint)


def test_a_stretched_text_tower(export: Any, saved: Any, kit: Any) -> None:
    """The first 20 rows are kept: a text that ends there is as before."""
    model, weights, network = saved(CLIP)
    exported = export(model, tower="text", weights=weights, max_length=248)
    ids = words(248, (19,))
    with torch.no_grad():
        wanted = network.encode_text(ids[:, :77])
    for engine, given in texts(exported, ids):
        assert kit.max_rel(given["embedding"], wanted) <= 1e-5, engine


def test_a_trunk_of_timm(kit: Any, export: Any, saved: Any) -> None:
    """Static away from its size and square, and one file for any size."""
    model, weights, _ = saved(SIGLIP)
    static = export(model, (96, 208), tower="vision", weights=weights)
    dynamic = export(model, tower="vision", weights=weights, dynamic="size")
    for exported, sizes in ((static, ((96, 208),)), (dynamic, ((160, 160), (96, 208), (64, 48)))):
        for size in sizes:
            pixels = kit.pictures(*size)
            wanted = right(SIGLIP, weights, pixels)
            for engine, given in exported.run(pixels):
                assert kit.max_rel(given["embedding"], wanted) <= 1e-5, (engine, size)


def test_a_trunk_with_windows_is_another_network_at_each_size() -> None:
    found = facts("swin_base_patch4_window7_224")
    found.size_rule.check(Resolution(256, 320))
    with pytest.raises(UnsupportedError, match=r"other windows too \(trunk.*bias_table"):
        found.sizes(symbolic=True)


def test_a_text_tower_that_reads_its_padding(export: Any, saved: Any, kit: Any) -> None:
    model, weights, network = saved(SIGLIP)
    exported = export(model, tower="text", weights=weights)
    ids = words(16, (5,))
    with torch.no_grad():
        wanted = network.encode_text(ids)
    for engine, given in texts(exported, ids):
        assert kit.max_rel(given["embedding"], wanted) <= 1e-5, engine
    facts = open_source(ModelRequest(model=model, tower="text")).facts()
    with pytest.raises(UnsupportedError, match="reads its padding, having no causal mask"):
        facts.sizes(symbolic=True)
    with pytest.raises(SizeError, match="a length of 8 is not possible"):
        facts.size_rule.check(Resolution(1, 8))
    with pytest.raises(UnsupportedError, match=r"--max-length 8: .* padded to 16 tokens"):
        open_source(ModelRequest(model=model, tower="text", max_length=8)).facts()


def test_the_towers_of_a_coca(export: Any, saved: Any, kit: Any) -> None:
    """Its decoder is not exported; what it compares is."""
    model, weights, network = saved(COCA)
    vision = export(model, (96, 64), tower="vision", weights=weights)
    pixels = kit.pictures(96, 64)
    wanted = right(COCA, weights, pixels)
    for engine, given in vision.run(pixels):
        assert kit.max_rel(given["embedding"], wanted) <= 1e-5, engine
    text = export(model, tower="text", weights=weights)
    ids = words(12, (4,))
    with torch.no_grad():
        wanted = network.encode_text(ids, normalize=False)
    for engine, given in texts(text, ids):
        assert kit.max_rel(given["embedding"], wanted) <= 1e-5, engine


def test_verified_against_the_model_by_its_name(export: Any, saved: Any) -> None:
    """Tower and rule are those of the manifest; only the model has to be named."""
    model, weights, _ = saved(CLIP)
    exported = export(model, 96, tower="vision", weights=weights, interpolation="bilinear")

    def verdict(**options: Any) -> str:
        report = vitpe_deploy.verify(exported.path(), runtimes=["onnxruntime"], **options)
        return report.verdict

    assert verdict(against=model, weights=weights) == "passed"
    assert verdict(against=model, seed=3) == "failed"
    with pytest.raises(UsageError, match="has no output 'embedding'"):
        verdict(against="digits-learned-1d")


def facts(name: str, tower: str | None = "vision", **options: Any) -> Any:
    return open_source(ModelRequest(model=f"open_clip:{name}", tower=tower, **options)).facts()


def test_what_published_weights_say() -> None:
    clip, siglip = facts("ViT-B-32").preprocess, facts("ViT-B-16-SigLIP").preprocess
    assert clip.mean == open_clip.OPENAI_DATASET_MEAN
    assert (clip.std, clip.fit) == (open_clip.OPENAI_DATASET_STD, "center-crop")
    assert (siglip.mean, siglip.std, siglip.fit) == ((0.5,) * 3, (0.5,) * 3, "squash")
    assert facts("ViT-L-14-336").native == Resolution(336, 336)
    assert facts("ViT-B-32", kwargs={"vision_cfg.image_size": "320x256"}).native == (
        Resolution(320, 256)
    )


def test_a_table_that_open_clip_cannot_read() -> None:
    """``resize_pos_embed`` takes 7x10 rows for a square."""
    found = facts("ViT-B-32", kwargs={"vision_cfg.image_size": "224x320"})
    with pytest.raises(SizeError, match=r"as a square grid .* is 7x10"):
        found.size_rule.check(Resolution(256, 256))
    found.size_rule.check(Resolution(224, 320))


def test_a_folder_brings_its_weights(saved: Any, tmp_path: Path) -> None:
    _, weights, network = saved(CLIP)
    folder = tmp_path / "pushed"
    folder.mkdir()
    document = {"model_cfg": CLIP, "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}}
    (folder / "open_clip_config.json").write_text(json.dumps(document))
    torch.save(torch.load(weights), folder / "open_clip_pytorch_model.bin")
    loaded = open_source(ModelRequest(model=f"open_clip:{folder}", tower="vision")).load()
    assert loaded.facts.preprocess.mean == (0.1, 0.2, 0.3)
    assert loaded.weights.startswith("from open_clip_pytorch_model.bin")
    assert torch.equal(
        loaded.fresh().get_parameter("positional_embedding"), network.visual.positional_embedding
    )


def test_a_look_at_a_tower() -> None:
    """Without weights: what vitpe-inspect says."""
    vision = vitpe_deploy.inspect("open_clip:ViT-B-32", tower="vision")
    assert (vision.blocks, vision.sizes.native) == (12, (224, 224))
    assert vitpe_deploy.inspect("open_clip:ViT-B-32", tower="text").sizes.longest == 77


def test_refusals(saved: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two towers, vision and text"):
        facts("ViT-B-32", None)
    with pytest.raises(UnsupportedError, match="ModifiedResNet, not a Vision Transformer"):
        facts("RN50")
    with pytest.raises(UnsupportedError, match="transformers' roberta-base"):
        facts("roberta-ViT-B-32", "text")
    assert facts("roberta-ViT-B-32").native == Resolution(224, 224)
    with pytest.raises(UsageError, match="has no such config") as refused:
        facts("ViT-B-33")
    assert "ViT-B-32" in str(refused.value.hint)
    with pytest.raises(UnsupportedError, match="would be downloaded"):
        facts("hf-hub:some/one")
    with pytest.raises(UsageError, match=r"--model-kwarg vision_cfg.layer is not") as refused:
        facts("ViT-B-32", kwargs={"vision_cfg.layer": "2"})
    assert "vision_cfg.layers" in str(refused.value.hint)
    model, weights, _ = saved(CLIP)
    state = {k: v for k, v in torch.load(weights)["state_dict"].items() if "ln_post" not in k}
    torch.save({**state, "module.visual.extra": torch.zeros(1)}, weights)
    request = ModelRequest(model=model, tower="vision", weights=weights)
    with pytest.raises(SourceError, match=r"missing visual.ln_post.bias.*unexpected visual.extra"):
        open_source(request).load()


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    monkeypatch.delitem(sys.modules, "vitpe_deploy.sources.open_clip_library", raising=False)
    with pytest.raises(MissingExtraError) as refused:
        open_source(ModelRequest(model="open_clip:ViT-B-32", tower="vision"))
    assert "vitpe-deploy[open-clip]" in str(refused.value.hint)
