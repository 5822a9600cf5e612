from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vitpe_deploy.plot.similarity import (
    bias_maps,
    cosine_similarity,
    matching_patch,
    mosaic,
    rotary_features,
    rotary_steps,
    similarity_maps,
)

ROWS = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 9), st.integers(1, 6)),
    elements=st.floats(-10, 10).filter(lambda x: x == 0 or abs(x) > 1e-3),
)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_similarity_is_the_literal_loop(rows):
    found = cosine_similarity(rows)
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
            if lengths == 0:
                assert math.isnan(found[i, j])
            else:
                right = sum(x * y for x, y in zip(a, b, strict=True)) / lengths
                assert found[i, j] == pytest.approx(right, abs=1e-12)


def test_by_hand():
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [-3.0, 0.0]])
    right = [[1, 0.5**0.5, -1], [0.5**0.5, 1, -(0.5**0.5)], [-1, -(0.5**0.5), 1]]
    np.testing.assert_allclose(cosine_similarity(rows), right, atol=1e-15)


def test_maps_skip_the_prefix_and_peak_at_their_own_place():
    rows = np.random.default_rng(0).standard_normal((2 + 3 * 5, 8))
    maps = similarity_maps(rows, (3, 5), leading=2)
    assert maps.shape == (3, 5, 3, 5)
    for i in range(3):
        for j in range(5):
            assert np.unravel_index(maps[i, j].argmax(), (3, 5)) == (i, j)
    a, b = rows[2 + 1 * 5 + 4], rows[2 + 2 * 5 + 0]
    right = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert maps[1, 4, 2, 0] == pytest.approx(right)
    assert maps[2, 0, 1, 4] == pytest.approx(right)


def test_bias_maps_read_the_line_of_the_query():
    bias = np.arange(2 * 7 * 7, dtype=float).reshape(2, 7, 7)  # 1 prefix token, grid 2x3
    maps = bias_maps(bias, (2, 3), (1, 0), leading=1)
    # query 1 + 1*3 + 0 = 4, keys 1..6
    np.testing.assert_array_equal(maps[0], [[29, 30, 31], [32, 33, 34]])
    np.testing.assert_array_equal(maps[1], [[78, 79, 80], [81, 82, 83]])


@pytest.mark.parametrize(
    ("patch", "old", "new", "right"),
    [
        ((3, 3), (6, 6), (9, 9), (5, 5)),
        ((0, 5), (6, 6), (9, 9), (0, 8)),
        ((5, 5), (6, 6), (3, 12), (2, 11)),
        ((2, 4), (3, 5), (3, 5), (2, 4)),
    ],
)
def test_matching_patch_covers_the_centre(patch, old, new, right):
    assert matching_patch(patch, old, new) == right


def test_rotary_similarity_is_the_mean_cosine_of_angle_differences():
    angles = np.random.default_rng(1).uniform(-9, 9, (2, 5, 4))  # [M, N, P]
    features = rotary_features(np.cos(angles), np.sin(angles))
    found = cosine_similarity(features)
    for i in range(5):
        for j in range(5):
            assert found[i, j] == pytest.approx(np.cos(angles[:, i] - angles[:, j]).mean())


def test_rotary_steps_find_the_frequencies_of_both_axes():
    rows, columns = np.array([0.7, -0.3, 2.5]), np.array([0.1, 3.0, -1.2])
    y, x = np.divmod(np.arange(4 * 6), 6)
    angle = np.concatenate([np.zeros((1, 3)), y[:, None] * rows + x[:, None] * columns])
    steps = rotary_steps(np.cos(angle), np.sin(angle), (4, 6), leading=1)
    np.testing.assert_allclose(steps, np.stack([rows, columns], axis=1), atol=1e-12)


def test_mosaic_leaves_empty_lines_between_maps_only():
    maps = np.arange(1 * 2 * 2 * 2, dtype=float).reshape(1, 2, 2, 2)
    np.testing.assert_array_equal(mosaic(maps), [[0, 1, np.nan, 4, 5], [2, 3, np.nan, 6, 7]])
