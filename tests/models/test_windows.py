"""Window plans against pad, roll and partition written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitpe_deploy.models.windows import (
    BakedPlan,
    WindowPlan,
    gather_tokens,
    grid_sum,
    merge_index,
    plan_windows,
    strides,
)


def literal_windows(x: Tensor, window: tuple[int, int], shift: tuple[int, int]) -> Tensor:
    """[B, h, w, D] -> [B*W, n, D], by pad, roll and slices, as the paper draws it."""
    h, w = x.shape[1:3]
    x = F.pad(x, (0, 0, 0, -w % window[1], 0, -h % window[0]))
    rows, columns = x.shape[1] // window[0], x.shape[2] // window[1]
    shift = (shift[0] if rows > 1 else 0, shift[1] if columns > 1 else 0)
    x = torch.roll(x, (-shift[0], -shift[1]), (1, 2))
    cut = [
        x[b, i * window[0] : (i + 1) * window[0], j * window[1] : (j + 1) * window[1]].flatten(0, 1)
        for b in range(len(x))
        for i in range(rows)
        for j in range(columns)
    ]
    return torch.stack(cut)


def literal_mask(h: int, w: int, window: tuple[int, int], shift: tuple[int, int]) -> Tensor:
    """[W, n, n]: tokens see each other when they are neighbours of the map, not across its ends."""
    rows, columns = -(-h // window[0]), -(-w // window[1])
    shift = (shift[0] if rows > 1 else 0, shift[1] if columns > 1 else 0)
    side = torch.zeros(1, rows * window[0], columns * window[1], 1)
    side[:, : shift[0]] += 1  # what comes round to the bottom
    side[:, :, : shift[1]] += 2
    side = literal_windows(side, window, shift).squeeze(-1)
    return (side.unsqueeze(1) != side.unsqueeze(2)) * -100.0


def plan_of(h: int, w: int, window: tuple[int, int], shift: tuple[int, int]) -> WindowPlan:
    return plan_windows((h, w), window, shift if any(shift) else None)


sizes = st.tuples(st.integers(1, 11), st.integers(1, 11))
windows = st.tuples(st.integers(1, 5), st.integers(1, 5))


@settings(max_examples=50, deadline=None)
@given(size=sizes, window=windows, shifted=st.booleans())
def test_gathers_are_pad_roll_and_partition(
    size: tuple[int, int], window: tuple[int, int], shifted: bool
) -> None:
    shift = (window[0] // 2, window[1] // 2) if shifted else (0, 0)
    x = torch.arange(1.0, 2 * size[0] * size[1] + 1).reshape(2, *size, 1)  # no token is zero
    plan = plan_of(*size, window, shift)
    cut = plan.partition(x.flatten(1, 2))
    assert torch.equal(cut, literal_windows(x, window, shift))
    assert torch.equal(plan.merge(cut, 2), x.flatten(1, 2))


@settings(max_examples=50, deadline=None)
@given(size=sizes, window=windows)
def test_masks_follow_the_seams(size: tuple[int, int], window: tuple[int, int]) -> None:
    shift = (window[0] // 2, window[1] // 2)
    plan = plan_of(*size, window, shift)
    expected = literal_mask(*size, window, shift)
    bias = plan.bias(None, 3)
    if not any(shift):
        assert bias is None
    else:
        assert bias is not None
        assert torch.equal(bias, expected.repeat(3, 1, 1).unsqueeze(1))


def test_masks_by_hand() -> None:
    """4x4 map, 2x2 windows, shift 1: nothing hidden top left, every seam bottom right."""
    plan = plan_of(4, 4, (2, 2), (1, 1))
    bias = plan.bias(torch.zeros(1, 1, 4, 4), 1)
    assert bias is not None
    hidden = (bias[:, 0] < 0).int()  # [4 windows, 4, 4]
    assert hidden[0].tolist() == [[0] * 4] * 4
    assert hidden[1].tolist() == [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]
    assert hidden[2].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert hidden[3].tolist() == [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
    assert plan.into.tolist() == [5, 6, 9, 10, 7, 4, 11, 8, 13, 14, 1, 2, 15, 12, 3, 0]


def test_bias_is_added_for_every_window_and_image() -> None:
    plan = plan_of(6, 6, (3, 3), (1, 1))
    bias = torch.randn(1, 2, 9, 9)
    added = plan.bias(bias, 2)
    assert added is not None
    assert torch.equal(
        added, bias + literal_mask(6, 6, (3, 3), (1, 1)).repeat(2, 1, 1).unsqueeze(1)
    )


def test_a_small_map_clamps_the_window_and_keeps_the_bias_of_each_offset() -> None:
    plan = plan_windows((2, 9), (4, 4), (2, 2), small_map="clamp")
    assert plan.window == (2, 4)
    assert len(plan.into) == 2 * 12  # no row of padding, three columns of it
    row, column = torch.arange(4).repeat_interleave(4), torch.arange(4).repeat(4)
    offsets = (row.unsqueeze(1) - row) * 10.0 + (column.unsqueeze(1) - column)
    bias = plan.bias(offsets.reshape(1, 1, 16, 16), 1)
    assert bias is not None
    assert torch.equal(bias[0, 0], offsets[:8, :8])  # the first two rows of the window
    assert bias[2, 0, 0, 3] == offsets[0, 3] - 100  # columns still shift


def test_three_axes() -> None:
    """Time, height and width: the outermost axis behaves as the others do."""
    x = torch.arange(1.0, 4 * 3 * 5 + 1).reshape(1, 4, 3, 5, 1)
    plan = plan_windows((4, 3, 5), (2, 3, 2), (1, 1, 1))
    cut = plan.partition(x.reshape(1, -1, 1)).squeeze(-1)
    rolled = torch.roll(F.pad(x, (0, 0, 0, 1)), (-1, -1), (1, 3))  # one window of rows: no shift
    blocks = rolled.reshape(2, 2, 1, 3, 3, 2).permute(0, 2, 4, 1, 3, 5)
    assert torch.equal(cut, blocks.reshape(6, 12))
    assert torch.equal(plan.merge(cut.unsqueeze(-1), 1), x.reshape(1, -1, 1))
    bias = plan.bias(None, 1)
    assert bias is not None
    assert [int((window < 0).sum()) for window in bias] == [0, 0, 72, 72, 72, 108]


@settings(max_examples=50, deadline=None)
@given(size=sizes)
def test_merging_joins_2x2_tokens_columns_outermost(size: tuple[int, int]) -> None:
    h, w = size
    x = torch.arange(1.0, h * w + 1).reshape(1, h, w, 1)
    index, padded = merge_index(size)
    joined = gather_tokens(x.flatten(1, 2), index, padded=padded).reshape(-1, 4)
    even = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
    parts = [even[:, i::2, j::2] for i, j in ((0, 0), (1, 0), (0, 1), (1, 1))]
    assert torch.equal(joined, torch.cat(parts, dim=-1).reshape(-1, 4))
    assert padded == bool(h % 2 or w % 2)


def test_a_baked_plan_is_the_plan() -> None:
    plan = plan_of(5, 6, (4, 4), (2, 2))
    baked = BakedPlan(plan)
    assert {name for name, _ in baked.named_buffers()} == {"into", "back", "masks", "kind"}
    assert not baked.state_dict()
    x = torch.randn(2, 30, 3)
    assert torch.equal(baked().partition(x), plan.partition(x))


def test_raster_arithmetic() -> None:
    assert strides((2, 3, 4)) == [12, 4, 1]
    assert grid_sum([torch.tensor([0, 10]), torch.tensor([1, 2])]).tolist() == [[1, 2], [11, 12]]
    either = grid_sum([torch.tensor([False, True]), torch.tensor([False, True])])
    assert either.tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize("size", [(1, 1), (3, 4)])
def test_one_window_is_never_shifted(size: tuple[int, int]) -> None:
    plan = plan_of(*size, (4, 4), (2, 2))
    assert plan.into[:2].tolist() == [0, 1]  # the first token stays first; 1 of 1 is padding
    bias = plan.bias(None, 1)
    assert bias is not None
    assert not bias.any()
