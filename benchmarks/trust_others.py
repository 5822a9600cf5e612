"""How others time a file: the loop that everyone writes, and OpenVINO's benchmark_app."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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


def hand_written(path: Path, inputs: Path, threads: int, runs: int) -> float:
    """Median of the loop in milliseconds."""
    done = subprocess.run(
        [sys.executable, "-c", HAND_WRITTEN, str(path), str(inputs), str(threads), str(runs)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def benchmark_app(path: Path, _inputs: Path, threads: int, runs: int) -> float:
    """Median of OpenVINO's own tool in milliseconds, on noise that it makes itself.

    It takes ``-nthreads`` without a hint only, so hint and threads come from a configuration file.

    Raises:
        RuntimeError: it is not installed, or said no median.
    """
    tool = shutil.which("benchmark_app", path=str(Path(sys.executable).parent))
    tool = tool or shutil.which("benchmark_app")
    if tool is None:
        raise RuntimeError("benchmark_app is not installed: it comes with openvino")
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": "f32",
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump({"CPU": settings}, config)
        config.flush()
        flags = ["-d", "CPU", "-api", "sync", "-niter", str(runs), "-load_config", config.name]
        done = subprocess.run(
            [tool, "-m", str(path), *flags], capture_output=True, text=True, check=False
        )
    found = re.search(r"Median:\s+([\d.]+) ms", done.stdout)
    if found is None:
        raise RuntimeError(f"benchmark_app said no median: {done.stdout[-500:]}")
    return float(found[1])
