"""The reference Swin: torchvision as oracle, small maps, other windows, both engines."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.encodings.base import Resolved
from vitpe_deploy.encodings.log_cpb import LogCPB
from vitpe_deploy.encodings.window_bias import WindowBias
from vitpe_deploy.errors import UsageError
from vitpe_deploy.models.presets import SWIN_PRESETS, SwinConfig, with_options
from vitpe_deploy.models.swin import SwinTransformer

MICRO = {
    1: replace(SWIN_PRESETS["swin_micro_patch4_window4_64"], num_classes=7),
    2: replace(SWIN_PRESETS["swinv2_micro_patch4_window4_64"], num_classes=7),
}
SIZES = [(64, 64), (32, 32), (96, 128), (52, 36), (16, 16), (8, 100), (12, 20)]
"""Native, smaller, larger non-square, and maps that fit neither window nor merge, or fit inside
one window: patch 4 and window 4 make maps of 16 and 8 rows at the native size."""


def build(config: SwinConfig) -> SwinTransformer:
    torch.manual_seed(0)
    model = SwinTransformer(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("logit_scale"):  # below, at and above the clamp at log(100) = 4.6
            parameter.copy_(torch.linspace(1, 6, len(parameter)).reshape(parameter.shape))
    return model


def image(height: int, width: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(height)
    return torch.randn(batch, 3, height, width, generator=generator)


def max_rel(got: Tensor, want: Tensor) -> float:
    return ((got - want).abs().max() / want.abs().max()).item()


def torchvision_twin(ours: SwinTransformer) -> nn.Module:
    """torchvision's Swin with our weights."""
    from torchvision.models import swin_transformer as tv

    config = ours.config
    kinds: dict[str, Any] = {}
    if config.version == 2:
        kinds = {"block": tv.SwinTransformerBlockV2, "downsample_layer": tv.PatchMergingV2}
    theirs = tv.SwinTransformer(
        [config.patch_size] * 2,
        config.embed_dim,
        list(config.depths),
        list(config.num_heads),
        list(config.window),
        num_classes=config.num_classes,
        **kinds,
    )
    layers = theirs.features
    pairs = [
        (layers[0][0], ours.patch_embed),
        (layers[0][2], ours.patch_norm),
        (theirs.norm, ours.norm),
        (theirs.head, ours.head),
    ]
    for i, stage in enumerate(ours.stages):
        if i:
            merging = layers[2 * i]
            pairs += [
                (merging.reduction, stage.merging.reduction),
                (merging.norm, stage.merging.norm),
            ]
        for block, own in zip(layers[2 * i + 1], stage.blocks, strict=True):
            pairs += [
                (block.norm1, own.norm1),
                (block.norm2, own.norm2),
                (block.attn.qkv, own.attn.qkv),
                (block.attn.proj, own.attn.proj),
                (block.mlp[0], own.mlp[0]),
                (block.mlp[3], own.mlp[3]),
            ]
            if config.version == 1:
                block.attn.relative_position_bias_table.data = own.attn.encoding.table
            else:
                block.attn.logit_scale.data = own.attn.logit_scale
                pairs += [
                    (block.attn.cpb_mlp[0], own.attn.encoding.fc1),
                    (block.attn.cpb_mlp[2], own.attn.encoding.fc2),
                ]
    for target, source in pairs:
        target.load_state_dict(source.state_dict())
    return theirs.eval().requires_grad_(False)


@pytest.mark.parametrize(("version", "limit"), [(1, 1e-5), (2, 1e-4)])
def test_agrees_with_torchvision(version: int, limit: float) -> None:
    """Cosine attention multiplies the rounding of its logits by up to 100: 1.3e-5 on some CPUs."""
    ours = build(MICRO[version])
    theirs = torchvision_twin(ours)
    for height, width in SIZES:
        x = image(height, width)
        assert max_rel(ours(x), theirs(x)) <= limit, (height, width)


@pytest.mark.parametrize("version", [1, 2])
def test_agrees_with_torchvision_in_uneven_windows(version: int) -> None:
    ours = build(replace(MICRO[version], window=(3, 5), depths=(2, 3)))
    theirs = torchvision_twin(ours)
    for height, width in [(64, 64), (40, 100), (12, 20)]:
        x = image(height, width, 1)
        # Logits of version 2 go to 100 x the cosine: rounding in the last place shows more.
        assert max_rel(ours(x), theirs(x)) <= (1e-5 if version == 1 else 3e-5), (height, width)


