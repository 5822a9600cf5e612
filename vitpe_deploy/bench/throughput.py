"""Images per second with several requests at a time, which is another number than latency.

ONNX Runtime gets one session per request, each with its share of the threads; OpenVINO one
compiled model with as many streams, and a request per stream. Python threads only hand over: both
engines let go of the interpreter while they compute.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.errors import UsageError
from vitpe_deploy.runtimes import Runtime, open_runtime
from vitpe_deploy.runtimes.base import Array

Worker = Callable[[], object]


def default_streams(threads: int) -> int:
    """One request per thread: no thread waits for another inside a request."""
    return threads


def make_workers(
    spec: ChildSpec, runtime: Runtime, fed: Mapping[str, Array], stack: ExitStack
) -> list[Worker]:
    """One function per request at a time, of the open ``runtime`` and what it needs besides.

    Raises:
        UsageError: torch, whose eager mode has no such requests.
    """
    if spec.runtime == "openvino":
        from vitpe_deploy.runtimes.openvino import OpenVinoRuntime

        if isinstance(runtime, OpenVinoRuntime):
            inputs = dict(fed)
            return [
                partial(request.infer, inputs, share_inputs=True)
                for request in runtime.requests(spec.streams)
            ]
    if spec.runtime != "onnxruntime":
        raise UsageError(
            f"--mode throughput is for onnxruntime and openvino, not for {spec.runtime}",
            hint="Leave torch out of --runtime, or use --mode latency.",
        )
    others = [
        stack.enter_context(
            open_runtime(
                spec.runtime,
                Path(spec.path),
                device=spec.device,
                threads=threads_per_stream(spec),
            )
        )
        for _ in range(spec.streams - 1)
    ]
    return [partial(one.run, fed) for one in (runtime, *others)]


def threads_per_stream(spec: ChildSpec) -> int:
    """Threads of one session."""
    return max(1, spec.threads // spec.streams)


def window(workers: Sequence[Worker], seconds: float) -> tuple[int, float]:
    """Keep all workers busy for a while. Gives runs and seconds, start to the end of the last.

    Every worker runs at least twice, so that one that starts late does not decide the figure.
    """
    gate = threading.Barrier(len(workers) + 1)
    runs = [0] * len(workers)
    errors: list[BaseException] = []

    def work(place: int) -> None:
        gate.wait()
        end = time.perf_counter() + seconds
        try:
            while runs[place] < 2 or time.perf_counter() < end:
                workers[place]()
                runs[place] += 1
        except BaseException as problem:
            errors.append(problem)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(workers))]
    gc.collect()
    gc.disable()
    try:
        for thread in threads:
            thread.start()
        gate.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        spent = time.perf_counter() - start
    finally:
        gc.enable()
    if errors:
        raise errors[0]
    return sum(runs), spent
