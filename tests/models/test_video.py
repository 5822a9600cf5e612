"""The reference video network: torchvision and the definition as oracles, both engines."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitpe_deploy.encodings.base import Resolved
from vitpe_deploy.errors import UsageError
from vitpe_deploy.models.presets import VIDEO_PRESETS, VideoConfig
from vitpe_deploy.models.video import VideoBlock, VideoTransformer
from vitpe_deploy.models.windows import plan_windows

MICRO = VIDEO_PRESETS["video_micro_patch8_48"]
KINDS = {
    "windows": MICRO,
    "windows-pad": replace(MICRO, small_map="pad"),
    "global": replace(MICRO, window=None),
    "sincos": replace(MICRO, window=None, encoding="sincos-3d"),
    "sincos-windows": replace(MICRO, encoding="sincos-3d"),
    "none": replace(MICRO, encoding="none"),
}


def build(config: VideoConfig) -> VideoTransformer:
    torch.manual_seed(0)
    return VideoTransformer(config).eval().requires_grad_(False)


def clip(height: int, width: int, batch: int = 2, frames: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(height)
    return torch.randn(batch, 3, frames, height, width, generator=generator)


def max_rel(got: Tensor, want: Tensor) -> float:
    return ((got - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("shift", [(0, 0, 0), (2, 1, 2)])
@pytest.mark.parametrize("size", [(4, 6, 8), (8, 3, 4), (6, 7, 9), (2, 5, 5), (1, 4, 6)])
def test_window_attention_agrees_with_torchvision(
    size: tuple[int, int, int], shift: tuple[int, int, int]
) -> None:
    """Video Swin's attention, given the same weights: padding, masks, a short clip."""
    from torchvision.models.video.swin_transformer import ShiftedWindowAttention3d

    window = (4, 3, 4)
    ours = build(replace(MICRO, frames=8, window=window, depth=1))
    block = ours.blocks[0]
    assert isinstance(block, VideoBlock)
    theirs = ShiftedWindowAttention3d(24, list(window), list(shift), 2).requires_grad_(False)
    theirs.qkv.load_state_dict(block.qkv.state_dict())
    theirs.proj.load_state_dict(block.proj.state_dict())
    theirs.relative_position_bias_table.data = ours.encoding.table[0]
    x = torch.randn(2, *size, 24, generator=torch.Generator().manual_seed(1))
    plan = plan_windows(size, window, shift if any(shift) else None, small_map="clamp")
    bias = ours.encoding.attention_bias(ours.encoding.positions(window[1:]), 0)
    got = block.attend(x.flatten(1, 3), bias, plan)
    assert max_rel(got, theirs(x).flatten(1, 3)) <= 1e-5


def test_global_attention_is_the_definition() -> None:
    """One layer written out: tubelets, table, softmax over every pair of tokens, mean."""
    model = build(replace(KINDS["global"], depth=1))
    x = clip(48, 48)
    got = model.forward_features(x)
    block = model.blocks[0]
    cut = x.reshape(2, 3, 2, 2, 6, 8, 6, 8).permute(0, 2, 4, 6, 1, 3, 5, 7)  # b t h w c dt dh dw
    kernel = model.patch_embed.weight.flatten(1)
    tokens = cut.reshape(2, 72, -1) @ kernel.t() + model.patch_embed.bias
    bias = model.encoding.positions((6, 6))["bias"][0]
    qkv = block.qkv(block.norm1(tokens)).reshape(2, 72, 3, 2, 12)
    heads = []
    for m in range(2):
        q, k, v = (qkv[:, :, i, m] for i in range(3))
        heads.append((q @ k.transpose(1, 2) / 12**0.5 + bias[m]).softmax(-1) @ v)
    tokens = tokens + block.proj(torch.cat(heads, dim=-1))
    tokens = model.norm(tokens + block.mlp(block.norm2(tokens)))
    assert max_rel(got["tokens"], tokens) <= 1e-5
    assert max_rel(model(x), model.head(tokens.mean(1))) <= 1e-5


def test_features_agree_with_each_other() -> None:
    model = build(MICRO)
    features = model.forward_features(clip(48, 72))
    assert features["feature-map"].shape == (2, 24, 2, 6, 9)
    assert torch.equal(features["feature-map"].flatten(2).transpose(1, 2), features["tokens"])
    torch.testing.assert_close(features["pooled"], features["feature-map"].mean(dim=(2, 3, 4)))
    headless = build(replace(MICRO, num_classes=0))
    assert headless(clip(48, 48)).shape == (2, 24)
    with pytest.raises(UsageError, match="no classification head"):
        headless.forward_head(features)


def test_sinusoids_are_added_to_the_tokens_of_their_step_and_place() -> None:
    model = build(KINDS["sincos"])
    x = clip(32, 40)
    tokens, positions, grid = model.embed(x)
    bare = model.patch_embed(x)  # [B, D, t, h, w]
    table = positions["table"].reshape(1, 2, 4, 5, 24).permute(0, 4, 1, 2, 3)
    assert grid == (4, 5)
    torch.testing.assert_close(tokens, (bare + table).flatten(2).transpose(1, 2))


