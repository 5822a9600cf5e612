"""Measuring several candidates against each other: shuffled rounds, one child process each.

All candidates of a group are loaded and warm before the first round. In a round each is asked for
a few samples, in an order drawn anew, so that drift and periodic disturbance reach all alike. The
others wait on their pipes meanwhile, with idle pools.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from vitpe_deploy.bench import statistics
from vitpe_deploy.bench.process import Child
from vitpe_deploy.bench.protocol import Agreement, ChildSpec, Judge, Loaded, Warmed
from vitpe_deploy.errors import UsageError, VitpeError

OnError = Callable[["Candidate", VitpeError], None]
OnRound = Callable[[int, int], None]


LATER = 4
"""Where a machine is never stable, later starts warm up for so much less than the first."""


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
        rounds: rounds at least, over all starts.
        starts: how often processes are started anew at least. A process can be some percent slow
            for all of its life: where its memory lies is drawn once.
        min_time_s: seconds of timed inference per candidate over all rounds.
        iters: samples per candidate over all rounds, in place of ``min_time_s``.
        warmup: runs before the first round at least; it goes on until latency is stable.
        warmup_limit_s: seconds after which warm-up is given up as unstable.
        max_rounds: rounds at most; more than ``rounds`` are made, in further starts, while a
            comparison with the first candidate is unsure.
        seed: of the order.
    """

    rounds: int = 20
    starts: int = 1
    min_time_s: float = 3.0
    iters: int | None = None
    warmup: int = 5
    warmup_limit_s: float = 10.0
    max_rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("--rounds", self.rounds), ("--starts", self.starts), ("--iters", self.iters or 1)
        for flag, value in counts:
            if value < 1:
                raise UsageError(f"{flag} must be at least 1, got {value}")
        if self.warmup < 0:
            raise UsageError(f"--warmup must be at least 0, got {self.warmup}")
        if not self.min_time_s >= 0:
            raise UsageError(f"--min-time must be at least 0, got {self.min_time_s}")

    @property
    def rounds_per_start(self) -> int:
        """Rounds that the processes of one start live for."""
        return math.ceil(self.rounds / self.starts)

    def runs_per_round(self, median_ms: float) -> int:
        """Samples that one candidate gives in one round."""
        if self.iters is not None:
            return math.ceil(self.iters / self.rounds)
        return max(1, math.ceil(self.min_time_s * 1e3 / self.rounds / max(median_ms, 1e-3)))


