"""Can vitpe-bench be believed? Its medians against others', and its verdicts on known answers.

    python benchmarks/bench_trust.py [--repetitions 20] [--threads 2]

1. The same file in a hand-written ONNX Runtime loop, and in OpenVINO's own benchmark_app with the
   latency hint, against our medians: within 3 %.
2. A chain of 40 products against itself is no difference, and against one of 42 (5 % more work in
   two inserted layers) slower, with an interval that excludes 1; in every repetition.

Prints a line per check; exits 1 when one does not hold.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vitpe_deploy.bench.entry import LONGER
from vitpe_deploy.bench.inputs import save_inputs
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.bench.rounds import Candidate, Measured, Schedule, compare, measure
from vitpe_deploy.threads import available_cpus

WITHIN = 0.03
LAYERS, EXTRA = 40, 2
TOKENS, WIDTH = 197, 384

HAND_WRITTEN = """
import sys, time
import numpy as np, onnxruntime as ort
path, inputs, threads, runs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = ort.SessionOptions()
options.intra_op_num_threads = threads
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
feed = {session.get_inputs()[0].name: np.load(inputs)["in0"]}
for _ in range(10):
    session.run(None, feed)
times = []
for _ in range(runs):
    start = time.perf_counter()
    session.run(None, feed)
    times.append(time.perf_counter() - start)
print(float(np.median(times)) * 1e3)
"""


def write_chain(path: Path, layers: int) -> Path:
    """``x`` [1, 197, 384] through square products with one orthogonal matrix each."""
    generator = np.random.default_rng(0)
    nodes, weights = [], []
    for k in range(layers):
        weight = np.linalg.qr(generator.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{k}"))
        names = ["x" if k == 0 else f"h{k}", "y" if k == layers - 1 else f"h{k + 1}"]
        nodes.append(helper.make_node("MatMul", [names[0], f"w{k}"], [names[1]]))
    shape = [1, TOKENS, WIDTH]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path


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


def hand_written(path: Path, inputs: Path, threads: int, runs: int) -> float:
    """Median of the loop that everyone writes, in milliseconds."""
    done = subprocess.run(
        [sys.executable, "-c", HAND_WRITTEN, str(path), str(inputs), str(threads), str(runs)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def benchmark_app(path: Path, threads: int, runs: int) -> float | None:
    """Median of OpenVINO's own tool, in milliseconds; None where it is not installed."""
    tool = shutil.which("benchmark_app", path=str(Path(sys.executable).parent))
    if tool is None:
        return None
    flags = ["-hint", "latency", "-nthreads", str(threads), "-niter", str(runs)]
    precision = ["-infer_precision", "f32", "-api", "sync"]
    done = subprocess.run(
        [tool, "-m", str(path), *flags, *precision], capture_output=True, text=True, check=False
    )
    found = re.search(r"Median:\s+([\d.]+) ms", done.stdout)
    return None if found is None else float(found[1])


def judge(text: str, good: bool) -> bool:
    """One line, and its verdict."""
    sys.stdout.write(f"{'ok    ' if good else 'FAILED'} {text}\n")
    sys.stdout.flush()
    return good


def medians(folder: Path, threads: int) -> list[bool]:
    """Check 1: alternating with ours, so that the machine is the same for both."""
    path = write_chain(folder / "one.onnx", LAYERS)
    x = np.random.default_rng(1).standard_normal((1, TOKENS, WIDTH)).astype(np.float32)
    inputs = save_inputs(folder / "in.npz", [x])
    schedule = Schedule(rounds=5, iters=200)
    good = []
    for name, runtime in (("a hand-written loop", "onnxruntime"), ("benchmark_app", "openvino")):
        pairs = []
        for _ in range(5):
            (ours,) = timed([path], runtime, inputs, threads, schedule)
            other = (
                hand_written(path, inputs, threads, 200)
                if runtime == "onnxruntime"
                else benchmark_app(path, threads, 200)
            )
            if other is not None:
                pairs.append((ours.summary.median, other))
        if not pairs:
            good.append(judge(f"{name} did not run", False))
            continue
        ours_ms, other_ms = (statistics.median(side) for side in zip(*pairs, strict=True))
        text = f"{name}: {other_ms:.3f} ms, ours {ours_ms:.3f} ms ({ours_ms / other_ms - 1:+.1%})"
        good.append(judge(text, abs(ours_ms / other_ms - 1) <= WITHIN))
    return good


def verdicts(folder: Path, threads: int, repetitions: int) -> list[bool]:
    """Check 2."""
    short = write_chain(folder / "short.onnx", LAYERS)
    long = write_chain(folder / "long.onnx", LAYERS + EXTRA)
    inputs = folder / "in.npz"
    found: dict[str, list[str]] = {"itself": [], "5 % more": []}
    for number in range(repetitions):
        schedule = Schedule(rounds=20, min_time_s=1.0, max_rounds=20 * LONGER, seed=number)
        first, same, more = timed([short, short, long], "onnxruntime", inputs, threads, schedule)
        for key, other, wanted in (
            ("itself", same, "no difference"),
            ("5 % more", more, "slower"),
        ):
            ratio = compare(first, other)
            found[key].append(ratio.verdict)
            sys.stdout.write(
                f"       {number + 1}: {key}: {ratio.median:.3f} "
                f"({ratio.low:.3f} to {ratio.high:.3f}) {ratio.verdict}"
                f"{'' if ratio.verdict == wanted else '  <- ' + wanted}\n"
            )
    return [
        judge(
            f"{key}: {wanted} in {found[key].count(wanted)} of {repetitions}",
            found[key].count(wanted) == repetitions,
        )
        for key, wanted in (("itself", "no difference"), ("5 % more", "slower"))
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--threads", type=int, default=available_cpus())
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        good = medians(Path(folder), options.threads)
        good += verdicts(Path(folder), options.threads, options.repetitions)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
