"""Peak memory of one inference in ONNX Runtime, ours beside torch.onnx.export, at about 518 px.

    python benchmarks/memory.py --work DIR
    python benchmarks/memory.py --only dinov2-s14-518 --work DIR --json

Every network of the suite that reads pictures, at the size nearest 518 that it takes: 518 where the
patch is 14, else 512. Counted is the largest resident memory during the first inference above that
of the loaded session, in a child process of its own: Linux starts a new peak (``VmHWM``) on a write
to ``/proc/self/clear_refs``. The median of several processes counts. Files are made in child
processes and kept in ``--work``.

Peers are plain exports at opsets 18, 20 and 23; the smallest is compared with. Exits 1 when a
limit is missed: 0.70 of the best peer, 1.02 where attention has a relative bias.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer_files import OPSETS, SUITE
from peer_floors import MEMORY, MEMORY_WITH_BIAS

from vitpe_deploy.bench.host import read_host
from vitpe_deploy.bench.process import Child
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.errors import VitpeError
from vitpe_deploy.threads import available_cpus

PATCH_14_PX, OTHERS_PX = 518, 512
PICTURES = tuple(name for name, entry in SUITE.items() if entry.size)


def size_of(name: str) -> int:
    """Pixels of a side at which a network is measured."""
    return PATCH_14_PX if "14" in name.partition("-")[2] else OTHERS_PX


def make_plain(name: str, opset: int, folder: Path) -> None:
    """One plain export at that size, and an input."""
    import numpy as np
    import timm
    import torch

    from vitpe_deploy.bench.inputs import save_inputs

    size = size_of(name)
    network = timm.create_model(SUITE[name].model.removeprefix("timm:"), img_size=size)
    x = torch.zeros(1, 3, size, size)
    torch.onnx.export(
        network.eval().requires_grad_(False),
        (x,),
        dynamo=True,
        opset_version=opset,
        verbose=False,
    ).save(str(folder / f"opset{opset}.onnx"))
    noise = np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)
    save_inputs(folder / "inputs.npz", [noise])


def make_ours(name: str, folder: Path) -> None:
    """Our file at that size."""
    import vitpe_deploy

    report = vitpe_deploy.export(
        SUITE[name].model, size_of(name), verify=False, output_dir=folder / "made", force=True
    )
    Path(report.artifacts[0].path).replace(folder / "ours.onnx")


def files(name: str, work: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Ours and the peers' by label, and what could not be made, with the reason."""
    folder = work.resolve() / name
    folder.mkdir(parents=True, exist_ok=True)
    found, problems = {}, {}
    for kind in ("ours", *(f"opset{opset}" for opset in OPSETS)):
        path = folder / f"{kind}.onnx"
        if not path.is_file():
            say(f"{name}: make {kind}")
            command = [sys.executable, __file__, "--make", kind, "--only", name]
            done = subprocess.run(
                [*command, "--work", str(work)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                problems[kind] = last[:200]
                continue
        found[kind] = path
    return found, problems


def peak_bytes(path: Path, inputs: Path, threads: int) -> int:
    """What the first inference of a fresh process needs above the loaded session."""
    spec = ChildSpec(str(path), "onnxruntime", "CPU", threads, str(inputs))
    with Child(spec) as child:
        loaded = child.loaded
    if loaded is None or loaded.first_peak_bytes is None:
        raise SystemExit(
            "error: this system does not tell the peak of a process (Linux alone does)"
        )
    return loaded.first_peak_bytes


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one network."""
    paths, problems = files(name, options.work)
    result: dict[str, Any] = {"model": name, "size": size_of(name), "problems": problems}
    if "ours" not in paths or len(paths) < 2:
        return result | {"ratio": None}
    inputs = paths["ours"].with_name("inputs.npz")
    samples: dict[str, list[int]] = {label: [] for label in paths}
    for _ in range(options.repeat):
        for label, path in paths.items():
            try:
                samples[label].append(peak_bytes(path, inputs, options.threads))
            except VitpeError as problem:
                problems[label] = problem.message
    peaks = {label: statistics.median(found) for label, found in samples.items() if found}
    ours = peaks.pop("ours")
    best = min(peaks, key=lambda label: peaks[label])
    limit = MEMORY_WITH_BIAS if SUITE[name].bias else MEMORY
    return result | {
        "ours_bytes": ours,
        "peer": best,
        "peer_bytes": peaks[best],
        "ratio": ours / peaks[best],
        "limit": limit,
        "samples_bytes": samples,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """One line per network."""
    lines = [
        "| model | px | ours MB | best peer MB | best peer | ours / peer | limit |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        if r["ratio"] is None:
            lines.append(f"| {r['model']} | {r['size']} | | | {r['problems']} | | |")
            continue
        lines.append(
            f"| {r['model']} | {r['size']} | {r['ours_bytes'] / 1e6:.1f} "
            f"| {r['peer_bytes'] / 1e6:.1f} | {r['peer']} | **{r['ratio']:.2f}** | {r['limit']} |"
        )
    return "\n".join(lines)


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=PICTURES, help="repeatable")
    parser.add_argument("--work", type=Path, default=Path("memory-work"), help="folder of files")
    parser.add_argument("--repeat", type=int, default=3, help="processes per file (3)")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--make", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    names = options.only or PICTURES
    if options.make:
        folder = options.work.resolve() / names[0]
        if options.make == "ours":
            make_ours(names[0], folder)
        else:
            make_plain(names[0], int(options.make.removeprefix("opset")), folder)
        return 0
    results = [measured(name, options) for name in names]
    document = {
        "schema": "vitpe.memory/1",
        "host": asdict(read_host()),
        "threads": options.threads,
        "results": results,
    }
    sys.stdout.write((json.dumps(document, indent=1) if options.json else table(results)) + "\n")
    over = [r for r in results if r["ratio"] is None or r["ratio"] > r["limit"]]
    for r in over:
        say(f"missed: {r['model']}: {r['ratio']}")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
