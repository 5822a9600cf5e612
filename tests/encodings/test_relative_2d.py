"""The global bias table: by hand, against timm's BEiT, on both resample rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import RelPosBias, resize_rel_pos_bias_table, resize_rel_pos_bias_table_simple
from timm.models.beit import RelativePositionBias

from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.encodings.geometric_grid import geometric_matrix, geometric_offsets
from vitpe_deploy.encodings.relative_2d import Relative2D
from vitpe_deploy.encodings.resample import ResampleRule
from vitpe_deploy.errors import UnsupportedError, UsageError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using a non-tuple sequence"),  # inside timm
    pytest.mark.filterwarnings("ignore:torch.searchsorted"),
]


def build(grid: tuple[int, int], prefix: int = 1, **params: Any) -> Relative2D:
    torch.manual_seed(0)
    spec = EncodingSpec(grid, 8, 2, 3, prefix_tokens=prefix, params=params)
    return Relative2D.build(spec).requires_grad_(False)


def test_2x2_by_hand() -> None:
    """Nine offsets, then cls to patch (9), patch to cls (10), cls to cls (11)."""
    encoding = build((2, 2))
    encoding.table.copy_(torch.stack([torch.arange(12.0), -torch.arange(12.0)], dim=1))
    want = torch.tensor(
        [
            [11.0, 9.0, 9.0, 9.0, 9.0],
            [10.0, 4.0, 3.0, 1.0, 0.0],
            [10.0, 5.0, 4.0, 2.0, 1.0],
            [10.0, 7.0, 6.0, 4.0, 3.0],
            [10.0, 8.0, 7.0, 5.0, 4.0],
        ]
    )
    for positions in (
        encoding.positions((2, 2)), encoding.fit((2, 2)), encoding.in_graph(2, 2)
    ):  # fmt: skip
        bias = encoding.attention_bias(positions, layer=1)
        assert bias is not None
        assert bias.shape == (1, 2, 5, 5)
        assert torch.allclose(bias[0, 0], want, atol=1e-5)
        assert torch.allclose(bias[0, 1], -want, atol=1e-5)


def test_3x3_centre_patch_by_hand() -> None:
    """The centre meets offsets -1..1 on both axes of a 5x5 table, from (1, 1) down to (-1, -1)."""
    encoding = build((3, 3), prefix=0)
    encoding.table.copy_(torch.arange(25.0).reshape(1, 25, 1).expand(1, 25, 2))
    bias = encoding.fit((3, 3))["bias"]
    assert bias[0, 0, 4].tolist() == [18, 17, 16, 13, 12, 11, 8, 7, 6]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"rule": ResampleRule()},
        {"rule": ResampleRule("bilinear", antialias=False)},
        {"shared": False},
        {"placement": "scaled"},
    ],
    ids=str,
)
def test_three_answers_agree(answers_agree: Callable[..., None], params: dict[str, Any]) -> None:
    answers_agree(build((6, 6), prefix=2, **params))


def test_non_square_native_grid(answers_agree: Callable[..., None]) -> None:
    answers_agree(build((4, 7), prefix=0))
    answers_agree(build((4, 7), resample="geometric"), in_graph=False)


def test_native_grid_is_the_table_itself() -> None:
    for resample in ("bicubic", "geometric"):
        encoding = build((5, 4), resample=resample)
        assert torch.equal(encoding.fitted_table((5, 4)), encoding.table)
        assert torch.equal(encoding.fit((5, 4))["bias"], encoding.positions((5, 4))["bias"])


# Against timm, with the same weights


def timm_bias(encoding: Relative2D, grid: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Table and bias of timm's BEiT at another window, resampled as timm loads a checkpoint."""
    module = RelativePositionBias(grid, num_heads=2)
    shape = tuple(module.relative_position_bias_table.shape)
    table = encoding.table[0]
    if grid != encoding.spec.grid:
        table = resize_rel_pos_bias_table(table, new_window_size=grid, new_bias_shape=shape)
    module.relative_position_bias_table.data.copy_(table)
    return module.relative_position_bias_table.detach(), module().detach()


