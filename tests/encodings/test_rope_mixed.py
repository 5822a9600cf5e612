"""Learned rotary frequencies against timm's and the sum of angles written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import apply_rot_embed_cat
from timm.layers.pos_embed_sincos import RotaryEmbeddingMixed

from vitpe_deploy.encodings.base import EncodingSpec, Grid
from vitpe_deploy.encodings.rope_mixed import RopeMixed
from vitpe_deploy.errors import UsageError


def build(grid: Grid, prefix: int = 0, head_dim: int = 8, **params: Any) -> RopeMixed:
    torch.manual_seed(0)
    spec = EncodingSpec(grid, 2 * head_dim, 2, 3, prefix_tokens=prefix, params=params)
    return RopeMixed.build(spec).requires_grad_(False)


def test_closed_form() -> None:
    """Layer l, head m, pair k: column * f[0] + row * f[1]."""
    encoding = build((4, 4), prefix=1)
    positions = encoding.fit((3, 5))
    assert positions["cos"].shape == (3, 2, 16, 4)
    for layer, head, pair, y, x in [(0, 0, 0, 0, 1), (1, 1, 3, 2, 0), (2, 0, 2, 2, 4)]:
        of_column, of_row = encoding.frequencies[:, layer, head, pair].tolist()
        angle = x * of_column + y * of_row
        cell = (layer, head, 1 + y * 5 + x, pair)
        assert positions["cos"][cell].item() == pytest.approx(math.cos(angle), abs=1e-5)
        assert positions["sin"][cell].item() == pytest.approx(math.sin(angle), abs=1e-5)


@pytest.mark.parametrize("grid", [(14, 14), (6, 10), (24, 3)])
def test_equals_timm(grid: Grid) -> None:
    encoding = build((14, 14))
    module = RotaryEmbeddingMixed(16, depth=3, num_heads=2)
    module.freqs.data.copy_(encoding.frequencies)
    q, k = torch.randn(2, 1, 2, grid[0] * grid[1], 8).unbind(0)
    embed = module.get_embed(shape=list(grid)).detach()
    for layer in range(3):
        want = [apply_rot_embed_cat(x, embed[layer]) for x in (q, k)]
        for positions in (encoding.fit(grid), encoding.in_graph(*grid)):
            got = encoding.rotate(q, k, positions, layer)
            torch.testing.assert_close(list(got), want, rtol=0, atol=1e-5)


def test_initial_frequencies() -> None:
    """Magnitudes 10^(-4k/d), and the second half of the pairs at a right angle to the first."""
    f = build((4, 4), head_dim=16).frequencies
    assert f.shape == (2, 3, 2, 8)
    magnitude = f.square().sum(0).sqrt()
    want = torch.tensor([10 ** (-4 * k / 16) for k in range(4)] * 2)
    torch.testing.assert_close(magnitude, want.expand(3, 2, 8), rtol=0, atol=1e-6)
    across = (f[..., :4] * f[..., 4:]).sum(0)
    torch.testing.assert_close(across, torch.zeros(3, 2, 4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("prefix", [0, 2])
def test_three_answers_agree(answers_agree: Callable[..., None], prefix: int) -> None:
    answers_agree(build((6, 6), prefix))


def test_head_size_must_split() -> None:
    with pytest.raises(UsageError, match="multiple of 4, got 6"):
        build((2, 2), head_dim=6)


def test_network(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    positions_matter: Callable[..., None],
) -> None:
    positions_matter(tiny_vit("rope-mixed"))
    assert {"Sin", "Cos"} <= export_matches(lambda: tiny_vit("rope-mixed"))


def test_baked_network_holds_cos_and_sin(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]]
) -> None:
    """C20."""
    ops = baked_matches(lambda: tiny_vit("rope-mixed"), (5, 8))
    assert not {"Sin", "Cos", "Range"} & ops
