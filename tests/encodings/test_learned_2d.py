"""Row and column tables: layout, one-axis resampling, prefix rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.encodings.learned_2d import Learned2D
from vitpe_deploy.encodings.resample import ResampleRule
from vitpe_deploy.errors import UsageError

MODES = ["concat", "add"]


def build(
    grid: tuple[int, int] = (6, 6), prefix: int = 1, width: int = 8, **params: Any
) -> Learned2D:
    torch.manual_seed(0)
    spec = EncodingSpec(grid, width, 2, 2, prefix_tokens=prefix, params=params)
    return Learned2D.build(spec).requires_grad_(False)


@pytest.mark.parametrize("mode", MODES)
def test_literal_definition(mode: str) -> None:
    encoding = build((2, 3), mode=mode)
    table = encoding.fit((2, 3))["table"]
    assert table.shape == (1, 7, 8)
    assert encoding.prefix is not None
    assert torch.equal(table[:, :1], encoding.prefix)
    for y in range(2):
        for x in range(3):
            row, column = encoding.rows[y], encoding.columns[x]
            want = torch.cat([row, column]) if mode == "concat" else row + column
            assert torch.equal(table[0, 1 + 3 * y + x], want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefix", [0, 2])
def test_three_answers_agree(answers_agree: Callable[..., None], mode: str, prefix: int) -> None:
    answers_agree(build((6, 6), prefix, mode=mode))
    answers_agree(build((4, 7), prefix, mode=mode, rule=ResampleRule("bilinear", False)))


def test_each_axis_is_resampled_alone() -> None:
    """float64 torch on the row table; the columns stay bit for bit when w does."""
    encoding = build((5, 4), rule=ResampleRule(antialias=False))
    table = torch.unflatten(encoding.fit((9, 4))["table"][0, 1:], 0, (9, 4))
    rows = encoding.rows.double().t()[None, :, :, None]
    want = F.interpolate(rows, size=(9, 1), mode="bicubic")[0, :, :, 0].t()
    torch.testing.assert_close(table[:, 2, :4].double(), want, rtol=0, atol=1e-6)
    assert torch.equal(table[3, :, 4:], encoding.columns)


def test_fit_is_always_from_the_original() -> None:
    encoding = build()
    native = encoding.positions((6, 6))["table"]
    encoding.fit((9, 9))
    assert torch.equal(encoding.fit((6, 6))["table"], native)


@pytest.mark.parametrize("mode", MODES)
def test_scaling_factor_multiplies(mode: str) -> None:
    plain, scaled = build(mode=mode), build(mode=mode, scaling_factor=0.25)
    for grid in [(6, 6), (4, 9)]:
        want = plain.positions(grid)["table"] / 4
        assert torch.equal(scaled.positions(grid)["table"], want)
        torch.testing.assert_close(scaled.fit(grid)["table"], want, rtol=0, atol=1e-5)
        torch.testing.assert_close(scaled.in_graph(*grid)["table"], want, rtol=0, atol=1e-5)


def test_impossible_options_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="mode 'sum'"):
        build(mode="sum")
    with pytest.raises(UsageError, match="even embed_dim to concatenate, got 9"):
        build(width=9)


@pytest.mark.parametrize("mode", MODES)
def test_network(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    positions_matter: Callable[..., None],
    mode: str,
) -> None:
    positions_matter(tiny_vit("learned-2d", mode=mode))
    export_matches(lambda: tiny_vit("learned-2d", mode=mode))


def test_baked_network(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]]
) -> None:
    assert not {"Range", "Abs"} & baked_matches(lambda: tiny_vit("learned-2d"), (5, 8))
