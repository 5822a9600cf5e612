"""The detection-style encoder: transformers and torch as oracles, placement, engines."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.needs import needs
from vitpe_deploy.encodings.base import Positions
from vitpe_deploy.errors import UsageError
from vitpe_deploy.models.detr import DetrEncoder
from vitpe_deploy.models.presets import DETR_PRESETS, DetrConfig

ENCODINGS = ("none", "sincos-2d", "learned-1d", "hybrid")


def tiny(encoding: str = "sincos-2d", **changes: Any) -> DetrConfig:
    return DetrConfig(
        **{
            "image_size": (24, 32),
            "patch_size": 8,
            "embed_dim": 32,
            "depth": 2,
            "num_heads": 2,
            "feedforward_dim": 48,
            "num_classes": 5,
            "encoding": encoding,
            **changes,
        }
    )


def build(config: DetrConfig) -> DetrEncoder:
    torch.manual_seed(0)
    return DetrEncoder(config).eval().requires_grad_(False)


def image(batch: int, height: int, width: int, channels: int = 3) -> Tensor:
    return torch.randn(
        batch, channels, height, width, generator=torch.Generator().manual_seed(height)
    )


def in_projection(layer: nn.Module, kind: str) -> Tensor:
    """q, k, v of a layer packed as torch's own attention packs them."""
    return torch.cat([getattr(layer.qk, kind), getattr(layer.v, kind)])


@needs("transformers", "5", "DETR's positions are asked for by shape")
@pytest.mark.parametrize(("height", "width"), [(24, 32), (16, 16), (40, 56)])
def test_agrees_with_transformers(height: int, width: int) -> None:
    """Layers and positions of transformers' DETR, given the same weights."""
    from transformers import DetrConfig as TheirConfig
    from transformers.models.detr.modeling_detr import DetrEncoderLayer, DetrSinePositionEmbedding

    ours = build(tiny())
    config = TheirConfig(
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=48,
        dropout=0.0,
        attention_dropout=0.0,
        activation_function="relu",
        attn_implementation="eager",
    )
    pixels = image(2, height, width)
    x = ours.patch_embed(pixels)
    sine = DetrSinePositionEmbedding(16, normalize=True)
    rows, columns = x.shape[-2:]
    mask = torch.ones(2, rows, columns, dtype=torch.bool)
    positions = sine(x.shape, device=x.device, dtype=x.dtype, mask=mask)
    if positions.dim() == 4:
        positions = positions.flatten(2).transpose(1, 2)
    x = x.flatten(2).transpose(1, 2)
    for block in ours.blocks:
        layer = DetrEncoderLayer(config).eval()
        weights = {}
        for kind in ("weight", "bias"):
            q, k, v = in_projection(block, kind).chunk(3)
            weights |= {
                f"self_attn.q_proj.{kind}": q,
                f"self_attn.k_proj.{kind}": k,
                f"self_attn.v_proj.{kind}": v,
                f"self_attn.o_proj.{kind}": getattr(block.proj, kind),
                f"self_attn_layer_norm.{kind}": getattr(block.norm1, kind),
                f"final_layer_norm.{kind}": getattr(block.norm2, kind),
                f"mlp.fc1.{kind}": getattr(block.fc1, kind),
                f"mlp.fc2.{kind}": getattr(block.fc2, kind),
            }
        layer.load_state_dict(weights)
        with torch.no_grad():
            x = layer(x, None, spatial_position_embeddings=positions)
    features = ours.forward_features(pixels)
    torch.testing.assert_close(features["tokens"], x, rtol=1e-5, atol=1e-5)


def test_without_positions_it_is_torchs_post_norm_layer() -> None:
    ours = build(tiny("none"))
    pixels = image(2, 24, 32)
    x = ours.patch_embed(pixels).flatten(2).transpose(1, 2)
    for block in ours.blocks:
        layer = nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, batch_first=True).eval()
        weights = {}
        for kind in ("weight", "bias"):
            weights |= {
                f"self_attn.in_proj_{kind}": in_projection(block, kind),
                f"self_attn.out_proj.{kind}": getattr(block.proj, kind),
                f"linear1.{kind}": getattr(block.fc1, kind),
                f"linear2.{kind}": getattr(block.fc2, kind),
                f"norm1.{kind}": getattr(block.norm1, kind),
                f"norm2.{kind}": getattr(block.norm2, kind),
            }
        layer.load_state_dict(weights)
        with torch.no_grad():
            x = layer(x)
    torch.testing.assert_close(ours.forward_features(pixels)["tokens"], x, rtol=1e-5, atol=1e-5)


def test_values_do_not_see_positions() -> None:
    """Equal tokens attend to equal values: positions cannot move them, in any layer."""
    flat = build(tiny())
    assert flat.patch_embed.bias is not None
    nn.init.zeros_(flat.patch_embed.weight)
    tokens = flat.forward_features(image(1, 24, 32))["tokens"]
    torch.testing.assert_close(tokens, tokens[:, :1].expand_as(tokens), rtol=1e-5, atol=1e-5)


