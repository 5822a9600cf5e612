"""The best of several files on this machine: the fastest among those that agree with fp32."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exporters.quantize.job import QuantizeJob
from vitpe_deploy.errors import ArtifactError
from vitpe_deploy.files import total_size
from vitpe_deploy.parity import LOGITS, Outputs, compare, least_agreement
from vitpe_deploy.results import CandidateRecord
from vitpe_deploy.runtimes import open_runtime

_WARMUP = 2
_ROUNDS = 3
_ITERATIONS = 5
_MOST_COMPARED = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of making the file, written to a temporary folder."""

    method: str
    files: tuple[Path, ...]


def reference_outputs(path: Path, runtime: str, job: QuantizeJob) -> list[Outputs]:
    """What the float32 file gives on the calibration data."""
    with open_runtime(runtime, path, threads=job.threads) as engine:
        (entry,) = engine.inputs
        return [engine.run({entry.name: x}) for x in job.batches[:_MOST_COMPARED]]


def choose(
    candidates: Sequence[Candidate], reference: Sequence[Outputs], runtime: str, job: QuantizeJob
) -> tuple[str, tuple[CandidateRecord, ...]]:
    """Measure all, and choose: the fastest at or above the floor, else the one that agrees most.

    Gives the name of the chosen one, and a record of each.

    Raises:
        ArtifactError: the engine can run none of them.
    """
    times: dict[str, float] = {}
    found: dict[str, tuple[float, str]] = {}
    problems: dict[str, str] = {}
    for candidate in candidates:
        try:
            found[candidate.method] = _agreement(candidate, reference, runtime, job)
        except ArtifactError as problem:
            problems[candidate.method] = problem.message
    if not found:
        raise ArtifactError(f"no int8 file runs here: {next(iter(problems.values()), 'none')}")
    if len(candidates) > 1 or job.method == "auto":
        for _ in range(_ROUNDS):  # in turns, so that a slow moment of the machine hits all
            for candidate in candidates:
                if candidate.method in found:
                    spent = _latency_ms(candidate, runtime, job)
                    times[candidate.method] = min(spent, times.get(candidate.method, spent))
    good = [m for m, (value, _) in found.items() if value >= job.floor]
    if good:
        chosen = min(good, key=lambda m: times.get(m, 0.0))
    else:
        chosen = max(found, key=lambda m: found[m][0])
    records = tuple(
        CandidateRecord(
            artifact=job.artifact,
            method=c.method,
            runtime=runtime,
            latency_ms=times.get(c.method),
            size_bytes=total_size(c.files),
            agreement=found[c.method][0] if c.method in found else None,
            criterion=found[c.method][1] if c.method in found else None,
            chosen=c.method == chosen,
            problem=problems.get(c.method),
        )
        for c in candidates
    )
    return chosen, records


def _agreement(
    candidate: Candidate, reference: Sequence[Outputs], runtime: str, job: QuantizeJob
) -> tuple[float, str]:
    with open_runtime(runtime, candidate.files[0], threads=job.threads) as engine:
        (entry,) = engine.inputs
        given = [engine.run({entry.name: x}) for x in job.batches[: len(reference)]]
    inputs = sum(len(x) for x in job.batches[: len(reference)])
    worst: tuple[float, str] | None = None
    for name in job.outputs:
        result = compare(
            [o[name] for o in reference], [o[name] for o in given], classes=name == LOGITS
        )
        value, criterion = least_agreement(result, inputs, job.floor)
        if worst is None or value < worst[0]:
            worst = (value, criterion)
    if worst is None:
        raise ArtifactError(f"{candidate.files[0].name} has no output to compare")
    return worst


def _latency_ms(candidate: Candidate, runtime: str, job: QuantizeJob) -> float:
    """Smallest time of one inference, in milliseconds."""
    with open_runtime(runtime, candidate.files[0], threads=job.threads) as engine:
        (entry,) = engine.inputs
        feed = {entry.name: job.batches[0]}
        spent = []
        for _ in range(_WARMUP + _ITERATIONS):
            start = time.perf_counter()
            engine.run(feed)
            spent.append((time.perf_counter() - start) * 1e3)
    return min(spent[_WARMUP:])
