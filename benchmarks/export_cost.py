"""What an export costs beside the bare ``torch.onnx.export`` call, in time and in bytes.

    python benchmarks/export_cost.py
    python benchmarks/export_cost.py --only vit-s16-224 --rounds 5 --json

Time is the sum of the steps of ``vitpe-export --json`` but loading and parity: positions resampled,
the trace with attention and positions made explicit, passes, onnxsim (its import included),
serialisation, the SHA-256 of the file; that of the weights is computed on another core while the
tracer runs. ``own`` is that sum without the trace.

The bare call is ``torch.onnx.export(network, (x,), file, dynamo=True, opset_version=20)`` on the
eager network of the same library at the same size, with gradients off.

Every measurement is a fresh process that has imported the same modules before its clock starts;
the two sides alternate, and medians are compared. A file is compared with the bytes of the
network's parameters. Exit code 1 when a network is over 1.25 times the bare call, or its file over
1.02 times its weights (1.08 with a relative bias).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_files import SUITE, network
from peer_floors import EXPORT_TIME, SIZE, SIZE_WITH_BIAS

OPSET = 20
OWN = ("fit", "optimise", "simplify", "write")
STEPS = ("trace", *OWN)


def measure_own(name: str, threads: int) -> dict[str, float]:
    """Seconds of each step of one export, and bytes of its file."""
    import torch

    import vitpe_deploy
    from vitpe_deploy import own_exporters

    torch.set_num_threads(threads)
    own_exporters.require_exporters()
    entry = SUITE[name]
    with tempfile.TemporaryDirectory(prefix="vitpe-cost-") as folder:
        report = vitpe_deploy.export(
            entry.model,
            entry.size or None,
            opset=OPSET,
            verify=False,
            output_dir=folder,
            threads=threads,
        )
    steps = report.steps_s.model_dump()
    return {
        **{step: float(steps[step]) for step in STEPS},
        "file_bytes": report.artifacts[0].size_bytes,
    }


def measure_bare(name: str, threads: int) -> dict[str, float]:
    """Seconds of one bare call, and bytes of the network's parameters."""
    import torch

    from vitpe_deploy import own_exporters

    torch.set_num_threads(threads)
    own_exporters.require_exporters()
    made, x = network(name)
    made.requires_grad_(False)
    options = {"dynamo": True, "opset_version": OPSET, "verbose": False}
    with tempfile.TemporaryDirectory(prefix="vitpe-cost-") as folder, torch.no_grad():
        start = time.perf_counter()
        torch.onnx.export(made, (x,), Path(folder) / "bare.onnx", **options)
        seconds = time.perf_counter() - start
    weights = sum(p.numel() * p.element_size() for p in made.parameters())
    return {"bare": seconds, "weights_bytes": weights}


SIDES = {"own": measure_own, "bare": measure_bare}


def in_child(side: str, name: str, threads: int) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--child", side, "--only", name]
    done = subprocess.run(
        [*command, "--threads", str(threads)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"error: {side} of {name} failed\n{done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def compare(name: str, rounds: int, threads: int) -> dict[str, Any]:
    """Medians over alternating rounds, and every sample."""
    samples: dict[str, list[dict[str, float]]] = {"own": [], "bare": []}
    for number in range(rounds):
        order = ("own", "bare") if number % 2 == 0 else ("bare", "own")
        for side in order:
            samples[side].append(in_child(side, name, threads))
            sys.stderr.write(f"{name} round {number + 1}/{rounds} {side}\n")
    total_s = statistics.median(sum(s[step] for step in STEPS) for s in samples["own"])
    bare_s = statistics.median(s["bare"] for s in samples["bare"])
    file_bytes = samples["own"][0]["file_bytes"]
    weights_bytes = samples["bare"][0]["weights_bytes"]
    return {
        "model": name,
        "steps_s": {step: statistics.median(s[step] for s in samples["own"]) for step in STEPS},
        "own_s": statistics.median(sum(s[step] for step in OWN) for s in samples["own"]),
        "total_s": total_s,
        "bare_s": bare_s,
        "ratio": total_s / bare_s,
        "limit": EXPORT_TIME,
        "file_bytes": file_bytes,
        "weights_bytes": weights_bytes,
        "file_ratio": file_bytes / weights_bytes,
        "file_limit": SIZE_WITH_BIAS if SUITE[name].bias else SIZE,
        "samples": samples,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """One line per network."""
    lines = [
        "| model | trace s | own s | total s | bare s | total / bare | file MB | weights MB "
        "| file / weights |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['model']} | {r['steps_s']['trace']:.1f} | {r['own_s']:.2f} | {r['total_s']:.1f} "
        f"| {r['bare_s']:.1f} | **{r['ratio']:.2f}** | {r['file_bytes'] / 1e6:.1f} "
        f"| {r['weights_bytes'] / 1e6:.1f} | **{r['file_ratio']:.3f}** |"
        for r in results
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=tuple(SUITE), help="repeatable")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side (3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    parser.add_argument("--json", action="store_true", help="all numbers as JSON on stdout")
    parser.add_argument("--child", choices=tuple(SIDES), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    names = args.only or list(SUITE)
    if args.child:
        sys.stdout.write(json.dumps(SIDES[args.child](names[0], args.threads)) + "\n")
        return 0
    results = [compare(name, args.rounds, args.threads) for name in names]
    document = {"schema": "vitpe.export-cost/2", "results": results}
    sys.stdout.write((json.dumps(document, indent=2) if args.json else table(results)) + "\n")
    over = [
        f"{r['model']}: {what} {r[key]:.3f}, limit {r[limit]:.2f}"
        for r in results
        for what, key, limit in (
            ("time", "ratio", "limit"),
            ("file", "file_ratio", "file_limit"),
        )
        if r[key] > r[limit]
    ]
    for text in over:
        sys.stderr.write(f"missed: {text}\n")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
