"""Children that time real engines on files whose cost is known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from vitpe_deploy.bench import rounds as rounds_module
from vitpe_deploy.bench.child import wait_until_idle, warm_up
from vitpe_deploy.bench.inputs import save_expected
from vitpe_deploy.bench.overhead import measure_harness, sample_overhead_ms
from vitpe_deploy.bench.process import Child
from vitpe_deploy.bench.protocol import Warmed
from vitpe_deploy.bench.rounds import (
    Candidate,
    Measured,
    Schedule,
    compare,
    estimate_s,
    measure,
    undecided,
)
from vitpe_deploy.errors import ArtifactError, UsageError, VitpeError

from .conftest import ROWS, WIDTH, MakeChain, MakeSpec

QUICK = Schedule(rounds=6, iters=60, warmup=1, warmup_limit_s=1.0)


def script(latencies: Iterator[float]) -> Callable[[int], list[float]]:
    return lambda runs: [next(latencies) for _ in range(runs)]


def test_warm_up_lasts_until_latency_settles() -> None:
    """Twelve slow runs first: the warm-up must see them out, and not stop at the asked two."""
    found = warm_up(script(chain([20.0] * 6, [12.0] * 6, repeat(4.0))), at_least=2, limit_s=5)
    assert (found.stable, found.runs, found.median_ms) == (True, 20, 4.0)
    assert warm_up(script(repeat(4.0)), at_least=23, limit_s=5).runs == 25


def test_warm_up_gives_up() -> None:
    falling = (30 / 1.1**k for k in range(100_000))
    assert not warm_up(script(falling), at_least=2, limit_s=0.0).stable


def test_measuring_costs_microseconds_and_says_so() -> None:
    """What a sample costs beyond the run; benchmarks/bench_trust.py holds it against a model."""
    assert 0 < sample_overhead_ms() < 0.03
    harness = measure_harness()
    assert 0 < harness.sample_overhead_ms < 0.1
    assert harness.child_rss_bytes is not None
    assert 10 << 20 < harness.child_rss_bytes < 400 << 20


def test_longer_chain_is_slower_in_proportion(make_chain: MakeChain, make_spec: MakeSpec) -> None:
    files = [make_chain("a.onnx", 60), make_chain("b.onnx", 120), make_chain("c.onnx", 60)]
    single, double, again = measure([Candidate(f.name, make_spec(f)) for f in files], QUICK)
    assert [len(r) for r in single.rounds] == [10] * 6
    assert compare(single, double).median > 1.3
    assert compare(single, double).verdict == "slower"
    assert compare(double, again).verdict == "faster"
    assert single.loaded.compile_ms is not None
    assert 0 < single.loaded.compile_ms <= single.loaded.load_ms
    assert single.peak_rss_bytes is not None
    assert single.peak_rss_bytes > 10 << 20


class Dying:
    """A child whose engine crashes at its last sample of so many; 0 for one that never does."""

    loaded = cast(Any, "loaded")
    peak_rss_bytes = None
    always_idle = True

    def __init__(self, lives: int, command: object) -> None:
        self.left = lives or 10**6

    def __enter__(self) -> Dying:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def warm_up(self, at_least: int, limit_s: float) -> Warmed:
        return Warmed(runs=1, stable=True, median_ms=1.0)

    def sample(self, runs: int) -> list[float]:
        self.left -= 1
        if not self.left:
            raise ArtifactError("the engine crashed")
        return [1.0] * runs


@pytest.mark.parametrize("lives", [1, 3, 4])
def test_who_crashes_between_rounds_is_left_out_alone(
    monkeypatch: pytest.MonkeyPatch, lives: int
) -> None:
    """In the first, a middle or the last round; the others keep all of theirs."""
    monkeypatch.setattr(rounds_module, "Child", lambda spec, command: Dying(spec.lives, command))
    schedule = Schedule(rounds=4, iters=4, max_rounds=8)

    def candidate(label: str, lives: int) -> Candidate:
        spec = SimpleNamespace(lives=lives, expected="", pictures="", throughput=False)
        return Candidate(label, cast(Any, spec))

    said: list[tuple[str, str]] = []
    both = [candidate("dies", lives), candidate("lives", 0)]
    found = measure(both, schedule, on_error=lambda c, e: said.append((c.label, e.message)))
    assert said == [("dies", "the engine crashed")]
    assert [(one.candidate.label, len(one.rounds)) for one in found] == [("lives", 4)]
    assert measure(both[:1], schedule, on_error=lambda c, e: None) == []
    with pytest.raises(ArtifactError, match="crashed"):
        measure(both, schedule)


def measured(rounds: Sequence[float], starts: tuple[int, ...] = (20,)) -> Measured:
    samples = tuple((value,) for value in rounds)
    return Measured(
        cast(Any, None), cast(Any, None), cast(Any, None), samples, None, idle=True, starts=starts
    )


def test_only_what_is_unsure_goes_on() -> None:
    noise = np.random.default_rng(0)

    def around(level: float, spread: float) -> Measured:
        return measured((level * (1 + spread * noise.standard_normal(20))).tolist())

    found = {0: around(1, 0), 3: around(2, 0.01), 5: around(1, 0.001), 6: around(1.1, 0.4)}
    assert undecided(found) == [0, 6]
    del found[6]
    assert undecided(found) == []


def test_ratios_are_of_the_starts_that_both_took_part_in() -> None:
    """What the first does later, with others, is not compared: the machine may have changed."""
    a = measured([1.0] * 10 + [3.0] * 90, (5, 5, 90))
    b = measured([2.0] * 10, (5, 5))
    assert (compare(a, b).median, compare(a, b).rounds) == (2.0, 10)
    assert compare(b, a).median == 0.5


def test_luck_of_a_start_is_no_difference() -> None:
    """Two per cent for all of a process's life, either way: not a sure answer of 60 rounds."""
    noise = np.random.default_rng(0)
    luck = np.repeat([1.02, 0.985, 0.99], 20) * (1 + 0.002 * noise.standard_normal(60))
    a, b = measured([1.0] * 60, (20, 20, 20)), measured(luck.tolist(), (20, 20, 20))
    found = compare(a, b)
    assert found.low < 0.99 < 1.01 < found.high
    assert found.verdict in ("no difference", "unsure")
    first = compare(measured([1.0] * 20), measured(luck.tolist()[:20]))
    assert first.low > 1.01  # one start alone is sure of the wrong thing


