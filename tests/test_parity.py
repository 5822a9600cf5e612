"""The judgement itself: what passes, what fails, and what must never pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.parity import Comparison, compare, least_agreement, make_case
from vitpe_deploy.request import Resolution, Tolerance

RIGHT = [np.array([[1.0, -4.0, 2.0]]), np.array([[0.5, 3.0, -1.0]])]


def nearby(delta: float) -> list[np.ndarray]:
    return [RIGHT[0] + np.array([[delta, 0, 0]]), RIGHT[1].copy()]


def test_numbers_are_those_of_the_definition() -> None:
    result = compare(RIGHT, nearby(0.02), classes=True)
    assert result.max_abs == pytest.approx(0.02)
    assert result.max_rel == pytest.approx(0.02 / 4)
    assert result.top1 == 1.0
    assert result.cosine == pytest.approx(
        float((RIGHT[0] * nearby(0.02)[0]).sum())
        / float(np.linalg.norm(RIGHT[0]) * np.linalg.norm(nearby(0.02)[0]))
    )


@given(st.floats(1e-9, 1.0), st.floats(1e-9, 1.0), st.floats(0, 0.5))
def test_passes_exactly_inside_the_tolerance(delta: float, rtol: float, atol: float) -> None:
    result = compare(RIGHT, nearby(delta), classes=False)
    assert result.max_abs is not None
    inside = result.max_abs <= atol + rtol * 4.0
    assert result.passes(Tolerance(rtol, atol)) == inside


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_never_pass(bad: float) -> None:
    given_values = nearby(0.0)
    given_values[1][0, 1] = bad
    result = compare(RIGHT, given_values, classes=False)
    assert not result.passes(Tolerance(1e9, 1e9))
    assert "1 of 3" in (result.problem or "")
    reference = [a.copy() for a in RIGHT]
    reference[0][0, 0] = bad
    assert not compare(reference, reference, classes=False).passes(Tolerance(1e9, 1e9))


@pytest.mark.parametrize(
    ("reference", "given_values", "words"),
    [
        ([np.ones((1, 3)), np.ones((1, 3))], [np.ones((1, 3))] * 2, "does not depend on the input"),
        (RIGHT, [a[:, :2] for a in RIGHT], "shape [1, 2] instead of [1, 3]"),
        ([np.ones((1, 0))], [np.ones((1, 0))], "empty"),
        ([np.zeros((1, 3))], [np.zeros((1, 3))], "all zeros"),
    ],
)
def test_what_cannot_be_compared_never_passes(
    reference: list[np.ndarray], given_values: list[np.ndarray], words: str
) -> None:
    result = compare(reference, given_values, classes=False)
    assert words in (result.problem or "")
    assert not result.passes(Tolerance(1e9, 1e9))


@pytest.mark.parametrize(
    ("inputs", "floor", "criterion"),
    [
        (10, 0.9, "top1"),
        (5, 0.8, "top1"),
        (100, 0.99, "top1"),
        (99, 0.99, "cosine"),
        (9, 0.9, "cosine"),
        (1, 0.5, "cosine"),
        (100, 1.0, "cosine"),
    ],
)
def test_agreement_is_top1_where_one_that_differs_would_still_pass(
    inputs: int, floor: float, criterion: str
) -> None:
    right = np.eye(2)[np.zeros(inputs, dtype=int)]
    given_values = right.copy()
    given_values[0] = given_values[0, ::-1]
    top1 = float((right.argmax(-1) == given_values.argmax(-1)).mean())
    found = least_agreement(Comparison(cosine=0.25, top1=top1), inputs, floor)
    assert found == ((top1, "top1") if criterion == "top1" else (0.25, "cosine"))
    assert (criterion == "top1") == (top1 >= floor)


def test_a_floor_that_all_inputs_but_one_reach_is_judged_by_top1() -> None:
    for inputs in range(2, 300):
        share = (inputs - 1) / inputs
        found = least_agreement(Comparison(cosine=0.0, top1=share), inputs, share)
        assert found == (share, "top1")


def test_case_has_distinct_items_in_every_batch() -> None:
    case = make_case(Resolution(32, 48), 3)
    assert len(case.inputs) == 4
    for x in case.inputs:
        assert x.shape == (3, 3, 32, 48)
        assert x.dtype == np.float32
        assert not np.array_equal(x[0], x[1])
        assert not np.array_equal(x[1], x[2])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_case_has_the_channels_of_the_model(channels: int) -> None:
    case = make_case(Resolution(16, 16), 1, layout=ImageInput(channels))
    assert all(x.shape == (1, channels, 16, 16) for x in case.inputs)
