"""Rotary positions along the raster: closed form, relative by construction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.encodings.rope_1d import Rope1D
from vitpe_deploy.errors import UsageError

LAYOUTS = ["interleaved", "half"]


def build(grid: tuple[int, int], width: int = 16, prefix: int = 0, **params: Any) -> Rope1D:
    return Rope1D.build(EncodingSpec(grid, width, 2, 2, prefix_tokens=prefix, params=params))


def test_closed_form() -> None:
    """Position m, pair k: m * 10000^(-2k/d), rows of leading tokens at angle 0."""
    positions = build((6, 6), prefix=1).fit((3, 5))
    for m in range(15):
        for k in range(4):
            angle = m * 10000 ** (-2 * k / 8)
            assert positions["cos"][1 + m, k].item() == pytest.approx(math.cos(angle), abs=1e-5)
            assert positions["sin"][1 + m, k].item() == pytest.approx(math.sin(angle), abs=1e-5)
    assert positions["cos"][0].tolist() == [1] * 4
    assert positions["sin"][0].tolist() == [0] * 4


def test_half_layout_equals_llama() -> None:
    torch.manual_seed(0)
    encoding = build((1, 7), layout="half")
    q, k = torch.randn(2, 2, 2, 7, 8).unbind(0)
    angle = torch.outer(torch.arange(7.0), 10000 ** (-torch.arange(0, 8, 2) / 8)).repeat(1, 2)
    want = apply_rotary_pos_emb(q, k, angle.cos()[None], angle.sin()[None])
    got = encoding.rotate(q, k, encoding.fit((1, 7)), layer=0)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_depend_on_distance_only(layout: str) -> None:
    torch.manual_seed(0)
    encoding = build((1, 12), layout=layout)
    q, k = torch.randn(2, 1, 2, 1, 8).expand(2, 1, 2, 12, 8).unbind(0)
    q, k = encoding.rotate(q, k, encoding.fit((1, 12)), layer=0)
    logits = q @ k.transpose(-1, -2)
    for distance in (-3, 0, 5):
        line = logits.diagonal(distance, -2, -1)
        torch.testing.assert_close(line, line[..., :1].expand_as(line), rtol=0, atol=1e-5)
    assert (logits[..., 0, 0] - logits[..., 0, 3]).abs().min() > 1e-2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_answers_agree(answers_agree: Callable[..., None], layout: str) -> None:
    answers_agree(build((6, 6), prefix=2, layout=layout, base=100.0))


def test_impossible_options_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="layout 'neox'"):
        build((2, 2), layout="neox")
    with pytest.raises(UsageError, match="multiple of 2, got 3"):
        build((2, 2), width=6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_network(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    positions_matter: Callable[..., None],
    layout: str,
) -> None:
    positions_matter(tiny_vit("rope-1d", layout=layout))
    assert {"Sin", "Cos"} <= export_matches(lambda: tiny_vit("rope-1d", layout=layout))


def test_baked_network_holds_cos_and_sin(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]]
) -> None:
    """C20."""
    ops = baked_matches(lambda: tiny_vit("rope-1d"), (5, 8))
    assert not {"Sin", "Cos", "Range"} & ops
