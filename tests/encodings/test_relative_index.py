"""Index tables against a slow literal definition and by hand."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitpe_deploy.encodings.relative_index import (
    gather_grid,
    gather_line,
    grid_index,
    offset_index,
    with_leading_tokens,
)

sides = st.integers(1, 6)


def literal_index(h: int, w: int) -> list[list[int]]:
    """One pair after the other, in words: count offsets from the most negative one."""
    cells = [(y, x) for y in range(h) for x in range(w)]
    numbers: dict[tuple[int, int], int] = {}
    for dy in range(-(h - 1), h):
        for dx in range(-(w - 1), w):
            numbers[dy, dx] = len(numbers)
    return [[numbers[qy - ky, qx - kx] for ky, kx in cells] for qy, qx in cells]


def test_three_on_a_line() -> None:
    assert offset_index(3).tolist() == [[2, 1, 0], [3, 2, 1], [4, 3, 2]]


def test_2x2_by_hand() -> None:
    """Nine offsets; 4 is none, 3 one step to the left, 1 one step up."""
    assert grid_index(2, 2).tolist() == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]


def test_3x3_corners_by_hand() -> None:
    """25 offsets: the first cell reads from the middle down to 0, the last one up to 24."""
    index = grid_index(3, 3)
    assert index[0].tolist() == [12, 11, 10, 7, 6, 5, 2, 1, 0]
    assert index[8].tolist() == [24, 23, 22, 19, 18, 17, 14, 13, 12]


def test_window_of_seven() -> None:
    """S05: 169 rows, values 0..168, 84 for no offset."""
    index = grid_index(7, 7)
    assert index[0, 0] == 84
    assert sorted(set(index.flatten().tolist())) == list(range(169))


@given(sides, sides)
@settings(deadline=None, max_examples=25)
def test_index_is_the_literal_definition(h: int, w: int) -> None:
    index = grid_index(h, w)
    assert index.tolist() == literal_index(h, w)
    assert index.min() == 0
    assert index.max() == (2 * h - 1) * (2 * w - 1) - 1
    assert offset_index(h).tolist() == literal_index(h, 1)


@given(sides, sides)
@settings(deadline=None, max_examples=25)
def test_gather_by_axes_equals_one_flat_gather(h: int, w: int) -> None:
    table = torch.arange(3.0 * (2 * h - 1) * (2 * w - 1)).reshape(3, 2 * h - 1, 2 * w - 1)
    assert torch.equal(gather_grid(table, h, w), table.flatten(1)[:, grid_index(h, w)])
    line = table[:, :, 0]
    assert torch.equal(gather_line(line, h), line[:, offset_index(h)])


def test_leading_tokens_frame_the_bias() -> None:
    """Two heads, one patch pair value 5 and 6, two leading tokens."""
    values = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    bias = torch.tensor([[[5.0]], [[6.0]]])
    framed = with_leading_tokens(bias, 2, values)
    assert framed.tolist() == [
        [[3.0, 3.0, 1.0], [3.0, 3.0, 1.0], [2.0, 2.0, 5.0]],
        [[30.0, 30.0, 10.0], [30.0, 30.0, 10.0], [20.0, 20.0, 6.0]],
    ]
    assert with_leading_tokens(bias, 0, values) is bias
