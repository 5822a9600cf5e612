"""The best of several files on this machine: the fastest among those that agree with fp32.

Latency is measured as ``vitpe-bench`` measures it: a child process per file, all loaded, rounds
interleaved. Timed in one process, idle thread pools of one engine slow the next one down.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exporters.quantize.job import QuantizeJob
from vitpe_deploy.bench import rounds
from vitpe_deploy.bench.inputs import save_inputs
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.errors import ArtifactError, VitpeError
from vitpe_deploy.files import total_size
from vitpe_deploy.parity import LOGITS, Outputs, compare, least_agreement
from vitpe_deploy.results import CandidateRecord
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.threads import available_cpus

FLOAT = "fp32"
"""Name of the float32 file among the candidates: it is timed for comparison and never chosen."""

SCHEDULE = rounds.Schedule(rounds=7, min_time_s=1.0, warmup=3, warmup_limit_s=3.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of making the file, written to a temporary folder."""

    method: str
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """Agreement of one candidate with the float32 file."""

    agreement: float
    criterion: str


def choose(
    plain: Candidate, candidates: Sequence[Candidate], runtime: str, job: QuantizeJob
) -> tuple[str, tuple[CandidateRecord, ...]]:
    """Measure all, and choose: the fastest at or above the floor, else the one that agrees most.

    Args:
        plain: the float32 file of the same graph, which the others are compared with.
        candidates: the ways there are; one alone is chosen without being timed.
        runtime: canonical name of the engine.
        job: data, floor and threads.

    Returns:
        The name of the chosen one, and a record of each, that of ``plain`` first.

    Raises:
        ArtifactError: the engine can run none of them.
    """
    reference = _outputs(plain, runtime, job)
    found: dict[str, _Found] = {}
    problems: dict[str, str] = {}
    for candidate in candidates:
        try:
            found[candidate.method] = _agreement(candidate, reference, runtime, job)
        except ArtifactError as problem:
            problems[candidate.method] = problem.message
    times: Mapping[str, float] = {}
    if len(candidates) > 1:
        able = [c for c in candidates if c.method in found]
        times = _latencies_ms([plain, *able], runtime, job, problems)
        found = {method: one for method, one in found.items() if method in times}
    if not found:
        raise ArtifactError(f"no int8 file runs here: {next(iter(problems.values()), 'none')}")
    good = [method for method, one in found.items() if one.agreement >= job.floor]
    if good:
        chosen = min(good, key=lambda method: times.get(method, 0.0))
    else:
        chosen = max(found, key=lambda method: found[method].agreement)
    known = {FLOAT: _Found(1.0, next(iter(found.values())).criterion), **found}
    records = tuple(
        CandidateRecord(
            artifact=job.artifact,
            method=one.method,
            runtime=runtime,
            latency_ms=times.get(one.method),
            size_bytes=total_size(one.files),
            agreement=known[one.method].agreement if one.method in known else None,
            criterion=known[one.method].criterion if one.method in known else None,
            chosen=one.method == chosen,
            calibrated_on=0 if one is plain else job.data.calibrated_on,
            judged_on=job.data.judged_on,
            problem=problems.get(one.method),
        )
        for one in (plain, *candidates)
    )
    return chosen, records


def _outputs(candidate: Candidate, runtime: str, job: QuantizeJob) -> list[Outputs]:
    """What a file gives for the data that judge."""
    with open_runtime(runtime, candidate.files[0], threads=job.threads) as engine:
        (entry,) = engine.inputs
        return [engine.run({entry.name: x}) for x in job.data.judge]


def _agreement(
    candidate: Candidate, reference: Sequence[Outputs], runtime: str, job: QuantizeJob
) -> _Found:
    """Of the output that agrees least."""
    given = _outputs(candidate, runtime, job)
    worst: _Found | None = None
    for name in job.outputs:
        result = compare(
            [o[name] for o in reference], [o[name] for o in given], classes=name == LOGITS
        )
        value, criterion = least_agreement(result, job.data.judged_on, job.floor)
        if worst is None or value < worst.agreement:
            worst = _Found(value, criterion)
    if worst is None:
        raise ArtifactError(f"{candidate.files[0].name} has no output to compare")
    return worst


def _latencies_ms(
    candidates: Sequence[Candidate], runtime: str, job: QuantizeJob, problems: dict[str, str]
) -> dict[str, float]:
    """Median latency of one batch by method; a candidate that fails is left out and noted."""

    def lost(candidate: rounds.Candidate, error: VitpeError) -> None:
        problems[candidate.label] = error.message

    with tempfile.TemporaryDirectory(prefix="vitpe-timed-") as folder:
        inputs = save_inputs(Path(folder) / "inputs.npz", job.data.judge[:1])
        timed = [
            rounds.Candidate(
                candidate.method,
                ChildSpec(
                    path=str(candidate.files[0]),
                    runtime=runtime,
                    device="CPU",
                    threads=job.threads or available_cpus(),
                    inputs=str(inputs),
                ),
            )
            for candidate in candidates
        ]
        measured = rounds.measure(timed, SCHEDULE, on_error=lost)
    return {one.candidate.label: one.summary.median for one in measured}
