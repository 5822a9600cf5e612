"""What latencies say: percentiles of one candidate, and the ratio of two with its interval.

Two candidates are compared round by round, because what disturbs a machine lasts longer than one
inference: both medians of a round saw the same machine, two overall medians need not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from vitpe_deploy.errors import UsageError

RatioVerdict: TypeAlias = Literal["faster", "slower", "no difference", "unsure"]
Floats: TypeAlias = npt.NDArray[np.float64]

RESAMPLES = 4000
CONFIDENCE = 0.95
SURE = 0.99
"""Confidence at which a row is called faster or slower. The intervals that are shown are those of
95 %; but rounds are added and looked at again while a comparison is unsure, and there are many
comparisons, so that one in twenty would be called different by chance too often."""

EQUAL_WITHIN = 0.02
"""An interval that lies this close to 1 on both sides is no difference."""

EQUAL_WIDTH = 0.04
"""So is a narrower one that contains 1."""

_FENCE = 3.0
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies of one candidate in milliseconds; ``cv`` is standard deviation over mean."""

    min: float
    median: float
    mean: float
    p90: float
    p95: float
    p99: float
    max: float
    cv: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Latency of b over latency of a: above 1, b is slower."""

    median: float
    low: float
    high: float
    verdict: RatioVerdict
    rounds: int


def summarise(samples_ms: Sequence[float]) -> Summary:
    """Percentiles of raw samples, all of them.

    Raises:
        UsageError: there are none.
    """
    if not len(samples_ms):
        raise UsageError("there are no samples to summarise", hint="Measure at least one run.")
    values = np.asarray(samples_ms, dtype=np.float64)
    mean = float(values.mean())
    p50, p90, p95, p99 = (float(p) for p in np.percentile(values, [50, 90, 95, 99]))
    return Summary(
        min=float(values.min()),
        median=p50,
        mean=mean,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(values.max()),
        cv=float(values.std() / mean) if mean > 0 else 0.0,
    )


def outliers(samples_ms: Sequence[float]) -> tuple[int, ...]:
    """Places of samples far from the median: more than 3 robust standard deviations, and 10 %.

    The spread is the median absolute deviation (Hampel's rule), which outliers do not widen.
    """
    values = np.asarray(samples_ms, dtype=np.float64)
    if values.size < 3:
        return ()
    centre = np.median(values)
    distance = np.abs(values - centre)
    limit = max(_FENCE * _MAD_TO_SIGMA * float(np.median(distance)), 0.1 * float(centre))
    return tuple(int(place) for place in np.flatnonzero(distance > limit))


def round_medians(rounds: Sequence[Sequence[float]]) -> Floats:
    """The median of each round, ``[rounds]``."""
    return np.array([np.median(samples) for samples in rounds], dtype=np.float64)


def ratio(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    starts: Sequence[int] = (),
    seed: int = 0,
) -> Ratio:
    """Latency of b over a, paired by round: the median ratio and its 95 % bootstrap interval.

    Where processes were started several times, the ratio is the mean over starts of the median
    over rounds, and the interval knows that rounds of one start share its luck.

    Args:
        a: samples of the reference, one list per round.
        b: samples of the other, from the same rounds in the same order.
        starts: rounds of each start; all are one without it.
        seed: of the bootstrap, so that the same samples give the same interval.

    Raises:
        UsageError: other numbers of rounds, or none.
    """
    if len(a) != len(b) or not a:
        raise UsageError(
            f"rounds do not pair: {len(a)} and {len(b)}",
            hint="Both candidates must be measured in the same rounds.",
        )
    return ratio_of_pairs(round_medians(b) / round_medians(a), starts=starts, seed=seed)


def ratio_of_pairs(ratios: Floats, *, starts: Sequence[int] = (), seed: int = 0) -> Ratio:
    """The same from one ratio per round, ``[rounds]``."""
    draws, centre = level(ratios, starts, seed=seed)
    return judged(centre, draws, len(ratios))


def level(values: Floats, starts: Sequence[int] = (), *, seed: int = 0) -> tuple[Floats, float]:
    """Where values per round lie: in the draws of a bootstrap, and as they are.

    The mean over starts of the median over rounds; the median where there is one start.
    """
    if len(starts) < 2:
        return medians_of_draws(values, seed=seed), float(np.median(values))
    parts = np.split(values, np.cumsum(starts)[:-1])
    return means_of_draws(parts, seed=seed), float(np.mean([np.median(p) for p in parts]))


def judged(centre: float, draws: Floats, rounds: int) -> Ratio:
    """A ratio with its interval and verdict, from what it is in the draws of a bootstrap."""
    low, high = percentiles(draws, CONFIDENCE)
    return Ratio(centre, low, high, verdict(centre, low, high, percentiles(draws, SURE)), rounds)


def medians_of_draws(values: Floats, *, seed: int = 0) -> Floats:
    """Medians of bootstrap draws of ``values`` [n] (Efron 1979)."""
    draws = np.random.default_rng(seed).choice(values, (RESAMPLES, len(values)))
    return np.asarray(np.median(draws, axis=1))


def means_of_draws(parts: Sequence[Floats], *, seed: int = 0) -> Floats:
    """Bootstrap of the mean over starts of the median over rounds.

    Rounds are drawn inside each start. What starts differ by beyond that (the moment estimate of
    their variance, as in a meta-analysis) is added as noise: few starts are too few to be drawn
    themselves, and drawing both would count the noise of rounds twice.

    Args:
        parts: values of the rounds of each start.
        seed: of the draws.
    """
    random = np.random.default_rng(seed)
    draws = np.stack(
        [np.median(random.choice(part, (RESAMPLES, len(part))), axis=1) for part in parts]
    )  # [starts, resamples]
    between = np.var([np.median(part) for part in parts], ddof=1)
    excess = max(0.0, float(between - draws.var(axis=1).mean()))
    luck = random.normal(0.0, np.sqrt(excess / len(parts)), RESAMPLES)
    return np.asarray(draws.mean(axis=0) + luck)


def percentiles(draws: Floats, confidence: float) -> tuple[float, float]:
    """The percentile interval of a bootstrap."""
    tail = 50 * (1 - confidence)
    low, high = np.percentile(draws, [tail, 100 - tail])
    return float(low), float(high)


def interval(values: Floats, *, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the median of ``values`` [n]."""
    return percentiles(medians_of_draws(values, seed=seed), CONFIDENCE)


def verdict(
    centre: float, low: float, high: float, sure: tuple[float, float] | None = None
) -> RatioVerdict:
    """What a ratio b/a and its interval say of b.

    1. interval inside 1 +- 2 %: no difference, also where it is a known 1 %;
    2. contains 1 and is narrower than 4 %: no difference;
    3. the wider interval ``sure`` all above 1 and the ratio at least 1.02: slower; all below 1 and
       at most 1/1.02: faster. Without ``sure`` the interval itself counts;
    4. anything else is not decided: measure longer. That holds for a wide interval that just
       misses 1 as well, which one comparison of equals in twenty gives.
    """
    inside = low >= 1 - EQUAL_WITHIN and high <= 1 + EQUAL_WITHIN
    if inside or (low <= 1.0 <= high and high - low < EQUAL_WIDTH):
        return "no difference"
    below, above = sure or (low, high)
    if below > 1.0 and centre >= 1 + EQUAL_WITHIN:
        return "slower"
    return "faster" if above < 1.0 and centre <= 1 / (1 + EQUAL_WITHIN) else "unsure"


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that suits ratios: the same whichever side is divided by which."""
    return float(np.exp(np.mean(np.log(np.asarray(values, dtype=np.float64)))))