def test_the_tiny_preset_is_torchvisions_tiny() -> None:
    ours = build(SWIN_PRESETS["swin_tiny_patch4_window7_224"])
    x = image(224, 224, 1)
    assert sum(p.numel() for p in ours.parameters()) == 28_288_354  # as torchvision states
    assert max_rel(ours(x), torchvision_twin(ours)(x)) <= 1e-5


def test_a_picture_that_ends_inside_a_patch_is_padded_with_zeros() -> None:
    model = build(MICRO[1])
    x = image(61, 38)
    torch.testing.assert_close(model(x), model(F.pad(x, (0, 2, 0, 3))), rtol=0, atol=1e-6)
    assert model.forward_features(x)["feature-map"].shape == (2, 32, 8, 5)


def test_features_agree_with_each_other() -> None:
    model = build(MICRO[1])
    features = model.forward_features(image(52, 36))
    assert features["feature-map"].shape == (2, 32, 7, 5)  # 13x9 patches, merged
    assert torch.equal(features["feature-map"].flatten(2).transpose(1, 2), features["tokens"])
    torch.testing.assert_close(features["pooled"], features["feature-map"].mean(dim=(2, 3)))
    assert torch.equal(model(image(52, 36)), model.forward_head(features))
    headless = build(replace(MICRO[1], num_classes=0))
    assert headless(image(52, 36)).shape == (2, 32)
    with pytest.raises(UsageError, match="no classification head"):
        headless.forward_head(features)


@pytest.mark.parametrize("version", [1, 2])
def test_keys_of_version_2_have_no_bias(version: int) -> None:
    """In version 1 a key bias cancels in the softmax; cosines would not let it."""
    model, x = build(MICRO[version]), image(64, 64)
    want = model(x)
    for stage in model.stages:
        for block in stage.blocks:
            block.attn.qkv.bias.reshape(3, -1)[1] += 1.0
    assert max_rel(model(x), want) <= 1e-5


def test_dropping_or_misplacing_the_bias_moves_the_logits() -> None:
    for version in (1, 2):
        model, x = build(MICRO[version]), image(64, 64)
        want = model(x)
        for spoil in (torch.zeros_like, lambda bias: bias.flip(-1)):
            spoilt = copy.deepcopy(model).resolve(None)
            for stage in spoilt.stages:
                for block in stage.blocks:
                    encoding = block.attn.encoding
                    encoding.fitted_bias = spoil(encoding.fitted_bias)
            assert max_rel(spoilt(x), want) > 1e-2


def test_shifted_windows_matter_and_vanish_in_a_single_window() -> None:
    model = build(MICRO[1])
    one_window = image(16, 16)  # 4x4 patches in the first stage, 2x2 in the second
    plain = copy.deepcopy(model)
    for stage in plain.stages:
        stage._plans = lambda grid, device, plans=stage._plans: plans(grid, device)[:1] * 2
    torch.testing.assert_close(plain(one_window), model(one_window), rtol=0, atol=1e-6)
    assert max_rel(plain(image(64, 64)), model(image(64, 64))) > 1e-2


def test_a_clamped_window_sees_no_padding() -> None:
    """Where a map fits inside the window the two rules differ, elsewhere they are the same."""
    pad, clamp = build(MICRO[1]), build(replace(MICRO[1], small_map="clamp"))
    x = image(64, 64)
    assert torch.equal(pad(x), clamp(x))
    x = image(24, 24)  # maps 6x6 and 3x3
    assert max_rel(clamp(x), pad(x)) > 1e-3
    small = build(replace(MICRO[1], window=(3, 3)))
    table = small.stages[1].blocks[0].attn.encoding.table
    for own, other in zip(small.stages[1].blocks, clamp.stages[1].blocks, strict=True):
        own.load_state_dict(
            {n: p for n, p in other.state_dict().items() if n != "attn.encoding.table"},
            strict=False,
        )
        # Offsets -2..2 of the seven that a 4x4 window has.
        wide = other.attn.encoding.table.reshape(7, 7, -1)[1:-1, 1:-1]
        own.attn.encoding.table.copy_(wide.reshape(table.shape))
    tokens = torch.randn(2, 9, 32)
    for own, other in zip(small.stages[1].blocks, clamp.stages[1].blocks, strict=True):
        got = other(tokens, clamp.stages[1]._plans((3, 3))[1])
        want = own(tokens, small.stages[1]._plans((3, 3))[1])
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("version", [1, 2])
def test_a_changed_window_starts_from_the_pretrained_positions(version: int) -> None:
    trained = build(MICRO[version])
    wider = SwinTransformer(replace(MICRO[version], window=(6, 8), pretrained_window=(4, 4)))
    wider.eval().requires_grad_(False).load_state_dict(trained.state_dict())
    x = image(96, 128)
    want = wider(x)
    assert max_rel(want, trained(x)) > 1e-3
    assert max_rel(wider.resolve((24, 32))(x), want) <= 1e-5
    resolved = wider.stages[0].blocks[0].attn.encoding
    assert isinstance(resolved, Resolved)
    assert resolved is wider.encoding
    assert resolved.encoding.describe().native_grid == (4, 4)
    assert resolved.fitted_bias.shape == (1, 2, 48, 48)