def test_positions_are_added_in_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving them out of the second layer only must change the result."""
    model = build(tiny())
    pixels = image(1, 24, 32)
    expected = model(pixels)
    plain, calls = model.encoding.tokens, []

    def first_layer_only(x: Tensor, positions: Positions) -> Tensor:
        calls.append(x)
        return plain(x, positions) if len(calls) == 1 else x

    monkeypatch.setattr(model.encoding, "tokens", first_layer_only)
    assert (model(pixels) - expected).abs().max() > 1e-3
    assert len(calls) == 2


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_shuffled_patches_are_noticed_through_positions(encoding: str) -> None:
    """Mean-pooled logits of a picture with two columns exchanged."""
    model = build(tiny(encoding))
    pixels = image(1, 24, 32)
    shuffled = torch.cat([pixels[..., 8:16], pixels[..., :8], pixels[..., 16:]], dim=-1)
    difference = (model(pixels) - model(shuffled)).abs().max().item()
    if encoding == "none":
        assert difference < 1e-5
    else:
        assert difference > 1e-3


def test_hybrid_adds_the_relative_bias() -> None:
    model = build(tiny("hybrid"))
    pixels = image(1, 24, 32)
    expected = model(pixels)
    nn.init.zeros_(model.encoding.get_parameter("relative.table"))
    assert (model(pixels) - expected).abs().max() > 1e-2
    absolute = build(tiny())
    absolute.load_state_dict(
        {k: v for k, v in model.state_dict().items() if not k.startswith("encoding.")}
    )
    torch.testing.assert_close(model(pixels), absolute(pixels), rtol=1e-5, atol=1e-5)


def test_features_and_head() -> None:
    model = build(tiny())
    pixels = image(2, 24, 40)
    features = model.forward_features(pixels)
    assert features["tokens"].shape == (2, 15, 32)
    assert features["feature-map"].shape == (2, 32, 3, 5)
    assert torch.equal(features["feature-map"][:, :, 1, 2], features["tokens"][:, 7])
    assert torch.equal(features["pooled"], features["tokens"].mean(1))
    assert model.head is not None
    assert torch.equal(model(pixels), model.head(features["pooled"]))
    headless = build(tiny(num_classes=0))
    assert headless(pixels).shape == (2, 32)
    with pytest.raises(UsageError, match="no classification head"):
        headless.forward_head(features)


def test_takes_the_features_of_a_backbone() -> None:
    model = build(tiny(image_size=(5, 7), patch_size=1, in_channels=6))
    assert model.forward_features(image(1, 4, 9, 6))["feature-map"].shape == (1, 32, 4, 9)


def test_layout_is_detrs_unless_named() -> None:
    assert build(tiny()).encoding.describe().params["layout"] == "detr"
    named = build(tiny(encoding_params={"layout": "interleaved"}))
    assert named.encoding.describe().params["layout"] == "interleaved"
    hybrid = build(tiny("hybrid")).encoding.describe().params["absolute"]
    assert (hybrid["kind"], hybrid["layout"]) == ("sincos-2d", "detr")
    learned = build(tiny("hybrid", encoding_params={"absolute": "learned-1d"}))
    assert learned.encoding.describe().params["absolute"]["kind"] == "learned-1d"


def test_refusals() -> None:
    with pytest.raises(UsageError, match="conditional does not fit the detr network") as refusal:
        build(tiny("conditional"))
    assert "lives in: vit" in refusal.value.message
    with pytest.raises(UsageError, match="not a multiple of patch size 8"):
        tiny(image_size=(24, 30))
    with pytest.raises(UsageError, match="32 is not a multiple of 3 heads"):
        tiny(num_heads=3)


def test_preset_size() -> None:
    """Six layers of DETR's encoder hold 7,890,432 parameters (1,315,072 each)."""
    with torch.device("meta"):
        model = DetrEncoder(DETR_PRESETS["detr_encoder_features_25x34"])
    assert sum(p.numel() for p in model.blocks.parameters()) == 7_890_432


class Outputs(nn.Module):
    """Logits and the feature map."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        features = self.model.forward_features(pixel_values)
        return self.model.forward_head(features), features["feature-map"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_static_export(encoding: str, export: Callable[..., Any], forbidden: set[str]) -> None:
    model = build(tiny(encoding))
    pixels = image(2, 40, 16)
    engines = export(Outputs(copy.deepcopy(model).resolve((5, 2))), pixels)
    assert not engines.operators & (forbidden | {"Sin", "Cos", "Range"})
    differences = engines.differences(pixels, list(Outputs(model)(pixels)))
    assert max(differences.values()) < 1e-4, differences


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_dynamic_export(encoding: str, export: Callable[..., Any], forbidden: set[str]) -> None:
    """One file at native, smaller, larger and non-square sizes, batches 1 and 3."""
    model = build(tiny(encoding))
    resolved = Outputs(copy.deepcopy(model).resolve(None))
    engines = export(resolved, image(2, 40, 56), {0: "batch", 2: "height", 3: "width"})
    assert not engines.operators & forbidden
    for batch, height, width in ((1, 24, 32), (3, 16, 16), (1, 48, 64), (3, 32, 8)):
        pixels = image(batch, height, width)
        differences = engines.differences(pixels, list(Outputs(model)(pixels)))
        assert max(differences.values()) < 1e-4, (batch, height, width, differences)
