"""torchvision by name: each mechanism against torchvision itself, at sizes of its own rule."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import MaxVit, SwinTransformer, VisionTransformer, get_model
from torchvision.models._api import BUILTIN_MODELS, register_model
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2
from torchvision.models.video import SwinTransformer3d
from torchvision.models.vision_transformer import interpolate_embeddings

from tests.needs import needs
from vitpe_deploy.errors import SizeError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.sources import open_source

ROLLS = needs("torch", "2.14", "2.9 writes rolled windows as sequences, which OpenVINO cannot read")


def _redrawn(network: nn.Module) -> nn.Module:
    """Positions and head large enough to matter."""
    for name, parameter in network.named_parameters():
        if "pos_embedding" in name or "bias_table" in name or "cpb_mlp" in name or "head" in name:
            nn.init.normal_(parameter, std=0.5)
    return network


def tiny_vit(weights: Any = None, image_size: int = 64, num_classes: int = 5) -> nn.Module:
    return _redrawn(VisionTransformer(image_size, 16, 2, 2, 32, 64, num_classes=num_classes))


def tiny_swin(weights: Any = None, num_classes: int = 5) -> nn.Module:
    return _redrawn(SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=num_classes))


def tiny_swin_v2(weights: Any = None) -> nn.Module:
    return _redrawn(
        SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=5,
                        block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2)
    )  # fmt: skip


def tiny_swin3d(weights: Any = None) -> nn.Module:
    return _redrawn(SwinTransformer3d([2, 4, 4], 16, [2, 2], [2, 2], [4, 4, 4], num_classes=5))


def tiny_maxvit(weights: Any = None, input_size: Any = (64, 64)) -> nn.Module:
    """Two blocks: maps of a quarter and an eighth of the picture, windows of 2."""
    return _redrawn(
        MaxVit(input_size, 8, 2, [8, 16], [1, 1], 4, stochastic_depth_prob=0.0, num_classes=5)
    )


@pytest.fixture(autouse=True)
def registered() -> Any:
    """Tiny networks in torchvision's own registry, as a user adds theirs."""
    builders = (tiny_vit, tiny_swin, tiny_swin_v2, tiny_swin3d, tiny_maxvit)
    for builder in builders:
        register_model()(builder)
    yield
    for builder in builders:
        BUILTIN_MODELS.pop(builder.__name__)


def _library(name: str, seed: int = 0, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    return get_model(name, **options).eval()


def _matches(kit: Any, exported: Any, network: nn.Module, pixels: Tensor) -> None:
    with torch.no_grad():
        right = network(pixels)
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["logits"], right) <= 1e-5, engine


def test_a_vit_is_made_for_the_size_by_torchvision(kit: Any, export: Any) -> None:
    exported = export("torchvision:tiny_vit", 96, seed=3, outputs=["logits", "cls"])
    assert exported.report.resample_rule == "bicubic align_corners"
    native, right = _library("tiny_vit", 3), _library("tiny_vit", 4, image_size=96)
    right.load_state_dict(interpolate_embeddings(96, 16, OrderedDict(native.state_dict())))
    pixels = kit.pictures(96, 96)
    _matches(kit, exported, right, pixels)
    table = native.encoder.pos_embedding.detach()
    plain = nn.functional.interpolate(
        table[:, 1:].transpose(1, 2).reshape(1, 32, 4, 4), size=6, mode="bicubic"
    )
    with torch.no_grad():
        right.encoder.pos_embedding[:, 1:] = plain.flatten(2).transpose(1, 2)
        other = right(pixels)
    _, given = next(exported.run(pixels))
    assert kit.max_rel(given["logits"], other) > 1e-3  # corners aligned, or not


def test_a_vit_at_its_own_size_and_under_another_rule(kit: Any, export: Any) -> None:
    _matches(kit, export("torchvision:tiny_vit"), _library("tiny_vit"), kit.pictures(64, 64))
    exported = export("torchvision:tiny_vit", 96, interpolation="bilinear")
    assert exported.report.resample_rule == "bilinear align_corners"
    right = _library("tiny_vit", 1, image_size=96)
    state = OrderedDict(_library("tiny_vit").state_dict())
    right.load_state_dict(interpolate_embeddings(96, 16, state, interpolation_mode="bilinear"))
    _matches(kit, exported, right, kit.pictures(96, 96))


@ROLLS
@pytest.mark.parametrize("name", ["tiny_swin", "tiny_swin_v2"])
def test_windows_shift_by_the_map_and_not_by_the_trace(kit: Any, export: Any, name: str) -> None:
    """C12: one window at 32 pixels does not shift in the last stage, four at 64 do."""
    exported = export(
        f"torchvision:{name}", 32, dynamic="size", verify_resolutions=[64, "96x128", "8x44"]
    )
    network = _library(name)
    sizes = [(32, 32), (64, 64), (96, 128), (8, 44)]
    for _, engine in exported.engines():
        for size in sizes:
            pixels = kit.pictures(*size)
            with torch.no_grad():
                right = network(pixels)
            assert kit.max_rel(engine(pixels)["logits"], right) <= 1e-5, size


@ROLLS
@pytest.mark.parametrize("name", ["tiny_swin", "tiny_swin_v2"])
def test_static_swin(kit: Any, export: Any, name: str) -> None:
    exported = export(f"torchvision:{name}", (36, 52), outputs=["logits", "pooled", "block:3"])
    _matches(kit, exported, _library(name), kit.pictures(36, 52))


