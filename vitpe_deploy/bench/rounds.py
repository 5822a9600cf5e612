"""Measuring several candidates against each other: shuffled rounds, one child process each.

All candidates of a group are loaded and warm before the first round. In a round each is asked for
a few samples, in an order drawn anew, so that drift and periodic disturbance reach all alike. The
others wait on their pipes meanwhile, with idle pools.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from vitpe_deploy.bench import statistics
from vitpe_deploy.bench.process import Child
from vitpe_deploy.bench.protocol import Agreement, ChildSpec, Judge, Loaded, Warmed
from vitpe_deploy.errors import UsageError, VitpeError

OnError = Callable[["Candidate", VitpeError], None]
OnRound = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing to be timed: a label for people, and the child that runs it."""

    label: str
    spec: ChildSpec
    command: tuple[str, ...] | None = None
    judge: Judge = Judge()


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long to measure.

    Attributes:
        rounds: rounds at least.
        min_time_s: seconds of timed inference per candidate over all rounds.
        iters: samples per candidate over all rounds, in place of ``min_time_s``.
        warmup: runs before the first round at least; it goes on until latency is stable.
        warmup_limit_s: seconds after which warm-up is given up as unstable.
        max_rounds: rounds at most; more than ``rounds`` are made while a comparison with the
            first candidate is unsure.
        seed: of the order.
    """

    rounds: int = 20
    min_time_s: float = 3.0
    iters: int | None = None
    warmup: int = 5
    warmup_limit_s: float = 10.0
    max_rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for flag, value in (("--rounds", self.rounds), ("--iters", self.iters or 1)):
            if value < 1:
                raise UsageError(f"{flag} must be at least 1, got {value}")
        if self.warmup < 0:
            raise UsageError(f"--warmup must be at least 0, got {self.warmup}")
        if not self.min_time_s >= 0:
            raise UsageError(f"--min-time must be at least 0, got {self.min_time_s}")

    def runs_per_round(self, median_ms: float) -> int:
        """Samples that one candidate gives in one round."""
        if self.iters is not None:
            return math.ceil(self.iters / self.rounds)
        return max(1, math.ceil(self.min_time_s * 1e3 / self.rounds / max(median_ms, 1e-3)))


@dataclass(frozen=True, slots=True)
class Measured:
    """What one candidate gave: samples in milliseconds, one list per round."""

    candidate: Candidate
    loaded: Loaded
    warmed: Warmed
    rounds: tuple[tuple[float, ...], ...]
    peak_rss_bytes: int | None
    idle: bool
    agreement: Agreement | None = None
    classes: tuple[int, ...] = ()

    @property
    def samples_ms(self) -> list[float]:
        """All samples in the order in which they were taken."""
        return [sample for samples in self.rounds for sample in samples]

    @property
    def summary(self) -> statistics.Summary:
        """Percentiles of all samples."""
        return statistics.summarise(self.samples_ms)


@dataclass(slots=True)
class _Running:
    candidate: Candidate
    child: Child
    warmed: Warmed
    agreement: Agreement | None
    classes: tuple[int, ...]
    runs: int
    rounds: list[tuple[float, ...]] = field(default_factory=list)


def measure(
    candidates: Sequence[Candidate],
    schedule: Schedule = Schedule(),
    *,
    on_error: OnError | None = None,
    on_round: OnRound | None = None,
) -> list[Measured]:
    """Time all candidates against each other.

    Args:
        candidates: at least one; comparisons are with the first.
        schedule: how long.
        on_error: told of a candidate that does not load or run, which is then left out; without
            it the error is raised.
        on_round: told the number of the round that starts, and of all rounds.

    Returns:
        One value per candidate that runs, in their order, with samples of the same rounds. One
        whose comparison is decided early has fewer, from the first on.
    """
    with ExitStack() as stack:
        running: list[_Running] = []
        for candidate in candidates:
            try:
                running.append(_start(stack, candidate, schedule))
            except VitpeError as error:
                if on_error is None:
                    raise
                on_error(candidate, error)
        order = np.random.default_rng(schedule.seed)
        active, total, done = running, schedule.rounds, 0
        while active and done < total:
            if on_round is not None:
                on_round(done, total)
            for place in order.permutation(len(active)):
                one = active[place]
                one.rounds.append(tuple(_round(one, schedule)))
            done += 1
            if done == total and total < (schedule.max_rounds or 0):
                active = undecided(active)
                total = min(schedule.max_rounds or 0, total + schedule.rounds)
        return [_measured(one) for one in running]


def _start(stack: ExitStack, candidate: Candidate, schedule: Schedule) -> _Running:
    child = stack.enter_context(Child(candidate.spec, candidate.command))
    agreement = child.agree(candidate.judge) if candidate.spec.expected else None
    classes = child.classify() if candidate.spec.pictures else ()
    warmed = child.warm_up(schedule.warmup, schedule.warmup_limit_s)
    runs = schedule.runs_per_round(warmed.median_ms)
    return _Running(candidate, child, warmed, agreement, classes, runs)


def _round(one: _Running, schedule: Schedule) -> list[float]:
    if one.candidate.spec.throughput:
        return one.child.window(schedule.min_time_s / schedule.rounds)
    return one.child.sample(one.runs)


class HasRounds(Protocol):
    """Whatever was timed: samples in milliseconds, one sequence per round."""

    @property
    def rounds(self) -> Sequence[Sequence[float]]:
        """From the first on."""


Timed = TypeVar("Timed", bound=HasRounds)


def undecided(active: Sequence[Timed]) -> list[Timed]:
    """The first and those whose comparison with it is unsure; nobody when there are none."""
    first, *others = active
    unsure = [o for o in others if ratio_of_rounds(first.rounds, o.rounds).verdict == "unsure"]
    return [first, *unsure] if unsure else []


def _measured(one: _Running) -> Measured:
    if one.child.loaded is None:
        raise RuntimeError("the child was not loaded")
    return Measured(
        candidate=one.candidate,
        loaded=one.child.loaded,
        warmed=one.warmed,
        rounds=tuple(one.rounds),
        peak_rss_bytes=one.child.peak_rss_bytes,
        idle=one.child.always_idle,
        agreement=one.agreement,
        classes=one.classes,
    )


def compare(a: Measured, b: Measured) -> statistics.Ratio:
    """Latency of b over a, paired by round."""
    return ratio_of_rounds(a.rounds, b.rounds)


def ratio_of_rounds(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> statistics.Ratio:
    """Latency of b over a in the rounds that both took part in, which are the first ones."""
    common = min(len(a), len(b))
    return statistics.ratio(a[:common], b[:common])


def estimate_s(latencies_ms: Sequence[float], schedule: Schedule, load_s: float = 3.0) -> float:
    """Seconds that a group takes: loading, warming up, and its rounds with one unclocked run each.

    Args:
        latencies_ms: what each candidate is expected to take.
        schedule: how long.
        load_s: seconds to start a child and load its model.
    """
    total = 0.0
    for latency in latencies_ms:
        runs = schedule.runs_per_round(latency) + 1
        warm = max(schedule.warmup, 10) * latency / 1e3
        total += load_s + warm + schedule.rounds * (runs * latency / 1e3 + 0.02)
    return total
