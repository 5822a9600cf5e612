"""The fp32 matrix product peak of this machine, measured: the ceiling that rows are held against.

    python -m vitpe_deploy.bench.gemm THREADS

The faster of OpenVINO's product (a graph of one MatMul) and numpy's BLAS, at a few square sizes.
An engine's own product counts because the ceiling must not lie below what an engine reaches.
Runs in a process of its own: BLAS reads its thread count when it is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from vitpe_deploy.errors import VitpeError

SIZES = (768, 1024, 1536)
_SECONDS = 0.6
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def gemm_peak_gflops(threads: int) -> float:
    """Billions of float32 operations per second, a multiply and an add counted as two.

    Raises:
        VitpeError: the measuring process failed.
    """
    environment = os.environ | dict.fromkeys(_THREAD_VARIABLES, str(threads))
    done = subprocess.run(
        [sys.executable, "-m", "vitpe_deploy.bench.gemm", str(threads)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise VitpeError(f"the GEMM peak could not be measured: {last[:200]}")
    return max(float(value) for value in json.loads(done.stdout.splitlines()[-1]).values())


def _best(run: Callable[[], Any], operations: float) -> float:
    """Operations per second of the fastest run."""
    run()
    best, start = float("inf"), time.monotonic()
    while time.monotonic() - start < _SECONDS:
        before = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - before)
    return operations / best / 1e9


def _numpy_peak(size: int) -> float:
    import numpy as np

    a, b = np.random.default_rng(0).standard_normal((2, size, size), dtype=np.float32)
    out = np.empty_like(a)
    return _best(lambda: np.matmul(a, b, out=out), 2.0 * size**3)


def _openvino_peak(size: int, threads: int) -> float:
    """With a constant right side, as the weights of a network are: it may be packed once."""
    import numpy as np

    from vitpe_deploy.runtimes.openvino import import_openvino, shared_core

    ov = import_openvino()
    a, b = np.random.default_rng(0).standard_normal((2, size, size), dtype=np.float32)
    ops = ov.opset13
    left = ops.parameter([size, size], np.float32)
    model = ov.Model([ops.matmul(left, ops.constant(b), False, False)], [left])
    config = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    request = shared_core().compile_model(model, "CPU", config).create_infer_request()
    return _best(lambda: request.infer([a], share_inputs=True, share_outputs=True), 2.0 * size**3)


def main() -> int:
    """The measuring process: one JSON document on stdout."""
    threads = int(sys.argv[1])
    found = {f"numpy {size}": _numpy_peak(size) for size in SIZES}
    found |= {f"openvino {size}": _openvino_peak(size, threads) for size in SIZES}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
