"""Can vitpe-bench be believed? Its medians against others', and its verdicts on known answers.

    python benchmarks/bench_trust.py [--only peers|slowdown|same|overhead] [--repetitions 20]
        [--threads 2] [-o trust] [--budget SECONDS]

* peers: the same file in a hand-written ONNX Runtime loop, and in OpenVINO's own benchmark_app
  with the latency hint and as many threads, in turns with ours: medians within 3 %.
* slowdown: a chain of 40 products against one of 42, 5 % more work in two inserted layers, is
  slower with an interval that excludes 1.0, in every repetition.
* same: a file against itself is no difference, in every repetition.
* overhead: what a sample of nothing costs is below 1 % of the smallest model's median; resident
  memory of the harness.

The files that are timed stay in the folder, and finished repetitions in its ``trust.jsonl``, so
that an interrupted run, or one that stopped at its ``--budget``, goes on. Writes ``trust.json`` and
``trust.md``; exits 1 when something does not hold, 2 when repetitions are still to be made.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from trust_files import EXTRA, LAYERS, TOKENS, WIDTH, export_model, write_chain
from trust_others import benchmark_app, hand_written

from vitpe_deploy.bench import host
from vitpe_deploy.bench.inputs import save_inputs
from vitpe_deploy.bench.overhead import measure_harness
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.bench.rounds import Candidate, Measured, Schedule, compare, measure
from vitpe_deploy.manifest import read_manifest
from vitpe_deploy.threads import available_cpus

WITHIN = 0.03
OVERHEAD = 0.01
ROUNDS, STARTS = 50, 5
WARMUP_S = 2.0
"""At most: on a machine that is never stable, most of the time would go into warming up."""
MUCH_LONGER = 10
"""Times the rounds at most while a comparison is unsure, which says: measure longer."""
PEER_TURNS = 31
PEER_RUNS = 30
PEER_MODEL = "vit_tiny_patch16_224"
SMALLEST = "digits-learned-1d"

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One claim: how often it is tried, how one try is made, and whether all of them hold.

    ``judge`` gives the verdict with the sentence that says why.
    """

    name: str
    tries: int
    attempt: Callable[[int], Line]
    judge: Callable[[Sequence[Line]], tuple[bool, str]]


def timed(
    files: Sequence[Path], runtime: str, inputs: Path, threads: int, schedule: Schedule
) -> list[Measured]:
    """Our side."""
    return measure(
        [
            Candidate(f"{k}", ChildSpec(str(file), runtime, "CPU", threads, str(inputs)))
            for k, file in enumerate(files)
        ],
        schedule,
    )


def checks(folder: Path, threads: int, repetitions: int) -> Iterator[Check]:
    """All of them; files are written when the first try needs them."""

    def chain(layers: int) -> Path:
        return write_chain(folder / f"chain-{layers}.onnx", layers)

    def chain_inputs() -> Path:
        x = np.random.default_rng(1).standard_normal((1, TOKENS, WIDTH)).astype(np.float32)
        return save_inputs(folder / "chain.npz", [x])

    def picture(path: Path) -> Path:
        manifest = read_manifest(path)
        size = manifest.size()
        if size is None:
            raise ValueError(f"{path} has no size of its own")
        shape = manifest.layout().shape(size, 1)
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        return save_inputs(folder / f"{path.stem}.npz", [x])

    def peer(
        other: Callable[[Path, Path, int, int], float],
        runtime: str,
        model: str = PEER_MODEL,
        runs: int = PEER_RUNS,
    ) -> Callable[[int], Line]:
        def attempt(number: int) -> Line:
            path = export_model(model, folder)
            inputs = picture(path)
            schedule = Schedule(rounds=5, iters=runs, warmup_limit_s=WARMUP_S, seed=number)
            first_ours = number % 2 == 0  # in turns, so that drift reaches both alike
            theirs = 0.0 if first_ours else other(path, inputs, threads, runs)
            (ours,) = timed([path], runtime, inputs, threads, schedule)
            theirs = other(path, inputs, threads, runs) if first_ours else theirs
            return {"ours_ms": ours.summary.median, "theirs_ms": theirs}

        return attempt

    def against(layers: int) -> Callable[[int], Line]:
        def attempt(number: int) -> Line:
            inputs = chain_inputs()
            schedule = Schedule(
                rounds=ROUNDS,
                starts=STARTS,
                min_time_s=1.0,
                warmup_limit_s=WARMUP_S,
                max_rounds=ROUNDS * MUCH_LONGER,
                seed=number,
            )
            pair = [chain(LAYERS), chain(layers)]
            first, second = timed(pair, "onnxruntime", inputs, threads, schedule)
            found = compare(first, second)
            return {
                "ratio": found.median,
                "ci95": [found.low, found.high],
                "verdict": found.verdict,
                "rounds": found.rounds,
                "median_ms": first.summary.median,
            }

        return attempt

    def overhead(_number: int) -> Line:
        path = export_model(SMALLEST, folder)
        harness = measure_harness()
        (row,) = timed([path], "onnxruntime", picture(path), 1, Schedule(rounds=5, iters=500))
        return {
            "overhead_ms": harness.sample_overhead_ms,
            "median_ms": row.summary.median,
            "parent_rss_bytes": harness.parent_rss_bytes,
            "child_rss_bytes": harness.child_rss_bytes,
            "child_peak_rss_bytes": row.peak_rss_bytes,
        }

    yield Check("peers/loop", PEER_TURNS, peer(hand_written, "onnxruntime"), medians_agree)
    yield Check("peers/benchmark_app", PEER_TURNS, peer(benchmark_app, "openvino"), medians_agree)
    smallest = peer(hand_written, "onnxruntime", SMALLEST, 100 * PEER_RUNS)
    yield Check("peers/loop, smallest model", PEER_TURNS, smallest, medians_agree)
    yield Check("slowdown", repetitions, against(LAYERS + EXTRA), always("slower"))
    yield Check("same", repetitions, against(LAYERS), always("no difference"))
    yield Check("overhead", 1, overhead, costs_little)


