"""What positions cost when they are computed in the graph: dynamic over static latency.

    python benchmarks/position_cost.py [--only NAME] [--model vit_small_patch16_224] [--rounds 20]

For each encoding both files are exported at one size and timed at it, as ``vitpe-bench`` times:
one child process per file, interleaved rounds, equal threads, ratios paired by round. Prints the
median ratio and its bootstrap 95 % interval per engine. Targets at ViT-S/224: at most 1.02 for
absolute, rotary and conditional encodings, 1.10 for biases; exits 1 when an interval lies above
its target altogether.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitpe_deploy.bench.inputs import save_inputs
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.bench.rounds import Candidate, Measured, Schedule, compare, measure

BIASES = frozenset({"relative-1d", "relative-2d", "decomposed", "hybrid", "window-bias", "log-cpb"})
ENGINES = ("onnxruntime", "openvino")


def timed(
    paths: Sequence[str], engine: str, folder: Path, options: argparse.Namespace
) -> list[Measured]:
    """Interleaved rounds of the files in one engine."""
    pixels = np.random.default_rng(0).standard_normal((1, 3, options.size, options.size))
    inputs = save_inputs(folder / "inputs.npz", [pixels.astype(np.float32)])
    candidates = [
        Candidate(path, ChildSpec(path, engine, "CPU", options.threads, str(inputs)))
        for path in paths
    ]
    schedule = Schedule(rounds=options.rounds, min_time_s=options.min_time)
    return measure(candidates, schedule)


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
    parser.add_argument("--min-time", type=float, default=5.0, help="seconds per file")
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
                first, second = timed((static, dynamic), engine, Path(folder), options)
                found = compare(first, second)
                limit = 1.10 if name in BIASES else 1.02
                print(
                    f"| {name} | {engine} | {first.summary.median:.1f} | {found.median:.3f} "
                    f"| {found.low:.3f} to {found.high:.3f} | {limit:.2f} |",
                    flush=True,
                )
                if found.low > limit:
                    above.append(f"{name} in {engine}")
    for row in above:
        print(f"above its target: {row}", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
