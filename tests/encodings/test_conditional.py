"""The positional encoding generator: timm's own, borders, untouched prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.twins import PosConv

from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.encodings.conditional import Conditional
from vitpe_deploy.errors import UsageError


def build(prefix: int = 1, **params: Any) -> Conditional:
    torch.manual_seed(0)
    spec = EncodingSpec((4, 5), 6, 2, 3, prefix_tokens=prefix, params=params)
    return Conditional.build(spec).requires_grad_(False)


@pytest.mark.parametrize("grid", [(4, 5), (7, 2), (1, 1)])
def test_equals_twins(grid: tuple[int, int]) -> None:
    encoding = build(prefix=2)
    encoding.bias.normal_()
    module = PosConv(6, 6)
    module.proj[0].weight.data.copy_(encoding.weight)
    module.proj[0].bias.data.copy_(encoding.bias)
    x = torch.randn(2, 2 + grid[0] * grid[1], 6)
    got = encoding.after_block(x, grid, layer=0)
    assert torch.equal(got[:, :2], x[:, :2])
    want = module(x[:, 2:].clone(), grid).detach()
    torch.testing.assert_close(got[:, 2:], want, rtol=0, atol=1e-6)


def test_constant_picture_by_hand() -> None:
    """A kernel of ones counts the neighbours inside: 4 in corners, 6 on edges, 9 within."""
    encoding = build(prefix=0)
    encoding.weight.fill_(1.0)
    got = encoding.after_block(torch.ones(1, 9, 6), (3, 3), layer=0)
    assert got[0, :, 0].tolist() == [5, 7, 5, 7, 10, 7, 5, 7, 5]


def test_acts_after_one_block_only() -> None:
    x = torch.randn(1, 21, 6)
    encoding = build(after=1)
    assert encoding.after_block(x, (4, 5), layer=0) is x
    assert encoding.after_block(x, (4, 5), layer=2) is x
    assert (encoding.after_block(x, (4, 5), layer=1) - x).abs().max() > 0.1


def test_nothing_to_fit() -> None:
    encoding = build()
    assert encoding.positions((9, 9)) == encoding.fit((9, 9)) == encoding.in_graph(9, 9) == {}


def test_impossible_options_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="odd kernel_size, got 2"):
        build(kernel_size=2)
    with pytest.raises(UsageError, match="after block 3 of 3"):
        build(after=3)


def test_network_reads_positions(tiny_vit: Callable[..., Any]) -> None:
    """Without it a mean-pooled network cannot tell shuffled patches apart; with it, it can."""
    options = {"pool": "mean", "class_token": False, "register_tokens": 0}
    x = torch.randn(1, 3, 20, 32)
    rows = x.reshape(1, 3, 5, 4, 8, 4)
    shuffled = rows.flip(2, 4).reshape(x.shape)  # the same patches in reverse order
    model = tiny_vit("conditional", **options)
    assert (model(shuffled) - model(x)).abs().max() > 1e-2
    blind = tiny_vit("none", **options)
    assert (blind(shuffled) - blind(x)).abs().max() < 1e-5


def test_dropping_the_kernel_moves_the_output(tiny_vit: Callable[..., Any]) -> None:
    model, x = tiny_vit("conditional"), torch.randn(1, 3, 20, 32)
    want = model(x)
    model.encoding.weight.zero_()
    assert (model(x) - want).abs().max() > 1e-2


def test_network(tiny_vit: Callable[..., Any], export_matches: Callable[..., set[str]]) -> None:
    assert "Conv" in export_matches(lambda: tiny_vit("conditional"))


def test_baked_network(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]]
) -> None:
    baked_matches(lambda: tiny_vit("conditional"), (5, 8))