def medians_agree(lines: Sequence[Line]) -> tuple[bool, str]:
    """The median over the turns of ours over theirs."""
    ratio = statistics.median(line["ours_ms"] / line["theirs_ms"] for line in lines)
    ours, theirs = (
        statistics.median(line[key] for line in lines) for key in ("ours_ms", "theirs_ms")
    )
    text = f"theirs {theirs:.3f} ms, ours {ours:.3f} ms, ratio by turns {ratio:.4f}"
    return abs(ratio - 1) <= WITHIN, text


def always(wanted: str) -> Callable[[Sequence[Line]], tuple[bool, str]]:
    """Every try has this verdict; slower means that the interval excludes 1 as well."""

    def judge(lines: Sequence[Line]) -> tuple[bool, str]:
        right = sum(
            line["verdict"] == wanted and (wanted != "slower" or line["ci95"][0] > 1.0)
            for line in lines
        )
        ratios = [line["ratio"] for line in lines]
        text = f"{wanted} in {right} of {len(lines)}, ratios {min(ratios):.3f} to {max(ratios):.3f}"
        return right == len(lines), text

    return judge


def costs_little(lines: Sequence[Line]) -> tuple[bool, str]:
    """A sample of nothing against a sample of the smallest model."""
    line = lines[-1]
    share = line["overhead_ms"] / line["median_ms"]
    sizes = (
        f"{(line[key] or 0) / 2**20:.0f} MiB" for key in ("parent_rss_bytes", "child_rss_bytes")
    )
    parent, child = sizes
    text = (
        f"{line['overhead_ms'] * 1e3:.1f} us per sample, {share:.2%} of {SMALLEST} "
        f"({line['median_ms']:.3f} ms); resident: parent {parent}, child before an engine {child}"
    )
    return share < OVERHEAD, text


def read_lines(path: Path) -> dict[str, list[Line]]:
    """Finished tries by check; a line that was cut off is dropped."""
    found: dict[str, list[Line]] = {}
    for text in path.read_text().splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        found.setdefault(line["check"], []).append(line)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("peers", "slowdown", "same", "overhead"))
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("-o", "--output", type=Path, default=Path("trust"))
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    journal = options.output / "trust.jsonl"
    end = time.monotonic() + options.budget
    files = options.output / "files"
    files.mkdir(exist_ok=True)
    every = list(checks(files, options.threads, options.repetitions))
    for check in every:
        if options.only not in (None, check.name.partition("/")[0]):
            continue
        done = len(read_lines(journal).get(check.name, []))
        for number in range(done, check.tries):
            if time.monotonic() > end:
                break
            line = {"check": check.name, "number": number, **check.attempt(number)}
            with journal.open("a") as file:
                file.write(json.dumps(line) + "\n")
            sys.stderr.write(f"{json.dumps(line)}\n")
    return _report(every, read_lines(journal), options.output, options.threads)


def _report(
    every: Sequence[Check], found: dict[str, list[Line]], folder: Path, threads: int
) -> int:
    """Write and print what holds. Gives the exit code."""
    about = host.read_host()
    rows, good, whole = [], True, True
    for check in every:
        lines = found.get(check.name, [])[: check.tries]
        whole &= len(lines) == check.tries
        if lines:
            holds, text = check.judge(lines)
            good &= holds
            rows.append((check.name, f"{len(lines)} of {check.tries}", holds, text))
    table = ["| check | tries made | holds | found |", "|---|---|---|---|"]
    table += [f"| {n} | {made} | {'yes' if h else '**no**'} | {t} |" for n, made, h, t in rows]
    where = f"{about.cpu}, {threads} threads, {platform.platform()}"
    text = "\n".join([where, "", *table])
    document = {
        "schema": "vitpe.trust/1",
        "host": about.cpu,
        "versions": about.versions,
        "threads": threads,
        "checks": [
            {"name": n, "tries": found[n], "holds": holds, "found": t} for n, _, holds, t in rows
        ],
    }
    (folder / "trust.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "trust.md").write_text(text + "\n")
    sys.stdout.write(f"{text}\n")
    return 1 if not good else 0 if whole else 2


if __name__ == "__main__":
    sys.exit(main())