@pytest.mark.parametrize("kind", ["windows", "global", "sincos"])
def test_dropping_or_misplacing_positions_moves_the_logits(kind: str) -> None:
    model, x = build(KINDS[kind]), clip(48, 48)
    want = model(x)
    positions = model.encoding.positions
    for spoil in (torch.zeros_like, lambda t: t.roll(5, dims=-2)):
        model.encoding.positions = lambda grid, spoil=spoil: {
            name: spoil(value) for name, value in positions(grid).items()
        }
        assert max_rel(model(x), want) > 1e-2


def test_the_order_of_frames_matters() -> None:
    """Without a code for time, a clip played backwards would look the same."""
    for kind, moves in (("global", True), ("sincos", True), ("none", False)):
        config = replace(KINDS[kind], window=None, tubelet=1)
        model, x = build(config), clip(48, 48)
        assert (max_rel(model(x.flip(2)), model(x)) > 1e-2) is moves, kind


def test_windows_leave_distant_tokens_alone() -> None:
    """One plain layer: a change in one window stays there. Two: the shift carries it on."""
    x = clip(48, 96)
    changed = x.clone()
    changed[..., :8, :8] += 1
    for depth, reached in ((1, (0, 4)), (2, (0, 6))):
        model = build(replace(MICRO, depth=depth, window=(2, 4, 4)))
        features = [model.forward_features(c)["feature-map"] for c in (x, changed)]
        columns = (features[0] - features[1]).abs().amax(dim=(0, 1, 2, 3)).gt(1e-4).nonzero()
        assert (columns.min().item(), columns.max().item() + 1) == reached


@pytest.mark.parametrize("kind", ["windows", "global", "sincos-windows"])
def test_one_dynamic_file_for_every_size(
    export: Callable[..., Any], forbidden: set[str], kind: str
) -> None:
    model = build(KINDS[kind])
    traced = copy.deepcopy(model).resolve(None)
    engines = export(traced, clip(56, 72), {0: "batch", 3: "height", 4: "width"})
    assert not forbidden & engines.operators
    for height, width in [(48, 48), (24, 24), (32, 56), (96, 72)]:
        for batch in (1, 3):
            x = clip(height, width, batch)
            for engine, error in engines.differences(x, [model(x)]).items():
                assert error <= 1e-4, (engine, height, width, batch)


@pytest.mark.parametrize("kind", ["windows", "global", "sincos"])
def test_a_static_file_holds_constants(
    export: Callable[..., Any], forbidden: set[str], kind: str
) -> None:
    model = build(KINDS[kind])
    engines = export(copy.deepcopy(model).resolve((5, 9)), clip(40, 72))
    computed = {"Range", "Mod", "Where", "Equal", "Sin", "Cos", "Tile"}
    assert not (forbidden | computed) & engines.operators
    for error in engines.differences(clip(40, 72), [model(clip(40, 72))]).values():
        assert error <= 1e-5


def test_resolved_for_one_size_answers_that_size_only() -> None:
    model = build(MICRO)
    baked = copy.deepcopy(model).resolve((5, 9))
    assert isinstance(baked.encoding, Resolved)
    assert torch.equal(baked(clip(40, 72)), model(clip(40, 72)))
    with pytest.raises(RuntimeError, match=r"baked for grid \(5, 9\), got \(6, 6\)"):
        baked(clip(48, 48))
    resized = build(KINDS["global"])
    want = resized(clip(40, 72))
    assert max_rel(resized.resolve((5, 9))(clip(40, 72)), want) <= 1e-5


def test_clips_that_do_not_fit_are_refused() -> None:
    model = build(MICRO)
    with pytest.raises(RuntimeError, match="6 frames, the model takes 4"):
        model(clip(48, 48, frames=6))
    with pytest.raises(RuntimeError, match="width 50 does not fit patch 8"):
        model(clip(48, 50))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 5}, "embed_dim 24 is not a multiple of 5"),
        ({"frames": 5}, "5 frames are not a multiple of tubelet 2"),
        ({"image_size": (48, 50)}, r"\(48, 50\) is not a multiple of patch size 8"),
        ({"window": (2, 0, 4)}, r"at least 1x1x1, got \(2, 0, 4\)"),
        ({"small_map": "crop"}, "small_map 'crop'"),
    ],
)
def test_impossible_options_are_usage_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(MICRO, **options)


def test_other_encodings_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="window-bias does not fit the video network"):
        build(replace(MICRO, encoding="window-bias"))


def test_tubelets_cover_frames_pairwise() -> None:
    """The embedding is a Conv3d of stride 2x8x8, so token t sees frames 2t and 2t+1 only."""
    model = build(MICRO)
    x = clip(16, 16)
    changed = x.clone()
    changed[:, :, 2:] = F.dropout(changed[:, :, 2:], p=0.5, training=True)
    first, second = (model.patch_embed(c) for c in (x, changed))
    assert torch.equal(first[:, :, 0], second[:, :, 0])
    assert (first[:, :, 1] - second[:, :, 1]).abs().min() > 0
