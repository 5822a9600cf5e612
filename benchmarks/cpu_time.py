"""CPU time of inferences on one thread, files interleaved: for a machine that is never quiet.

    python benchmarks/cpu_time.py out/new.onnx out/old.onnx
    python benchmarks/cpu_time.py --runtime openvino --rounds 40 out/new.xml out/old.xml

Other programs take turns on the core but add nothing to the CPU time of this process, so that what
is left of them is the cache. Lowest and lower quartile are printed, and each over the first file's:
above 1, the first is faster. It says which of two graphs does less; what a user waits for, on all
threads, is measured by peers.py and vitpe-bench.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from op_times import example, openvino_settings

from vitpe_deploy.runtimes.openvino import shared_core

WARMUP, PER_ROUND = 2, 2
SEED = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per file. Gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--runtime", choices=("ort", "openvino"), default="ort")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args(argv)
    loader = load_ort if options.runtime == "ort" else load_openvino
    samples = measure([loader(file) for file in options.files], options.rounds)
    first = samples[0]
    for file, times in zip(options.files, samples, strict=True):
        low, quartile = np.min(times), np.percentile(times, 25)
        ratios = low / np.min(first), quartile / np.percentile(first, 25)
        sys.stdout.write(
            f"{low:9.2f} ms lowest, {quartile:9.2f} ms quartile, over the first "
            f"{ratios[0]:.3f}, {ratios[1]:.3f}  {file}\n"
        )
    return 0


def measure(runs: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Milliseconds of CPU time, a list per file; the order is drawn anew in every round."""
    samples: list[list[float]] = [[] for _ in runs]
    for run in runs:
        for _ in range(WARMUP):
            run()
    order = np.random.default_rng(SEED)
    for _ in range(rounds):
        for place in order.permutation(len(runs)):
            for _ in range(PER_ROUND):
                start = time.process_time()
                runs[place]()
                samples[place].append((time.process_time() - start) * 1e3)
    return samples


def load_ort(file: Path) -> Callable[[], object]:
    """One inference in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    (port,) = session.get_inputs()
    feeds = {port.name: example(port.shape, "int" in port.type)}
    return lambda: session.run(None, feeds)


def load_openvino(file: Path) -> Callable[[], object]:
    """One inference in OpenVINO."""
    compiled = shared_core().compile_model(str(file), "CPU", openvino_settings(1))
    request = compiled.create_infer_request()
    port = compiled.inputs[0]
    shape = [d.get_length() if d.is_static else "" for d in port.get_partial_shape()]
    values = example(shape, port.get_element_type().get_type_name().startswith("i"))
    return lambda: request.infer([values])


if __name__ == "__main__":
    sys.exit(main())