@dataclass(frozen=True, slots=True)
class Measured:
    """What one candidate gave.

    Attributes:
        rounds: samples in milliseconds, one list per round.
        starts: rounds of each start, in their order.
    """

    candidate: Candidate
    loaded: Loaded
    warmed: Warmed
    rounds: tuple[tuple[float, ...], ...]
    peak_rss_bytes: int | None
    idle: bool
    starts: tuple[int, ...] = ()
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
class _Taken:
    """What is known of a candidate while it is measured; of its first start unless said."""

    candidate: Candidate
    loaded: Loaded
    warmed: Warmed
    agreement: Agreement | None
    classes: tuple[int, ...]
    rounds: list[tuple[float, ...]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    peak_rss_bytes: int | None = None
    idle: bool = True

    @property
    def measured(self) -> Measured:
        """As it is given."""
        return Measured(
            candidate=self.candidate,
            loaded=self.loaded,
            warmed=self.warmed,
            rounds=tuple(self.rounds),
            peak_rss_bytes=self.peak_rss_bytes,
            idle=self.idle,
            starts=tuple(self.starts),
            agreement=self.agreement,
            classes=self.classes,
        )


@dataclass(frozen=True, slots=True)
class _Running:
    place: int
    taken: _Taken
    child: Child
    runs: int


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
        on_error: told of a candidate that does not load or run, or ends between rounds, which is
            then left out; without it the error is raised.
        on_round: told the number of the round that starts, and of all rounds.

    Returns:
        One value per candidate that runs, in their order, with samples of the same rounds. One
        whose comparison is decided early has fewer, from the first on.
    """
    order = np.random.default_rng(schedule.seed)
    taken: dict[int, _Taken] = {}

    def lost(place: int, error: VitpeError) -> None:
        if on_error is None:
            raise error
        taken.pop(place, None)
        on_error(candidates[place], error)

    active, start, done, total = list(range(len(candidates))), 0, 0, schedule.rounds
    while active and done < total:
        longer = total > schedule.rounds
        rounds = min(schedule.rounds if longer else schedule.rounds_per_start, total - done)
        with ExitStack() as stack:
            running: list[_Running] = []
            # Who is started first has the emptier machine: they take turns at that.
            for place in active if start % 2 == 0 else active[::-1]:
                try:
                    started = _start(stack, candidates[place], place, schedule, taken.get(place))
                except VitpeError as error:
                    lost(place, error)
                else:
                    running.append(started)
                    taken[place] = started.taken
            for _ in range(rounds):
                if not running:
                    break
                if on_round is not None:
                    on_round(done, total)
                for which in order.permutation(len(running)):
                    one = running[which]
                    try:
                        one.taken.rounds.append(tuple(_round(one, schedule)))
                    except VitpeError as error:
                        lost(one.place, error)
                running = [one for one in running if one.place in taken]
                done += 1
            for one in running:
                _keep(one, rounds)
        active = [place for place in active if place in taken]
        start += 1
        if active and done == total and total < (schedule.max_rounds or 0):
            active = undecided({place: taken[place].measured for place in active})
            total = min(schedule.max_rounds or 0, total + schedule.rounds)
    return [taken[place].measured for place in sorted(taken)]


def _start(
    stack: ExitStack, candidate: Candidate, place: int, schedule: Schedule, before: _Taken | None
) -> _Running:
    """A process of a candidate; what it answers is judged once."""
    child = stack.enter_context(Child(candidate.spec, candidate.command))
    judged = before is None
    agreement = child.agree(candidate.judge) if judged and candidate.spec.expected else None
    classes = child.classify() if judged and candidate.spec.pictures else ()
    limit_s = schedule.warmup_limit_s if judged else schedule.warmup_limit_s / LATER
    warmed = child.warm_up(schedule.warmup, limit_s)
    if child.loaded is None:
        raise RuntimeError("the child was not loaded")
    taken = before or _Taken(candidate, child.loaded, warmed, agreement, classes)
    return _Running(place, taken, child, schedule.runs_per_round(taken.warmed.median_ms))


def _keep(one: _Running, rounds: int) -> None:
    """What a process says of itself before it ends."""
    taken, peak = one.taken, one.child.peak_rss_bytes
    taken.starts.append(rounds)
    taken.idle = taken.idle and one.child.always_idle
    if peak is not None:
        taken.peak_rss_bytes = max(peak, taken.peak_rss_bytes or 0)


def _round(one: _Running, schedule: Schedule) -> list[float]:
    if one.taken.candidate.spec.throughput:
        return one.child.window(schedule.min_time_s / schedule.rounds)
    return one.child.sample(one.runs)


def undecided(found: Mapping[int, Measured]) -> list[int]:
    """The first and those whose comparison with it is unsure, by key; nobody when none is."""
    first, *others = found
    unsure = [o for o in others if compare(found[first], found[o]).verdict == "unsure"]
    return [first, *unsure] if unsure else []


def compare(a: Measured, b: Measured) -> statistics.Ratio:
    """Latency of b over a, paired by round."""
    return ratio_of_rounds((a.rounds, a.starts), (b.rounds, b.starts))


Timed: TypeAlias = tuple[Sequence[Sequence[float]], Sequence[int]]
"""Samples by round, and how many rounds each start has."""


def ratio_of_rounds(a: Timed, b: Timed) -> statistics.Ratio:
    """Latency of b over a in the starts that both took part in, which are the first ones."""
    starts = a[1][: min(len(a[1]), len(b[1]))]
    rounds = sum(starts)
    return statistics.ratio(a[0][:rounds], b[0][:rounds], starts=starts)


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
        total += schedule.starts * (load_s + warm)
        total += schedule.rounds * (runs * latency / 1e3 + 0.02)
    return total
