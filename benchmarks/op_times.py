"""Where the time of an inference goes: milliseconds per operator, in either engine.

    python benchmarks/op_times.py out/model.onnx peers-work/full/vit-s16-224/opset20.onnx
    python benchmarks/op_times.py --runtime openvino --nodes 20 out/model.xml

Several files become columns of one table. ``--nodes N`` lists the N slowest nodes of each as well.
The numbers are those of the engines' own profilers, which slow small operators down: they say where
to look; ratios between files come from peers.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitpe_deploy.runtimes.openvino import shared_core
from vitpe_deploy.threads import available_cpus

WARMUP = 3


SIDE, LENGTH = 224, 77


@dataclass(frozen=True, slots=True)
class NodeTime:
    """Median milliseconds of one executed node."""

    name: str
    operator: str
    ms: float


def main(argv: Sequence[str] | None = None) -> int:
    """Print one table. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--runtime", choices=("ort", "openvino"), default="ort")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=0, help="also the slowest N nodes of each")
    parser.add_argument("--threads", type=int, default=available_cpus())
    options = parser.parse_args(argv)
    profile = profile_ort if options.runtime == "ort" else profile_openvino
    columns = [profile(file, options.runs, options.threads) for file in options.files]
    sys.stdout.write(table(options.files, columns) + "\n")
    for file, nodes in zip(options.files, columns, strict=True):
        slowest = sorted(nodes, key=lambda n: -n.ms)[: options.nodes]
        for node in slowest:
            sys.stdout.write(f"{file.name}: {node.ms:8.3f} ms {node.operator:20} {node.name}\n")
    return 0


def profile_ort(file: Path, runs: int, threads: int) -> list[NodeTime]:
    """Nodes of ONNX Runtime's optimised graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/run"
        session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        (port,) = session.get_inputs()
        feeds = {port.name: example(port.shape, "int" in port.type)}
        for _ in range(WARMUP + runs):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        name = str(event["name"])
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            node = name.removesuffix("_kernel_time")
            samples[node, event["args"]["op_name"]].append(event["dur"] / 1e3)
    return [
        NodeTime(name, operator, float(np.median(values[-runs:])))
        for (name, operator), values in samples.items()
    ]


def profile_openvino(file: Path, runs: int, threads: int) -> list[NodeTime]:
    """Nodes of OpenVINO's execution graph, by its layer types."""
    settings = openvino_settings(threads) | {"PERF_COUNT": True}
    compiled = shared_core().compile_model(str(file), "CPU", settings)
    request = compiled.create_infer_request()
    port = compiled.inputs[0]
    shape = [d.get_length() if d.is_static else "" for d in port.get_partial_shape()]
    values = example(shape, "i" in port.get_element_type().get_type_name()[:1])
    for _ in range(WARMUP):
        request.infer([values])
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(runs):
        request.infer([values])
        for info in request.profiling_info:
            samples[info.node_name, info.node_type].append(info.real_time.total_seconds() * 1e3)
    found = [NodeTime(*node, float(np.median(times))) for node, times in samples.items()]
    return [node for node in found if node.ms]


def openvino_settings(threads: int) -> dict[str, Any]:
    """As vitpe-bench sets it: float32, one request at a time."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
    }


def example(shape: Sequence[int | str], integers: bool) -> np.ndarray:
    """Noise; token ids are small. Symbolic: one picture of ``SIDE`` pixels, or ``LENGTH`` words."""
    numbers = np.random.default_rng(0)
    side = LENGTH if integers else SIDE
    fixed = [n if isinstance(n, int) else 1 if axis == 0 else side for axis, n in enumerate(shape)]
    if integers:
        return numbers.integers(1, 100, fixed).astype(np.int64)
    return numbers.standard_normal(fixed).astype(np.float32)


def table(files: Sequence[Path], columns: Sequence[Sequence[NodeTime]]) -> str:
    """Operators by what they cost in the first file."""
    sums: list[dict[str, float]] = [defaultdict(float) for _ in columns]
    counts: list[dict[str, int]] = [defaultdict(int) for _ in columns]
    for nodes, total, count in zip(columns, sums, counts, strict=True):
        for node in nodes:
            total[node.operator] += node.ms
            count[node.operator] += 1
    operators = sorted({k for total in sums for k in total}, key=lambda k: -sums[0].get(k, 0.0))
    lines = ["| operator | " + " | ".join(f"{f.parent.name}/{f.name} ms | n" for f in files) + " |"]
    lines.append("|---" * (1 + 2 * len(files)) + "|")
    for operator in operators:
        cells = [
            f"{total.get(operator, 0.0):.2f} | {count.get(operator, 0)}"
            for total, count in zip(sums, counts, strict=True)
        ]
        lines.append(f"| {operator} | " + " | ".join(cells) + " |")
    whole = [
        f"{sum(total.values()):.2f} | {sum(c.values())}"
        for total, c in zip(sums, counts, strict=True)
    ]
    return "\n".join([*lines, "| all | " + " | ".join(whole) + " |"])


if __name__ == "__main__":
    sys.exit(main())
