"""What positions cost when they are computed in the graph: dynamic over static latency.

    python benchmarks/position_cost.py [--only NAME] [--model vit_small_patch16_224] [--rounds 20]

For each encoding both files are exported at one size and timed at it: one child process per file,
rounds interleaved, equal threads, the median of each round compared with that of the other file in
the same round. Prints the median ratio and its bootstrap 95 % interval per engine. Targets at
ViT-S/224: at most 1.02 for absolute, rotary and conditional encodings, 1.10 for biases; exits 1
when an interval lies above its target altogether.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BIASES = frozenset({"relative-1d", "relative-2d", "decomposed", "hybrid", "window-bias", "log-cpb"})
ENGINES = ("onnxruntime", "openvino")
REPEATS = 5


def child(path: str, engine: str, threads: int, batch: int, height: int, width: int) -> None:
    """Load a file, then time ``REPEATS`` runs for every line on standard input."""
    from vitpe_deploy.runtimes import open_runtime

    pixels = np.random.default_rng(0).standard_normal((batch, 3, height, width))
    inputs = {"pixel_values": pixels.astype(np.float32)}
    with open_runtime(engine, Path(path), threads=threads) as runtime:
        for _ in range(5):
            runtime.run(inputs)
        print("ready", flush=True)
        for _ in sys.stdin:
            samples = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                runtime.run(inputs)
                samples.append((time.perf_counter() - start) * 1e3)
            print(json.dumps(samples), flush=True)


@contextmanager
def timed(path: str, engine: str, threads: int, size: int) -> Iterator[subprocess.Popen[str]]:
    """A child that waits with its file loaded."""
    arguments = [sys.executable, __file__, "--child", path, engine, str(threads), str(size)]
    process = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{path} does not run in {engine}")
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.wait(timeout=60)


def median_of_round(process: subprocess.Popen[str]) -> float:
    """One round of one child, in milliseconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(np.median(json.loads(process.stdout.readline())))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Dynamic over static latency with its 95 % interval."""

    encoding: str
    engine: str
    static_ms: float
    ratio: float
    low: float
    high: float

    @property
    def limit(self) -> float:
        """The target for this kind of encoding."""
        return 1.10 if self.encoding in BIASES else 1.02


def compare(static: str, dynamic: str, engine: str, options: argparse.Namespace) -> Ratio:
    """Interleaved rounds of both files in one engine."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(timed(p, engine, options.threads, options.size))
            for p in (static, dynamic)
        ]
        generator = np.random.default_rng(0)
        pairs = []
        for _ in range(options.rounds):
            pair = [0.0, 0.0]
            for place in generator.permutation(2):
                pair[place] = median_of_round(children[place])
            pairs.append(pair)
    times = np.array(pairs)
    ratios = times[:, 1] / times[:, 0]
    draws = generator.choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return Ratio("", engine, float(np.median(times[:, 0])), float(np.median(ratios)), low, high)


def files(encoding: str, options: argparse.Namespace, folder: str) -> tuple[str, str]:
    """Static and dynamic file of one encoding, in one child so that this process stays small."""
    script = (
        "import sys, vitpe_deploy as v\n"
        "m, e, s, o = sys.argv[1:]\n"
        "for d, r in (('none', int(s)), ('size', None)):\n"
        "    a = v.export(m, r, encoding=e, dynamic=d, output_dir=o, verify=False, force=True)\n"
        "    print(a.artifacts[0].path)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, options.model, encoding, str(options.size), folder],
        capture_output=True,
        text=True,
        check=True,
    )
    static, dynamic = done.stdout.split()
    return static, dynamic


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    from vitpe_deploy import encodings
    from vitpe_deploy.threads import available_cpus

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", help="an encoding; repeatable")
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=available_cpus())
    options = parser.parse_args(argv)
    names = options.only or [n for n in encodings.names() if "vit" in encodings.networks_of(n)]
    print("| encoding | engine | static ms | dynamic / static | 95 % interval | target |")
    print("|---|---|---|---|---|---|")
    above = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            static, dynamic = files(name, options, folder)
            for engine in ENGINES:
                found = compare(static, dynamic, engine, options)
                limit = Ratio(name, engine, 0, 0, 0, 0).limit
                print(
                    f"| {name} | {engine} | {found.static_ms:.1f} | {found.ratio:.3f} "
                    f"| {found.low:.3f} to {found.high:.3f} | {limit:.2f} |",
                    flush=True,
                )
                if found.low > limit:
                    above.append(f"{name} in {engine}")
    for row in above:
        print(f"above its target: {row}", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), 1, int(sys.argv[5]), int(sys.argv[5]))
        sys.exit(0)
    sys.exit(main())
