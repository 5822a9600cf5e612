"""Percentiles, intervals and verdicts, against closed forms and known coverage."""

from __future__ import annotations

import numpy as np
import pytest

from vitpe_deploy.bench import statistics as s
from vitpe_deploy.errors import UsageError


def test_summary_of_one_to_hundred() -> None:
    found = s.summarise([float(k) for k in range(100, 0, -1)])
    assert (found.min, found.max, found.median, found.mean) == (1, 100, 50.5, 50.5)
    assert found.p90 == pytest.approx(90.1)
    assert found.p95 == pytest.approx(95.05)
    assert found.p99 == pytest.approx(99.01)
    assert found.cv == pytest.approx(np.sqrt((100**2 - 1) / 12) / 50.5)
    with pytest.raises(UsageError, match="no samples"):
        s.summarise([])


@pytest.mark.parametrize(
    ("centre", "low", "high", "expected"),
    [
        (1.0, 0.98, 1.02, "no difference"),
        (1.01, 1.005, 1.015, "no difference"),  # known, and too small to matter
        (1.005, 0.99, 1.0299, "no difference"),  # contains 1, narrower than 4 %
        (1.005, 0.99, 1.031, "unsure"),
        (1.0, 0.9, 1.1, "unsure"),
        (1.05, 1.001, 1.08, "slower"),
        (1.0037, 1.0013, 1.049, "unsure"),  # excludes 1 by chance: its centre is nearly 1
        (1 / 1.05, 0.93, 0.999, "faster"),
        (0.99, 0.96, 0.999, "unsure"),
    ],
)
def test_verdicts(centre: float, low: float, high: float, expected: str) -> None:
    assert s.verdict(centre, low, high) == expected


def test_different_takes_more_than_one_chance_in_twenty() -> None:
    """An interval of 95 % that misses 1 is not enough when that of 99 % holds it."""
    assert s.verdict(1.03, 1.002, 1.06, (0.995, 1.07)) == "unsure"
    assert s.verdict(1.03, 1.002, 1.06, (1.001, 1.07)) == "slower"
    assert s.verdict(0.96, 0.94, 0.998, (0.93, 1.01)) == "unsure"
    assert s.verdict(0.96, 0.94, 0.998, (0.93, 0.999)) == "faster"
    draws = np.linspace(0.9985, 1.0985, 1001)  # 1.5 % of them below 1
    found = s.judged(1.05, draws, 20)
    assert (found.low, found.high) == pytest.approx((1.001, 1.096))
    assert found.verdict == "unsure"
    assert s.judged(1.05, draws + 0.002, 20).verdict == "slower"


def test_ratio_is_paired_by_round() -> None:
    """A machine that slows down threefold during the run does not touch the ratio."""
    drift = np.linspace(1, 3, 12)
    a = [[10 * d, 10.2 * d, 50 * d] for d in drift]
    b = [[11 * d, 11.22 * d, 11.22 * d] for d in drift]
    found = s.ratio(a, b)
    assert (found.median, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))
    assert (found.verdict, found.rounds) == ("slower", 12)
    assert s.ratio(b, a).verdict == "faster"
    shuffled = s.ratio(a, b[::-1])
    assert shuffled.high - shuffled.low > 0.5
    with pytest.raises(UsageError, match="12 and 11"):
        s.ratio(a, b[:-1])


def test_interval_covers_as_often_as_it_says() -> None:
    """Log-normal ratios of median 1.05: the interval holds it in 95 % of 300 draws, nearly."""
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        low, high = s.interval(1.05 * np.exp(0.03 * generator.standard_normal(25)))
        held += low <= 1.05 <= high
    assert 0.91 <= held / 300 <= 0.98


def test_outliers_are_flagged_by_place() -> None:
    assert s.outliers([10, 10.1, 9.9, 30, 10, 10.05]) == (3,)
    assert s.outliers([10, 10, 10, 10.5]) == ()  # 5 % is no outlier, however steady the rest
    assert s.outliers([1, 100]) == ()


def test_geometric_mean() -> None:
    assert s.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert s.geometric_mean([1, 10, 100]) == pytest.approx(10)


def test_starts_that_agree_do_not_widen_the_interval() -> None:
    """The noise of rounds counts once, however the rounds are split into starts."""
    noise = np.random.default_rng(0)
    ratios = 1 + 0.03 * noise.standard_normal(120)
    one = s.ratio_of_pairs(ratios)
    several = s.ratio_of_pairs(ratios, starts=(40, 40, 40))
    assert several.high - several.low < 1.5 * (one.high - one.low)
    shifted = ratios + np.repeat([0.06, 0.0, -0.06], 40)
    apart = s.ratio_of_pairs(shifted, starts=(40, 40, 40))
    assert apart.high - apart.low > 0.1  # 1.96 * 0.06 / sqrt(3) on either side
