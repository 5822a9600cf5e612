"""The bias of a video window: worked examples, torchvision and F.interpolate as oracles."""

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
from vitpe_deploy.encodings.relative_3d import Relative3D, volume_index
from vitpe_deploy.errors import UsageError

Window = tuple[int, int, int]
WINDOWS: tuple[Grid, ...] = ((3, 4), (2, 2), (5, 7), (6, 3), (1, 1))


def build(window: Window, heads: int = 2, depth: int = 3, **params: Any) -> Relative3D:
    torch.manual_seed(0)
    t, *grid = window
    spec = EncodingSpec(
        (grid[0], grid[1]), heads * 4, heads, depth, prefix_tokens=0, frames=t, params=params
    )
    return Relative3D.build(spec).requires_grad_(False)


def literal(table: Tensor, t: int, h: int, w: int) -> Tensor:
    """Section 3.2 of the paper, pair by pair: [L, rows, M] -> [L, M, n, n]."""
    n = t * h * w
    table = table.reshape(len(table), 2 * t - 1, 2 * h - 1, 2 * w - 1, -1)
    bias = torch.empty(len(table), table.shape[-1], n, n)
    at = [(a, b, c) for a in range(t) for b in range(h) for c in range(w)]
    for q, (qt, qh, qw) in enumerate(at):
        for k, (kt, kh, kw) in enumerate(at):
            bias[:, :, q, k] = table[:, qt - kt + t - 1, qh - kh + h - 1, qw - kw + w - 1]
    return bias


def test_a_flat_window_is_the_2x2_example() -> None:
    expected = [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    for window in [(2, 2, 1), (2, 1, 2), (1, 2, 2)]:
        assert volume_index(*window).tolist() == expected


def test_2x2x2_window_by_hand() -> None:
    index = volume_index(2, 2, 2)
    assert index[0].tolist() == [13, 12, 10, 9, 4, 3, 1, 0]
    assert index[3].tolist() == [17, 16, 14, 13, 8, 7, 5, 4]
    assert index[4].tolist() == [22, 21, 19, 18, 13, 12, 10, 9]
    assert index[7].tolist() == [26, 25, 23, 22, 17, 16, 14, 13]


@pytest.mark.parametrize("window", [(8, 7, 7), (2, 3, 4), (4, 1, 2)])
def test_index_agrees_with_torchvision(window: Window) -> None:
    from torchvision.models.video.swin_transformer import ShiftedWindowAttention3d

    theirs = ShiftedWindowAttention3d(4, list(window), [0, 0, 0], 2)
    assert torch.equal(volume_index(*window), theirs.relative_position_index)
    table = build(window).table
    assert table.shape == (3, len(theirs.relative_position_bias_table), 2)


@settings(max_examples=50, deadline=None)
@given(t=st.integers(1, 3), h=st.integers(1, 3), w=st.integers(1, 3))
def test_every_pair_reads_the_row_of_its_offset(t: int, h: int, w: int) -> None:
    encoding = build((t, h, w), heads=3)
    bias = encoding.positions((h, w))["bias"]
    assert torch.equal(bias, literal(encoding.table, t, h, w))


def test_each_layer_has_its_own_table_unless_shared() -> None:
    own, shared = build((2, 2, 2)), build((2, 2, 2), shared=True)
    positions = own.positions((2, 2))
    for layer in range(3):
        bias = own.attention_bias(positions, layer)
        assert torch.equal(bias, literal(own.table[layer : layer + 1], 2, 2, 2))
    assert shared.table.shape == (1, 27, 2)
    positions = shared.positions((2, 2))
    assert torch.equal(shared.attention_bias(positions, 2), literal(shared.table, 2, 2, 2))


@pytest.mark.parametrize("window", WINDOWS)
def test_another_window_resamples_each_time_offset_like_a_picture(window: Grid) -> None:
    encoding = build((2, 3, 4))
    pictures = encoding.table.reshape(3, 3, 5, 7, 2).permute(0, 1, 4, 2, 3).flatten(0, 1)
    size = (2 * window[0] - 1, 2 * window[1] - 1)
    pictures = F.interpolate(pictures, size, mode="bicubic")  # [L*T, M, rows, columns]
    table = pictures.unflatten(0, (3, 3)).permute(0, 1, 3, 4, 2).flatten(1, 3)
    expected = literal(table, 2, *window)
    for positions in (
        encoding.positions(window),
        encoding.fit(window),
        encoding.in_graph(*window),
    ):
        torch.testing.assert_close(positions["bias"], expected, rtol=0, atol=1e-5)


def test_dynamic_window_in_both_engines(export_dynamic: Callable[..., Any]) -> None:
    encoding = build((2, 3, 4))
    graph = export_dynamic(lambda h, w: encoding.in_graph(h, w)["bias"])
    assert not {"Resize", "Loop", "If", "ScatterND"} & set(graph.operators)
    for window in WINDOWS:
        expected = encoding.positions(window)["bias"].numpy()
        for engine, got in graph(*window).items():
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4, err_msg=engine)


def test_lives_in_video_only() -> None:
    assert encodings.get_for("relative-3d", "video") is Relative3D
    with pytest.raises(UsageError, match=r"relative-3d does not fit the swin.*: video"):
        encodings.get_for("relative-3d", "swin")


def test_describes_itself_for_the_manifest() -> None:
    description = build((2, 7, 7)).describe()
    assert (description.kind, description.native_grid) == ("relative-3d", (7, 7))
    assert description.resample_rule == "bicubic"
    assert description.params == {"time_steps": 2, "shared": False}
