"""Decomposed relative positions against SAM's own code, by hand, and in both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer_sam import get_decomposed_rel_pos_bias

from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.encodings.decomposed import Decomposed
from vitpe_deploy.encodings.resample import ResampleRule, resample_rows, resample_rows_in_graph


def build(grid: tuple[int, int], prefix: int = 0, **params: Any) -> Decomposed:
    torch.manual_seed(0)
    spec = EncodingSpec(grid, 8, 2, 3, prefix_tokens=prefix, params=params)
    return Decomposed.build(spec).requires_grad_(False)


def query_bias(
    encoding: Decomposed, q: torch.Tensor, grid: tuple[int, int], layer: int
) -> torch.Tensor:
    bias = encoding.query_bias(q, encoding.fit(grid), layer)
    assert bias is not None
    return bias


def test_2x2_by_hand() -> None:
    """Row tables 1, 2, 3 and column tables 10, 20, 30 for the offsets -1, 0, 1; q is one."""
    encoding = build((2, 2), shared=True)
    encoding.rel_pos_h.zero_()[0, :, 0] = torch.tensor([1.0, 2.0, 3.0])
    encoding.rel_pos_w.zero_()[0, :, 0] = torch.tensor([10.0, 20.0, 30.0])
    bias = query_bias(encoding, torch.ones(1, 2, 4, 4), (2, 2), 0)
    assert bias.shape == (1, 2, 4, 4)
    for head in bias[0]:
        assert head.tolist() == [
            [22, 12, 21, 11],
            [32, 22, 31, 21],
            [23, 13, 22, 12],
            [33, 23, 32, 22],
        ]


def test_3x3_literal_definition() -> None:
    encoding = build((3, 3))
    q = torch.randn(2, 2, 9, 4)
    bias = query_bias(encoding, q, (3, 3), 1)
    for query in range(9):
        for key in range(9):
            row = encoding.rel_pos_h[1, query // 3 - key // 3 + 2]
            column = encoding.rel_pos_w[1, query % 3 - key % 3 + 2]
            want = q[:, :, query] @ row + q[:, :, query] @ column
            torch.testing.assert_close(bias[:, :, query, key], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("grid", [(14, 14), (24, 24), (5, 9)])
def test_equals_sam(grid: tuple[int, int]) -> None:
    """C23: 27 -> 47 rows and others; the same queries and tables through timm's SAM."""
    encoding = build((14, 14))
    count = grid[0] * grid[1]
    q = torch.randn(1, 2, count, 4)
    want = get_decomposed_rel_pos_bias(
        q[0], encoding.rel_pos_h[2], encoding.rel_pos_w[2], grid, grid
    )
    torch.testing.assert_close(query_bias(encoding, q, grid, 2)[0], want, rtol=0, atol=3e-5)


def test_rows_27_to_47_in_both_engines(export_dynamic: Callable[..., Any]) -> None:
    """C23 in float64 by torch; the table as a constant and from the graph."""
    torch.manual_seed(0)
    table, rule = torch.randn(27, 8), ResampleRule("bilinear", antialias=False)
    want = F.interpolate(table.double().t()[None], size=47, mode="linear")[0].t()
    torch.testing.assert_close(resample_rows(table, 47, rule).double(), want, rtol=0, atol=1e-5)
    graph = export_dynamic(lambda h, w: resample_rows_in_graph(table, 2 * h - 1, rule))
    for engine, got in graph(24, 3).items():
        np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=1e-5, err_msg=engine)


def test_leading_tokens_get_no_bias() -> None:
    encoding, bare = build((2, 3), prefix=2), build((2, 3))
    q = torch.randn(1, 2, 8, 4)
    bias = query_bias(encoding, q, (2, 3), 0)
    assert bias.shape == (1, 2, 8, 8)
    assert not bias[:, :, :2].any()
    assert not bias[:, :, :, :2].any()
    assert torch.equal(bias[:, :, 2:, 2:], query_bias(bare, q[:, :, 2:], (2, 3), 0))


@pytest.mark.parametrize("shared", [True, False])
def test_three_answers_agree(answers_agree: Callable[..., None], shared: bool) -> None:
    answers_agree(build((6, 6), shared=shared))
    answers_agree(build((4, 7), shared=shared, rule=ResampleRule()))


def test_network(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    positions_matter: Callable[..., None],
) -> None:
    positions_matter(tiny_vit("decomposed"))
    assert "Einsum" not in export_matches(lambda: tiny_vit("decomposed"))


def test_baked_network(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]]
) -> None:
    assert not {"Range", "Abs"} & baked_matches(lambda: tiny_vit("decomposed"), (5, 8))
