"""Sines and cosines of the raster index: published numbers, both ways to a new size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.encodings.sincos_1d import SinCos1D
from vitpe_deploy.errors import UsageError

MODES = ["extrapolate", "rescale"]


def build(grid: tuple[int, int], width: int = 8, prefix: int = 0, **params: Any) -> SinCos1D:
    return SinCos1D.build(EncodingSpec(grid, width, 2, 2, prefix_tokens=prefix, params=params))


def test_width_four_by_hand() -> None:
    """S01."""
    table = build((1, 3), width=4).fit((1, 3))["table"][0]
    want = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(3)]
    assert table[0].tolist() == [0, 1, 0, 1]
    torch.testing.assert_close(table, torch.tensor(want), rtol=0, atol=1e-7)


def test_dot_products_of_three_patches() -> None:
    """S02: 30, 31, 32 without positions; 44, 44.69, 43.12 with them."""
    base = torch.tensor([1.0, 2.0, 3.0, 4.0])
    x = torch.stack([base, base + 0.1, base + 0.2]).unsqueeze(0)
    assert (x[0] @ x[0, 0]).tolist() == pytest.approx([30, 31, 32], abs=1e-5)
    encoding = build((1, 3), width=4)
    y = encoding.tokens(x, encoding.positions((1, 3)))
    assert (y[0] @ y[0, 0]).tolist() == pytest.approx([44, 44.69, 43.12], abs=5e-3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefix", [0, 2])
def test_three_answers_agree(answers_agree: Callable[..., None], mode: str, prefix: int) -> None:
    answers_agree(build((6, 6), 16, prefix, mode=mode, scaling_factor=0.5))


def test_prefix_rows_are_zero() -> None:
    table = build((2, 2), prefix=2).fit((3, 2))["table"]
    assert table.shape == (1, 8, 8)
    assert not table[:, :2].any()
    assert table[0, 2].tolist() == [0, 1] * 4


def test_extrapolate_counts_on_and_rescale_spreads() -> None:
    """From 4 to 8 positions: i, or (i + 1/2) / 2 - 1/2 = -0.25, 0.25, 0.75..."""
    for mode, positions in [
        ("extrapolate", range(8)),
        ("rescale", [i / 2 - 0.25 for i in range(8)]),
    ]:
        table = build((2, 2), mode=mode).fit((2, 4))["table"][0]
        want = torch.tensor([math.sin(p) for p in positions])
        torch.testing.assert_close(table[:, 0], want, rtol=0, atol=1e-6)


def test_scaling_factor_multiplies() -> None:
    want = build((3, 3)).fit((3, 3))["table"] * 0.5
    encoding = build((3, 3), scaling_factor=0.5)
    assert torch.equal(encoding.fit((3, 3))["table"], want)
    torch.testing.assert_close(encoding.in_graph(3, 3)["table"], want, rtol=0, atol=1e-6)


def test_impossible_options_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="even embed_dim, got 9"):
        build((2, 2), width=9)
    with pytest.raises(UsageError, match="mode 'stretch'"):
        build((2, 2), mode="stretch")


@pytest.mark.parametrize("mode", MODES)
def test_network(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    positions_matter: Callable[..., None],
    mode: str,
) -> None:
    positions_matter(tiny_vit("sincos-1d", mode=mode))
    assert {"Sin", "Cos"} <= export_matches(lambda: tiny_vit("sincos-1d", mode=mode))


def test_baked_network(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]]
) -> None:
    ops = baked_matches(lambda: tiny_vit("sincos-1d", mode="rescale"), (5, 8))
    assert not {"Sin", "Cos", "Range"} & ops