@ROLLS
def test_clips(kit: Any, export: Any) -> None:
    """Sizes that are padded, and a clip shorter than the window, which shrinks to it."""
    exported = export("torchvision:tiny_swin3d", (42, 20), model_kwargs={"frames": 4})
    assert exported.input_shape() == [1, 3, 4, 42, 20]
    pixels = torch.randn(1, 3, 4, 42, 20, generator=torch.Generator().manual_seed(1))
    _matches(kit, exported, _library("tiny_swin3d"), pixels)


@ROLLS
@pytest.mark.slow
def test_clips_of_any_size(export: Any) -> None:
    report = export(
        "torchvision:tiny_swin3d", (24, 64), dynamic="size", model_kwargs={"frames": 4},
        verify_resolutions=["8x30"],
    ).report  # fmt: skip
    assert max(row.max_rel for row in report.parity) <= 1e-5


def test_maxvit_at_sizes_of_whole_windows(kit: Any, export: Any) -> None:
    """Multiples of 16: windows of 2 on a map reduced 8 times. No table belongs to the size."""
    with pytest.raises(SizeError, match="windows of 2 on a map reduced 8 times") as refused:
        _facts("tiny_maxvit").size_rule.check(Resolution(72, 72))
    assert refused.value.hint == "Use 64 or 80."
    right = _library("tiny_maxvit", 1, input_size=(80, 80))
    right.load_state_dict(_library("tiny_maxvit").state_dict())
    _matches(kit, export("torchvision:tiny_maxvit", 80), right, kit.pictures(80, 80))


@pytest.mark.slow
def test_maxvit_at_its_own_size(kit: Any, export: Any) -> None:
    exported = export("torchvision:maxvit_t", verify_layers=True)
    _matches(kit, exported, _library("maxvit_t"), kit.pictures(224, 224))


def _facts(name: str, **options: Any) -> Any:
    return open_source(ModelRequest(model=f"torchvision:{name}", **options)).facts()


def test_sizes() -> None:
    for name in ("vit_b_16", "maxvit_t"):
        with pytest.raises(UnsupportedError, match="cannot be exported with a dynamic size"):
            _facts(name).sizes(symbolic=True)
    with pytest.raises(SizeError, match="only squares are: torchvision's VisionTransformer"):
        _facts("vit_b_16").size_rule.check(Resolution(96, 160))
    with pytest.raises(SizeError, match="windows of 7 on a map reduced 32 times") as refused:
        _facts("maxvit_t").size_rule.check(Resolution(256, 256))
    assert refused.value.hint == "Use 224 or 448."
    with pytest.raises(SizeError, match="does not fit patch size 4"):
        _facts("swin_t").size_rule.check(Resolution(226, 226))
    _facts("swin3d_t").size_rule.check(Resolution(226, 31))


def test_torchvision_itself_runs_no_maxvit_that_is_not_square() -> None:
    """Why only squares are taken."""
    with torch.device("meta"):
        network = get_model("maxvit_t", input_size=(224, 448)).eval()
        with pytest.raises(RuntimeError):
            network(torch.empty(1, 3, 224, 448))


def test_what_published_weights_say() -> None:
    from torchvision.models import Swin_V2_T_Weights, ViT_B_16_Weights

    facts = _facts("swin_v2_t")
    preset, wanted = Swin_V2_T_Weights.DEFAULT.transforms(), facts.preprocess
    assert facts.native == Resolution(256, 256)
    assert (wanted.mean, wanted.std) == (tuple(preset.mean), tuple(preset.std))
    assert (wanted.interpolation, wanted.fit) == (preset.interpolation.value, "center-crop")
    assert wanted.crop == preset.crop_size[0] / preset.resize_size[0]
    categories = tuple(ViT_B_16_Weights.DEFAULT.meta["categories"])
    assert _facts("vit_b_16").labels == categories
    assert _facts("vit_b_16", kwargs={"num_classes": "10"}).labels == ()
    assert _facts("swin3d_t").input.frames == 16


def test_names_and_options_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="has no model 'vit_b_61'") as refused:
        _facts("vit_b_61")
    assert refused.value.hint == "Did you mean 'vit_b_16'?"
    with pytest.raises(UnsupportedError, match="resnet18 is a ResNet, not a Vision Transformer"):
        _facts("resnet18")
    with pytest.raises(UsageError, match="num_clases is not an option of torchvision's swin_t"):
        _facts("swin_t", kwargs={"num_clases": "3"})
    with pytest.raises(UsageError, match="frames has no meaning"):
        _facts("swin_t", kwargs={"frames": "3"})
    for option in ({"pos_embed": "x"}, {"encoding": "none"}, {"tower": "text"}):
        with pytest.raises(UnsupportedError, match="has no meaning for torchvision:swin_t"):
            _facts("swin_t", **option)


def test_weights_of_the_training_size_and_another_head(
    kit: Any, export: Any, tmp_path: Path
) -> None:
    network = _library("tiny_vit", 7, num_classes=3)
    path = tmp_path / "w.pt"
    torch.save({"model": {f"module.{k}": v for k, v in network.state_dict().items()}}, path)
    exported = export("torchvision:tiny_vit", 96, weights=path)
    right = _library("tiny_vit", 8, image_size=96, num_classes=3)
    right.load_state_dict(interpolate_embeddings(96, 16, OrderedDict(network.state_dict())))
    pixels = kit.pictures(96, 96)
    _matches(kit, exported, right, pixels)
    source = open_source(ModelRequest(model="torchvision:tiny_vit", weights=path))
    assert source.load().weights == "from w.pt, unwrapped model, module., 3 classes"
    request = ModelRequest(model="torchvision:tiny_swin", weights=path)
    with pytest.raises(SourceError, match=r"does not fit the model: missing features"):
        open_source(request).load()
