"""The bias of a Swin window: worked examples, torchvision and F.interpolate as oracles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import EncodingSpec, Grid
from vitpe_deploy.encodings.relative_index import grid_index
from vitpe_deploy.encodings.resample import ResampleRule
from vitpe_deploy.encodings.window_bias import WindowBias
from vitpe_deploy.errors import UsageError

WINDOWS: tuple[Grid, ...] = ((7, 7), (4, 4), (12, 12), (5, 8), (8, 3), (1, 1))


def build(grid: Grid, heads: int = 2, **params: Any) -> WindowBias:
    torch.manual_seed(0)
    spec = EncodingSpec(grid, heads * 4, heads, 1, prefix_tokens=0, params=params)
    return WindowBias.build(spec).requires_grad_(False)


def counted(grid: Grid, heads: int = 1) -> WindowBias:
    """Row r of head m holds r + 1000 m."""
    encoding = build(grid, heads)
    rows = torch.arange(float(len(encoding.table))).unsqueeze(1)
    encoding.table.copy_(rows + 1000 * torch.arange(float(heads)))
    return encoding


def literal(table: Tensor, h: int, w: int) -> Tensor:
    """Equation 4 of the paper, pair by pair: [M, h*w, h*w]."""
    bias = torch.empty(table.shape[1], h * w, h * w)
    for q in range(h * w):
        for k in range(h * w):
            row = q // w - k // w + h - 1
            column = q % w - k % w + w - 1
            bias[:, q, k] = table[row * (2 * w - 1) + column]
    return bias


def test_window_7_reads_the_169_rows_of_the_published_table() -> None:
    encoding = counted((7, 7), heads=3)
    bias = encoding.positions((7, 7))["bias"]
    assert encoding.table.shape == (169, 3)
    assert bias.shape == (1, 3, 49, 49)
    assert bias[0, 0, 0, 0] == 84
    assert set(bias[0, 0].flatten().tolist()) == set(range(169))
    assert torch.equal(bias[0, 2], bias[0, 0] + 2000)


def test_2x2_window_by_hand() -> None:
    bias = counted((2, 2)).positions((2, 2))["bias"][0, 0]
    assert bias.tolist() == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]


def test_3x3_window_by_hand() -> None:
    bias = counted((3, 3)).positions((3, 3))["bias"][0, 0]
    assert bias[0].tolist() == [12, 11, 10, 7, 6, 5, 2, 1, 0]
    assert bias[1].tolist() == [13, 12, 11, 8, 7, 6, 3, 2, 1]
    assert bias[4].tolist() == [18, 17, 16, 13, 12, 11, 8, 7, 6]
    assert bias[8].tolist() == [24, 23, 22, 19, 18, 17, 14, 13, 12]
    assert torch.equal(bias, grid_index(3, 3).float())


@settings(max_examples=50, deadline=None)
@given(h=st.integers(1, 5), w=st.integers(1, 5), heads=st.integers(1, 3))
def test_every_pair_reads_the_row_of_its_offset(h: int, w: int, heads: int) -> None:
    encoding = build((h, w), heads)
    assert torch.equal(encoding.positions((h, w))["bias"][0], literal(encoding.table, h, w))


@pytest.mark.parametrize("window", [(7, 7), (3, 5)])
def test_agrees_with_torchvision(window: Grid) -> None:
    from torchvision.models.swin_transformer import ShiftedWindowAttention

    theirs = ShiftedWindowAttention(12, list(window), [0, 0], 3)
    encoding = build(window, heads=3)
    encoding.table.copy_(torch.randn_like(encoding.table))
    theirs.relative_position_bias_table.data = encoding.table
    assert torch.equal(encoding.positions(window)["bias"], theirs.get_relative_position_bias())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    "rule", [ResampleRule("bicubic", antialias=False), ResampleRule("bilinear")]
)
def test_another_window_resamples_the_table_like_a_picture(
    window: Grid, rule: ResampleRule
) -> None:
    encoding = build((7, 7), heads=3, rule=rule)
    picture = encoding.table.reshape(13, 13, 3).permute(2, 0, 1).unsqueeze(0)
    rows, columns = 2 * window[0] - 1, 2 * window[1] - 1
    if columns == 1 and rule.antialias:  # torch misreads this one; the plain rule covers 1x1
        return
    picture = F.interpolate(
        picture, (rows, columns), mode=rule.interpolation, antialias=rule.antialias
    )
    expected = literal(picture[0].flatten(1).t(), *window).unsqueeze(0)
    for positions in (
        encoding.positions(window),
        encoding.fit(window),
        encoding.in_graph(*window),
    ):
        torch.testing.assert_close(positions["bias"], expected, rtol=0, atol=1e-5)


def test_fit_starts_from_the_original_table() -> None:
    encoding = build((4, 4))
    native = encoding.fit((4, 4))["bias"]
    encoding.fit((6, 6))
    assert torch.equal(encoding.fit((4, 4))["bias"], native)
    assert torch.equal(native[0], literal(encoding.table, 4, 4))


def test_dynamic_window_in_both_engines(export_dynamic: Callable[..., Any]) -> None:
    encoding = build((7, 7))
    graph = export_dynamic(lambda h, w: encoding.in_graph(h, w)["bias"])
    assert not {"Resize", "Loop", "If", "ScatterND"} & set(graph.operators)
    for window in WINDOWS:
        expected = encoding.positions(window)["bias"].numpy()
        for engine, got in graph(*window).items():
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4, err_msg=engine)


def test_lives_in_swin_only() -> None:
    assert encodings.get_for("window-bias", "swin") is WindowBias
    with pytest.raises(UsageError, match=r"window-bias does not fit the vit.*: swin"):
        encodings.get_for("window-bias", "vit")


def test_describes_itself_for_the_manifest() -> None:
    description = build((7, 7)).describe()
    assert (description.kind, description.native_grid) == ("window-bias", (7, 7))
    assert description.resample_rule == "bicubic"