def test_resolved_for_one_size_answers_that_size_only() -> None:
    model = build(MICRO[1])
    x = image(52, 36)
    want = model(x)
    baked = copy.deepcopy(model).resolve((13, 9))
    assert torch.equal(baked(x), want)
    with pytest.raises(RuntimeError, match=r"baked for map \(13, 9\), got \(16, 16\)"):
        baked(image(64, 64))


@pytest.mark.parametrize("version", [1, 2])
def test_one_dynamic_file_for_every_size(
    export: Callable[..., Any], forbidden: set[str], version: int
) -> None:
    """Traced at one non-square size; the shift is not frozen into it (case C12)."""
    model = build(MICRO[version])
    traced = copy.deepcopy(model).resolve(None)
    engines = export(traced, image(80, 112), {0: "batch", 2: "height", 3: "width"})
    assert not forbidden & engines.operators
    for n, (height, width) in enumerate([*SIZES, (61, 99)]):
        x = image(height, width, batch=1 + n % 3)
        for engine, error in engines.differences(x, [model(x)]).items():
            assert error <= 1e-4, (engine, tuple(x.shape))


def test_dynamic_clamped_windows(export: Callable[..., Any], forbidden: set[str]) -> None:
    model = build(replace(MICRO[1], small_map="clamp", depths=(1, 2)))
    engines = export(
        copy.deepcopy(model).resolve(None), image(80, 112), {0: "batch", 2: "height", 3: "width"}
    )
    assert not forbidden & engines.operators
    for height, width in [(80, 112), (64, 64), (24, 24), (8, 100), (4, 12)]:
        x = image(height, width, 1)
        for engine, error in engines.differences(x, [model(x)]).items():
            assert error <= 1e-4, (engine, height, width)


@pytest.mark.parametrize("version", [1, 2])
def test_a_static_file_holds_constants(
    export: Callable[..., Any], forbidden: set[str], version: int
) -> None:
    model = build(MICRO[version])
    engines = export(copy.deepcopy(model).resolve((13, 9)), image(52, 36))
    computed = {"Range", "Mod", "Where", "Equal", "Sigmoid", "Tile"}
    assert not (forbidden | computed) & engines.operators
    limit = {1: 1e-5, 2: 1e-4}[version]  # cosines times 100 round 100 times as coarsely
    for error in engines.differences(image(52, 36), [model(image(52, 36))]).values():
        assert error <= limit


def test_presets_are_the_published_shapes() -> None:
    tiny = SWIN_PRESETS["swin_tiny_patch4_window7_224"]
    assert tiny.grid == (56, 56)
    assert tiny.widths == (96, 192, 384, 768)
    v2 = SwinTransformer(replace(MICRO[2], window=(8, 8)))
    assert isinstance(v2.encoding, LogCPB)
    v1 = SwinTransformer(MICRO[1])
    assert isinstance(v1.encoding, WindowBias)
    assert SWIN_PRESETS["swinv2_tiny_window8_256"].window == (8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2, 2)}, "3 depths but 2 numbers of heads"),
        ({"num_heads": (3, 4)}, "stage width 16 is not a multiple of 3"),
        ({"window": (0, 4)}, r"at least 1x1, got \(0, 4\)"),
        ({"small_map": "crop"}, "small_map 'crop'"),
        ({"version": 3}, "Swin version 3"),
    ],
)
def test_impossible_options_are_usage_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(MICRO[1], **options)


def test_options_are_read_as_the_shell_gives_them() -> None:
    options = {"depths": "1,3", "version": "2", "window": "6x8", "pretrained_window": "4"}
    config = with_options(MICRO[1], options)
    assert config == replace(
        MICRO[1], depths=(1, 3), version=2, window=(6, 8), pretrained_window=(4, 4)
    )
    with pytest.raises(UsageError, match="version='3' cannot be read: one of 1, 2"):
        with_options(MICRO[1], {"version": "3"})


def test_other_encodings_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="learned-1d does not fit the swin network"):
        SwinTransformer(replace(MICRO[1], encoding="learned-1d"))