def test_processes_are_started_anew(make_chain: MakeChain, make_spec: MakeSpec) -> None:
    files = [make_chain("a.onnx", 2), make_chain("b.onnx", 4)]
    schedule = Schedule(rounds=5, starts=2, iters=10, warmup=1, warmup_limit_s=0.5)
    shown: list[tuple[int, int]] = []
    found = measure(
        [Candidate(f.name, make_spec(f)) for f in files],
        schedule,
        on_round=lambda done, total: shown.append((done, total)),
    )
    assert [m.starts for m in found] == [(3, 2), (3, 2)]
    assert [len(m.rounds) for m in found] == [5, 5]
    assert shown == [(k, 5) for k in range(5)]
    assert compare(*found).rounds == 5


def test_agreement_is_told_beside_the_samples(
    make_chain: MakeChain, make_spec: MakeSpec, tmp_path: Path
) -> None:
    path = make_chain("a.onnx", 2)
    weight = np.linalg.qr(np.random.default_rng(3).standard_normal((WIDTH, WIDTH)))[0]
    x = np.random.default_rng(0).standard_normal((1, ROWS, WIDTH)).astype(np.float32)
    right = [{"y": v @ weight @ weight} for v in (x, 2 * x)]
    good = save_expected(tmp_path / "good.npz", right)
    wrong = save_expected(tmp_path / "wrong.npz", [{"y": 1.01 * o["y"]} for o in right])
    candidates = [
        Candidate(str(f), make_spec(path, runtime, str(f)))
        for f in (good, wrong)
        for runtime in ("onnxruntime", "openvino")
    ]
    found = [m.agreement for m in measure(candidates, Schedule(rounds=1, iters=1, warmup=0))]
    assert [a is not None and a.passed for a in found] == [True, True, False, False]
    assert found[0] is not None
    assert found[0].max_rel is not None
    assert found[0].max_rel < 1e-5
    assert found[2] is not None
    assert found[2].max_rel == pytest.approx(0.01 / 1.01, rel=1e-3)


def test_what_does_not_run_is_told_and_left_out(
    make_chain: MakeChain, make_spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    good, broken = make_spec(make_chain("a.onnx", 2)), make_spec(tmp_path / "broken.onnx")
    told: list[VitpeError] = []
    found = measure(
        [Candidate("good", good), Candidate("broken", broken)],
        Schedule(rounds=1, iters=1, warmup=0),
        on_error=lambda candidate, error: told.append(error),
    )
    assert [m.candidate.label for m in found] == ["good"]
    assert isinstance(told[0], ArtifactError)
    with pytest.raises(ArtifactError, match=r"broken\.onnx"):
        measure([Candidate("broken", broken)], QUICK)


def test_child_that_dies_is_an_error_with_its_last_words(
    make_chain: MakeChain, make_spec: MakeSpec
) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('out of luck')")
    with (
        pytest.raises(ArtifactError, match="out of luck"),
        Child(make_spec(make_chain("a.onnx", 2)), command),
    ):
        pass


def test_device_children_import_neither_torch_nor_onnx(
    make_chain: MakeChain, make_spec: MakeSpec
) -> None:
    """The child's own modules, after it has answered."""
    spec = make_spec(make_chain("a.onnx", 2))
    script = (
        "import io, json, sys\n"
        'sys.stdin = io.StringIO(\'{"do": "open"}\\n\')\n'
        "from vitpe_deploy.bench import child\n"
        "child.main([sys.argv[1]])\n"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'onnx', 'onnx_ir')))\n"
    )
    import json

    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(spec.as_document())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["precision_executed"] == "f32"


def test_idle_means_idle() -> None:
    assert wait_until_idle()


def test_schedule() -> None:
    assert Schedule(rounds=20, min_time_s=3).runs_per_round(50) == 3
    assert Schedule(rounds=20, min_time_s=3).runs_per_round(1000) == 1
    assert Schedule(rounds=20, iters=30).runs_per_round(1) == 2
    # one candidate of 100 ms: load 3 s, ten warm-up runs, 20 rounds of 2 + 1 runs and a pause
    assert estimate_s([100.0], Schedule(rounds=20, min_time_s=3)) == pytest.approx(3 + 1 + 6.4)
    with pytest.raises(UsageError, match="--rounds"):
        Schedule(rounds=0)
