"""Do two buckets hold their shared weights twice in memory, and what does it cost to avoid that?

    python benchmarks/buckets.py [--model vit_small_patch16_224] [--sizes 224,384] [--rounds 15]

Exports buckets into a temporary folder and prints their size on disk beside that of one file, then
opens one and two of them in a process of its own per engine. Memory is the proportional set size of
the process (pages that are mapped twice count once) above what it was before the first bucket.
ONNX Runtime repacks weights for its kernels when a session is made; ``session.disable_prepacking``
leaves them in the mapped file, and its latency is measured beside the default in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("onnxruntime", "onnxruntime, not repacked", "openvino .onnx", "openvino .xml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--sizes", default="224,384")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(in_child(**json.loads(given.child))))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(given, Path(folder))


def compare(given: argparse.Namespace, folder: Path) -> None:
    """Export, then one process per engine."""
    import vitpe_deploy

    sizes = given.sizes.split(",")
    for name, options in (("buckets", {"buckets": sizes}), ("one", {"resolution": sizes[-1]})):
        vitpe_deploy.export(
            given.model, output_dir=folder / name, formats=["onnx", "openvino"], verify=False,
            **options,
        )  # fmt: skip
    for suffixes in ((".onnx", ".onnx.data"), (".xml", ".bin")):
        one, all_of_them = (
            sum(p.stat().st_size for p in (folder / n).iterdir() if p.name.endswith(suffixes))
            for n in ("one", "buckets")
        )
        print(
            f"{suffixes[0]:<6} on disk: one file at {sizes[-1]} {one / 1e6:.1f} MB, "
            f"{len(sizes)} buckets {all_of_them / 1e6:.1f} MB ({all_of_them / one - 1:+.1%})"
        )
    print(f"\n{'engine':<28}{'one bucket':>12}{'two buckets':>13}{'more':>8}{'latency':>12}")
    for engine in ENGINES:
        suffix = ".xml" if engine.endswith(".xml") else ".onnx"
        index = next((folder / "buckets").glob(f"*{suffix}.buckets.json"))
        spec = {
            "engine": engine, "index": str(index), "rounds": given.rounds, "threads": given.threads
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, __file__, "--child", json.dumps(spec)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1])
        first, second = found["pss_mb"]
        print(
            f"{engine:<28}{first:>9.0f} MB{second:>10.0f} MB{second - first:>5.0f} MB"
            f"{found['latency_ms']:>9.1f} ms"
        )


def in_child(engine: str, index: str, rounds: int, threads: int) -> dict[str, Any]:
    """Memory with one and with two buckets open, and the median latency of the first."""
    listed = json.loads(Path(index).read_text())["buckets"]
    _import(engine)
    before = proportional_bytes()
    opened, memory = [], []
    for bucket in listed[:2]:
        run = open_bucket(engine, Path(index).with_name(bucket["file"]), threads)
        x = np.random.default_rng(0).standard_normal((1, 3, *bucket["resolution"]))
        values = x.astype(np.float32)
        run(values)
        opened.append((run, values))
        memory.append((proportional_bytes() - before) / 1e6)
    run, values = opened[0]
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        run(values)
        samples.append((time.perf_counter() - start) * 1e3)
    return {"pss_mb": memory, "latency_ms": statistics.median(samples)}


def _import(engine: str) -> None:
    if engine.startswith("openvino"):
        from vitpe_deploy.runtimes.openvino import import_openvino

        import_openvino()
    else:
        import onnxruntime  # noqa: F401


def open_bucket(engine: str, path: Path, threads: int) -> Any:
    """A function that runs one inference."""
    from vitpe_deploy.runtimes import open_runtime

    runtime = open_runtime(
        engine.split(",")[0].split(" ")[0], path, threads=threads,
        repack="not repacked" not in engine,
    )  # fmt: skip
    runtime.__enter__()
    return lambda values: runtime.run({runtime.inputs[0].name: values})


def proportional_bytes() -> int:
    """Memory of this process, pages that are mapped several times counted once."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell")


if __name__ == "__main__":
    main()
