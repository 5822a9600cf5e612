"""Axial rotary positions against closed forms, timm and transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import apply_rot_embed_cat, create_rope_embed
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3
from transformers import DINOv3ViTConfig
from transformers.models.dinov3_vit.modeling_dinov3_vit import (
    DINOv3ViTRopePositionEmbedding,
    apply_rotary_pos_emb,
)

from vitpe_deploy.encodings.base import EncodingSpec, Grid
from vitpe_deploy.encodings.rope_2d import Rope2D
from vitpe_deploy.errors import UsageError

FAMILIES = ["eva02", "rope-vit", "dinov3"]
GRIDS: list[Grid] = [(14, 14), (6, 10), (10, 6), (24, 3)]


def build(grid: Grid, prefix: int = 0, head_dim: int = 16, **params: Any) -> Rope2D:
    return Rope2D.build(EncodingSpec(grid, 2 * head_dim, 2, 2, prefix_tokens=prefix, params=params))


def rotated(encoding: Rope2D, x: torch.Tensor, grid: Grid) -> torch.Tensor:
    """x through both constants and the graph's formula; they agree."""
    got, again = encoding.rotate(x, x, encoding.fit(grid), layer=0)
    assert torch.equal(got, again)
    from_graph, _ = encoding.rotate(x, x, encoding.in_graph(*grid), layer=1)
    torch.testing.assert_close(from_graph, got, rtol=0, atol=1e-6)
    return got


def test_dinov3_closed_form_on_6x10() -> None:
    """C24: angle 2 pi coordinate / period, centres in (-1, 1), period 100^(4k/d)."""
    positions = build((14, 14), coordinates="dinov3").fit((6, 10))
    for y in range(6):
        for x in range(10):
            centres = ((y + 0.5) / 6 * 2 - 1, (x + 0.5) / 10 * 2 - 1)
            angles = [
                2 * math.pi * centre / 100 ** (4 * k / 16) for centre in centres for k in range(4)
            ]
            row = y * 10 + x
            cos, sin = positions["cos"][row].tolist(), positions["sin"][row].tolist()
            assert cos == pytest.approx([math.cos(a) for a in angles], abs=1e-6)
            assert sin == pytest.approx([math.sin(a) for a in angles], abs=1e-6)


@pytest.mark.parametrize("grid", GRIDS)
def test_eva02_equals_timm(grid: Grid) -> None:
    torch.manual_seed(0)
    rope = create_rope_embed(
        "cat", dim=32, num_heads=2, in_pixels=False, feat_shape=None, ref_feat_shape=(16, 12)
    )
    x = torch.randn(1, 2, grid[0] * grid[1], 16)
    want = apply_rot_embed_cat(x, rope.get_embed(shape=list(grid)))
    encoding = build((14, 14), coordinates="eva02", reference_grid=(16, 12))
    torch.testing.assert_close(rotated(encoding, x, grid), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("grid", GRIDS)
def test_rope_vit_equals_timm(grid: Grid) -> None:
    torch.manual_seed(0)
    rope = create_rope_embed(
        "cat", dim=32, num_heads=2, in_pixels=False, temperature=100.0, grid_indexing="xy"
    )
    x = torch.randn(1, 2, grid[0] * grid[1], 16)
    want = apply_rot_embed_cat(x, rope.get_embed(shape=list(grid)))
    got = rotated(build((14, 14), coordinates="rope-vit"), x, grid)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("grid", GRIDS)
def test_dinov3_equals_timm_and_transformers(grid: Grid) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, grid[0] * grid[1], 16)
    got = rotated(build((14, 14), coordinates="dinov3"), x, grid)

    rope = RotaryEmbeddingDinoV3(16)
    want = apply_rot_embed_cat(x, rope.get_embed(shape=list(grid)), half=True)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)

    config = DINOv3ViTConfig(hidden_size=32, num_attention_heads=2, patch_size=4)
    pixels = torch.zeros(1, 3, 4 * grid[0], 4 * grid[1])
    rope = DINOv3ViTRopePositionEmbedding(config).eval()  # in training it moves coordinates
    want, _ = apply_rotary_pos_emb(x, x, *rope(pixels))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("coordinates", FAMILIES)
@pytest.mark.parametrize("prefix", [0, 2])
def test_three_answers_agree(
    answers_agree: Callable[..., None], coordinates: str, prefix: int
) -> None:
    answers_agree(build((6, 6), prefix, coordinates=coordinates))
    answers_agree(build((4, 7), prefix, coordinates=coordinates))


def test_families_are_different_models() -> None:
    """At a new size all three disagree, and EVA-02 keeps to the range of its reference grid."""
    tables = {name: build((6, 6), coordinates=name, base=100.0).fit((9, 9)) for name in FAMILIES}
    for a in FAMILIES:
        for b in FAMILIES:
            if a < b:
                assert (tables[a]["cos"] - tables[b]["cos"]).abs().max() > 0.1
    eva = build((6, 6), coordinates="eva02")
    assert torch.equal(eva.fit((12, 6))["cos"][::12], eva.fit((6, 6))["cos"][::6])


def test_leading_tokens_are_not_rotated() -> None:
    torch.manual_seed(0)
    encoding, x = build((6, 6), prefix=2), torch.randn(1, 2, 38, 16)
    got = rotated(encoding, x, (6, 6))
    assert torch.equal(got[:, :, :2], x[:, :, :2])
    assert torch.equal(got[:, :, 2], x[:, :, 2])  # patch (0, 0) is the origin
    assert (got[:, :, 3:] - x[:, :, 3:]).abs().amax(-1).min() > 1e-2


def test_impossible_options_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="coordinates 'dino3'") as caught:
        build((2, 2), coordinates="dino3")
    assert "dinov3" in caught.value.hint
    with pytest.raises(UsageError, match="multiple of 4, got 6"):
        build((2, 2), head_dim=6)
    with pytest.raises(UsageError, match="reference_grid belongs to"):
        build((2, 2), reference_grid=(4, 4))


@pytest.mark.parametrize("coordinates", FAMILIES)
def test_network(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    positions_matter: Callable[..., None],
    coordinates: str,
) -> None:
    positions_matter(tiny_vit("rope-2d", coordinates=coordinates))
    ops = export_matches(lambda: tiny_vit("rope-2d", coordinates=coordinates))
    assert {"Sin", "Cos"} <= ops


@pytest.mark.parametrize("coordinates", FAMILIES)
def test_baked_network_holds_cos_and_sin(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]], coordinates: str
) -> None:
    """C20."""
    ops = baked_matches(lambda: tiny_vit("rope-2d", coordinates=coordinates), (5, 8))
    assert not {"Sin", "Cos", "Range"} & ops
