"""Long texts: refusal, and three ways around it."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.text_chunks import (
    Embeddings,
    TextWindow,
    TokenIds,
    encode_chunks,
    keep_spans,
    split_chunks,
    truncate_tail,
)

START, END = 900, 999
WINDOW = TextWindow(max_length=8, start_id=START, end_id=END)

words_of_any_length = st.lists(st.integers(1, 800), max_size=40)


def text(count: int) -> list[int]:
    """``count`` words 1, 2, 3... between start and end."""
    return [START, *range(1, count + 1), END]


def embed(pieces: TokenIds) -> Embeddings:
    """An encoder whose answer tells which words it saw: their sum, and 1."""
    words = np.where((pieces == START) | (pieces == END), 0, pieces)
    return np.stack([words.sum(1), np.ones(len(pieces))], axis=1).astype(np.float32)


def test_short_text_is_padded() -> None:
    padded = WINDOW.pad(text(3))
    assert padded.dtype == np.int64
    assert padded.tolist() == [START, 1, 2, 3, END, 0, 0, 0]
    with_end = TextWindow(8, START, END, pad_id=END)
    assert with_end.pad(text(3)).tolist() == [START, 1, 2, 3, END, END, END, END]
    assert WINDOW.pad(text(6)).tolist() == text(6)


def test_long_text_is_refused_unless_asked() -> None:
    """S06."""
    clip = TextWindow()
    ids = [49406, *range(1, 77), 49407]
    assert len(ids) == 78
    with pytest.raises(SizeError, match=r"78 tokens .* maximum of 77"):
        clip.pad(ids)


def test_truncate_keeps_the_end_token() -> None:
    assert truncate_tail(text(10), WINDOW).tolist() == [START, 1, 2, 3, 4, 5, 6, END]


def test_spans_come_first_and_the_beginning_fills_up() -> None:
    kept = keep_spans(text(20), [(15, 17), (10, 12)], WINDOW)
    assert kept.tolist() == [START, 1, 2, 10, 11, 15, 16, END]


def test_spans_may_overlap_and_touch_the_special_tokens() -> None:
    kept = keep_spans(text(20), [(0, 2), (18, 22), (19, 21)], WINDOW)
    assert kept.tolist() == [START, 1, 2, 3, 18, 19, 20, END]


def test_spans_without_a_start_token() -> None:
    window = TextWindow(max_length=4, start_id=None, end_id=END)
    assert keep_spans([*range(1, 11), END], [(8, 10)], window).tolist() == [1, 9, 10, END]


def test_spans_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SizeError, match="7 tokens, more than the 6"):
        keep_spans(text(20), [(10, 17)], WINDOW)


@pytest.mark.parametrize("span", [(5, 5), (-1, 3), (4, 23), (7, 2)])
def test_spans_outside_are_refused(span: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="not inside a text of 22 tokens"):
        keep_spans(text(20), [span], WINDOW)


def test_chunks_of_fourteen_words() -> None:
    pieces, weights = split_chunks(text(14), WINDOW)
    assert pieces.tolist() == [
        [START, 1, 2, 3, 4, 5, 6, END],
        [START, 7, 8, 9, 10, 11, 12, END],
        [START, 13, 14, END, 0, 0, 0, 0],
    ]
    assert weights.tolist() == [6 / 14, 6 / 14, 2 / 14]


def test_chunks_with_overlap() -> None:
    pieces, weights = split_chunks(text(9), WINDOW, overlap=2)
    assert pieces.tolist() == [
        [START, 1, 2, 3, 4, 5, 6, END],
        [START, 5, 6, 7, 8, 9, END, 0],
    ]
    assert weights.tolist() == [6 / 9, 3 / 9]


def test_average_is_weighted_by_words() -> None:
    """Sums 21, 57, 27 with weights 6, 6, 2 of 14: (126 + 342 + 54) / 14."""
    result = encode_chunks(embed, text(14), WINDOW)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, [522 / 14, 1], rtol=1e-6)


def test_one_piece_is_the_plain_answer() -> None:
    result = encode_chunks(embed, text(6), WINDOW)
    assert result.tolist() == embed(WINDOW.pad(text(6))[None])[0].tolist()


def test_empty_text() -> None:
    pieces, weights = split_chunks([START, END], WINDOW)
    assert pieces.tolist() == [[START, END, 0, 0, 0, 0, 0, 0]]
    assert weights.tolist() == [1]


@settings(deadline=None)
@given(words_of_any_length, st.integers(0, 5))
def test_chunks_cover_every_word_once(words: list[int], overlap: int) -> None:
    pieces, weights = split_chunks([START, *words, END], WINDOW, overlap=overlap)
    inside = [[t for t in piece.tolist() if t not in (START, END, 0)] for piece in pieces]
    joined = inside[0]
    for before, piece in pairwise(inside):
        assert before[len(before) - overlap :] == piece[:overlap]
        assert len(piece) > overlap
        joined = joined + piece[overlap:]
    assert joined == words
    assert weights.sum() == pytest.approx(1)


@settings(deadline=None)
@given(words_of_any_length, st.data())
def test_all_ways_agree_on_texts_that_fit(words: list[int], data: st.DataObject) -> None:
    ids = [START, *words[:6], END]
    first = data.draw(st.integers(0, len(ids) - 1))
    last = data.draw(st.integers(first + 1, len(ids)))
    padded = WINDOW.pad(ids).tolist()
    assert truncate_tail(ids, WINDOW).tolist() == padded
    assert keep_spans(ids, [(first, last)], WINDOW).tolist() == padded
    assert split_chunks(ids, WINDOW)[0].tolist() == [padded]


@settings(deadline=None)
@given(st.integers(7, 40), st.data())
def test_kept_spans_are_kept_in_order(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count))
    last = data.draw(st.integers(first + 1, min(first + 6, count + 1)))
    kept = keep_spans(text(count), [(first, last)], WINDOW).tolist()[1:-1]
    assert set(range(first, last)) <= set(kept)
    assert kept == sorted(kept)
    assert len(kept) == 6


@pytest.mark.parametrize("ids", [[], [1, 2, END], [START, 1, 2], [START], [END]])
def test_texts_without_their_frame_are_refused(ids: list[int]) -> None:
    with pytest.raises(UsageError, match=r"\[900, \.\.\., 999\]"):
        truncate_tail(ids, WINDOW)


def test_overlap_must_leave_something_new() -> None:
    with pytest.raises(UsageError, match=r"0\.\.5, got 6"):
        split_chunks(text(9), WINDOW, overlap=6)


def test_window_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="max_length 2 leaves no room"):
        TextWindow(max_length=2)


def test_encoder_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\[3, P\] for 3 pieces, got \[2, 2\]"):
        encode_chunks(lambda pieces: embed(pieces)[:2], text(14), WINDOW)


def test_devices_need_no_torch() -> None:
    code = "import sys, vitpe_deploy.text_chunks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