def test_beit_table_at_96x144() -> None:
    """C22: (2*6-1)(2*9-1) + 3 = 190 rows."""
    encoding = build((14, 14), resample="geometric")
    want_table, want_bias = timm_bias(encoding, (96 // 16, 144 // 16))
    table = encoding.fitted_table((6, 9))
    assert table.shape == (1, 190, 2)
    torch.testing.assert_close(table[0], want_table, rtol=0, atol=1e-5)
    torch.testing.assert_close(encoding.fit((6, 9))["bias"][0], want_bias, rtol=0, atol=1e-5)


@pytest.mark.parametrize("grid", [(14, 14), (24, 24), (14, 24), (40, 12), (9, 61)])
def test_geometric_equals_timm(grid: tuple[int, int]) -> None:
    encoding = build((14, 14), resample="geometric")
    want_table, _ = timm_bias(encoding, grid)
    torch.testing.assert_close(encoding.fitted_table(grid)[0], want_table, rtol=0, atol=2e-5)


def test_bicubic_equals_timm_and_is_another_model() -> None:
    encoding = build((14, 14))
    want = resize_rel_pos_bias_table_simple(encoding.table[0], (24, 24), (47 * 47 + 3, 2))
    table = encoding.fitted_table((24, 24))[0]
    torch.testing.assert_close(table, want, rtol=0, atol=1e-5)
    geometric = resize_rel_pos_bias_table(encoding.table[0], (24, 24), (47 * 47 + 3, 2))
    assert (table - geometric).abs().max() > 0.2


@pytest.mark.parametrize("prefix", [0, 1])
def test_bias_equals_timm_relposbias(prefix: int) -> None:
    encoding = build((5, 7), prefix=prefix)
    module = RelPosBias((5, 7), num_heads=2, prefix_tokens=prefix)
    module.relative_position_bias_table.data.copy_(encoding.table[0])
    want = module.get_bias().detach()
    torch.testing.assert_close(encoding.fit((5, 7))["bias"], want, rtol=0, atol=0)
    torch.testing.assert_close(encoding.in_graph(5, 7)["bias"], want, rtol=0, atol=1e-6)


# The geometric grid


@pytest.mark.parametrize(("rows", "offsets"), [(27, 47), (13, 21), (27, 121)])
def test_geometric_grid_reaches_the_last_offset(rows: int, offsets: int) -> None:
    """d_i = (q^i - 1) / (q - 1): steps grow by one ratio, from 1 to the last offset."""
    grid = geometric_offsets(rows, offsets)
    side = grid[rows // 2 + 1 :]
    steps = side[1:] - side[:-1]
    assert grid[rows // 2] == 0
    assert side[0] == 1
    assert side[-1] == pytest.approx(offsets // 2, rel=1e-3)
    assert steps[1:] / steps[:-1] == pytest.approx(steps[0])
    assert (grid == -grid[::-1]).all()


def test_geometric_matrix_is_linear_between_knots() -> None:
    matrix = geometric_matrix(9, 15)
    knots = geometric_offsets(9, 15)
    assert matrix.shape == (15, 9)
    assert matrix.sum(axis=1) == pytest.approx(1)
    inside = [t for t in range(-7, 8) if abs(t) <= knots[-1]]
    assert [(matrix @ knots)[t + 7] for t in inside] == pytest.approx(inside)


def test_geometric_is_refused_in_a_dynamic_graph() -> None:
    with pytest.raises(UnsupportedError, match="no closed form in the size") as caught:
        build((14, 14), resample="geometric").in_graph(24, 24)
    assert "--buckets" in caught.value.hint


def test_unknown_resample_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="resample 'nearest'"):
        build((2, 2), resample="nearest")


# In the network


def test_network(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    positions_matter: Callable[..., None],
) -> None:
    positions_matter(tiny_vit("relative-2d"))
    ops = export_matches(lambda: tiny_vit("relative-2d", shared=False))
    assert "Gather" in ops


def test_baked_network_holds_the_bias(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]]
) -> None:
    ops = baked_matches(lambda: tiny_vit("relative-2d", resample="geometric"), (5, 8))
    assert not {"Range", "Abs"} & ops
