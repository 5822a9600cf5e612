"""What our own work costs on top of the bare ``torch.onnx.export`` call.

    python benchmarks/export_cost.py
    python benchmarks/export_cost.py --rounds 5 --json

Own work is fit + optimise + simplify + write as ``vitpe-export --json`` reports them: positions
resampled, passes, onnxsim (its import included), serialisation, the SHA-256 of the file. That of
the weights is computed on another core while the tracer runs, and waited for in write. ``--json``
also has the other steps: the trace, which is the bare call with attention and positions made
explicit, and loading.

The bare call is ``torch.onnx.export(model, (x,), dynamo=True, opset_version=20)`` on the same eager
network, which interpolates its own positions, with gradients off. It writes no file.

Every measurement is a fresh process that has imported the same modules before its clock starts;
the two sides alternate, and medians are compared. Exit code 1 when the share is over the limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

MODELS = ("vit_small_patch16_224", "vit_base_patch16_224")
RESOLUTION_PX = 384
OPSET = 20
LIMIT = 0.25
OWN = ("fit", "optimise", "simplify", "write")
STEPS = ("load", "trace", "parity", *OWN)


def measure_own(model: str, threads: int) -> dict[str, float]:
    """Seconds of each step of one export."""
    import torch

    import vitpe_deploy
    from vitpe_deploy import api

    torch.set_num_threads(threads)
    api.require_exporters()
    with tempfile.TemporaryDirectory(prefix="vitpe-cost-") as folder:
        report = vitpe_deploy.export(
            model, RESOLUTION_PX, opset=OPSET, verify=False, output_dir=folder, threads=threads
        )
    steps = report.steps_s.model_dump()
    return {name: float(steps[name]) for name in STEPS}


def measure_bare(model: str, threads: int) -> dict[str, float]:
    """Seconds of one bare call."""
    import torch

    from vitpe_deploy import api
    from vitpe_deploy.models.presets import VIT_PRESETS
    from vitpe_deploy.models.vit import VisionTransformer

    torch.set_num_threads(threads)
    api.require_exporters()
    torch.manual_seed(0)
    network = VisionTransformer(VIT_PRESETS[model]).eval().requires_grad_(False)
    example = (torch.zeros(1, 3, RESOLUTION_PX, RESOLUTION_PX),)
    start = time.perf_counter()
    with torch.no_grad():
        torch.onnx.export(network, example, dynamo=True, opset_version=OPSET, verbose=False)
    return {"bare": time.perf_counter() - start}


SIDES = {"own": measure_own, "bare": measure_bare}


def in_child(side: str, model: str, threads: int) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--child", side, "--model", model]
    done = subprocess.run(
        [*command, "--threads", str(threads)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"error: {side} of {model} failed\n{done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def compare(model: str, rounds: int, threads: int) -> dict[str, Any]:
    """Medians over alternating rounds, and every sample."""
    samples: dict[str, list[dict[str, float]]] = {"own": [], "bare": []}
    for number in range(rounds):
        order = ("own", "bare") if number % 2 == 0 else ("bare", "own")
        for side in order:
            samples[side].append(in_child(side, model, threads))
            sys.stderr.write(f"{model} round {number + 1}/{rounds} {side}\n")
    own_s = statistics.median(sum(s[name] for name in OWN) for s in samples["own"])
    bare_s = statistics.median(s["bare"] for s in samples["bare"])
    return {
        "model": model,
        "resolution": [RESOLUTION_PX, RESOLUTION_PX],
        "own_s": own_s,
        "bare_s": bare_s,
        "share": own_s / bare_s,
        "limit": LIMIT,
        "steps_s": {n: statistics.median(s[n] for s in samples["own"]) for n in STEPS},
        "samples": samples,
    }


def table(results: list[dict[str, Any]]) -> str:
    """One line per model."""
    heads = [f"{'model at 384x384':24}", *(f"{n:>9}" for n in (*OWN, "own", "bare", "share"))]
    lines = ["".join(heads)]
    for r in results:
        seconds = [*(r["steps_s"][n] for n in OWN), r["own_s"], r["bare_s"]]
        cells = [f"{r['model']:24}", *(f"{s:7.2f} s" for s in seconds), f"{r['share']:9.0%}"]
        lines.append("".join(cells))
    return "\n".join(lines)


def main() -> int:
    """Command line. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", choices=MODELS, help="repeatable; both")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side (3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    parser.add_argument("--json", action="store_true", help="all numbers as JSON on stdout")
    parser.add_argument("--child", choices=tuple(SIDES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    models = args.model or list(MODELS)
    if args.child:
        measured = SIDES[args.child](models[0], args.threads)
        sys.stdout.write(json.dumps(measured) + "\n")
        return 0
    results = [compare(model, args.rounds, args.threads) for model in models]
    document = {"schema": "vitpe.export-cost/1", "results": results}
    sys.stdout.write((json.dumps(document, indent=2) if args.json else table(results)) + "\n")
    return 0 if all(r["share"] <= LIMIT for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
