"""The timed process: one model, one engine, one device, one thread count, one batch.

    python -m vitpe_deploy.bench.child SPEC

It answers requests of :mod:`~vitpe_deploy.bench.protocol` and waits on its pipe in between. Before
a reply it waits until its own threads are idle: pools spin for a while after a run, on the CPUs
that the next candidate is timed on.

Imports neither torch nor onnx unless the runtime is torch. Scripts that time something of their
own build a runtime and call :func:`serve`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from vitpe_deploy.bench import memory
from vitpe_deploy.bench import protocol as p
from vitpe_deploy.bench.correct import agreement, classify
from vitpe_deploy.bench.throughput import Worker, make_workers, threads_per_stream, window
from vitpe_deploy.errors import InternalError, UsageError, VitpeError
from vitpe_deploy.runtimes import Runtime, open_runtime
from vitpe_deploy.runtimes.base import Array

_WINDOW = 5
_STABLE_WITHIN = 0.02
_IDLE_SLICE_S = 0.004
_IDLE_SHARE = 0.25
_IDLE_PATIENCE_S = 1.0


def wait_until_idle() -> bool:
    """Return when the threads of this process use less than a quarter of one CPU.

    Gives False when they were still busy after a second.
    """
    deadline = time.monotonic() + _IDLE_PATIENCE_S
    while time.monotonic() < deadline:
        wall, used = time.monotonic(), time.process_time()
        time.sleep(_IDLE_SLICE_S)
        if time.process_time() - used < _IDLE_SHARE * (time.monotonic() - wall):
            return True
    return False


def time_runs(runtime: Runtime, inputs: Mapping[str, Array], runs: int) -> list[float]:
    """Latencies of ``runs`` inferences in milliseconds, with garbage collection off.

    The outputs of a run are let go of outside the clock.
    """
    samples: list[float] = []
    gc.collect()
    gc.disable()
    clock, run = time.perf_counter, runtime.prepared(inputs)
    try:
        for _ in range(runs):
            start = clock()
            outputs = run()
            stop = clock()
            del outputs
            samples.append((stop - start) * 1e3)
    finally:
        gc.enable()
    return samples


def warm_up(take: Callable[[int], list[float]], at_least: int, limit_s: float) -> p.Warmed:
    """Run until the medians of two windows in a row agree within 2 %.

    Args:
        take: gives the latencies of so many runs, in milliseconds.
        at_least: runs, however soon latency settles.
        limit_s: seconds after which it is left unstable.
    """
    samples: list[float] = []
    start = time.monotonic()
    while True:
        samples += take(_WINDOW)
        last, before = samples[-_WINDOW:], samples[-2 * _WINDOW : -_WINDOW]
        median = float(np.median(last))
        stable = bool(before) and abs(median / float(np.median(before)) - 1) < _STABLE_WITHIN
        if (stable and len(samples) >= at_least) or time.monotonic() - start > limit_s:
            return p.Warmed(len(samples), stable, median)


class Server:
    """Answers requests about one runtime."""

    def __init__(self, spec: p.ChildSpec, runtime: Runtime, stack: ExitStack) -> None:
        self._spec = spec
        self._runtime = runtime
        self._stack = stack
        self._workers: list[Worker] = []
        with np.load(spec.inputs, allow_pickle=False) as arrays:
            self._inputs = [arrays[f"in{k}"] for k in range(len(arrays.files))]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        what = request["do"]
        if what == p.OPEN:
            return asdict(self._open())
        fed = {self._runtime.inputs[0].name: self._inputs[0]}
        if what == p.SAMPLE:
            # The caches hold what another candidate left there: one run outside the clock.
            time_runs(self._runtime, fed, request.get("rewarm", 1))
            samples = time_runs(self._runtime, fed, request["runs"])
            return {"samples_ms": samples, "idle": wait_until_idle()} | self._memory()
        if what == p.WINDOW:
            return {"samples_ms": [self._window(request["seconds"])], "idle": wait_until_idle()} | (
                self._memory()
            )
        if what == p.WARM_UP:
            warmed = warm_up(
                lambda runs: time_runs(self._runtime, fed, runs),
                request["at_least"],
                request["limit_s"],
            )
            wait_until_idle()
            return asdict(warmed)
        if what == p.AGREE:
            judge = p.Judge(**request["judge"])
            found = agreement(self._runtime, self._inputs, self._expected(), judge)
            wait_until_idle()
            return asdict(found)
        if what == p.CLASSIFY:
            batch = len(self._inputs[0])
            classes = classify(self._runtime, Path(self._spec.pictures), batch)
            wait_until_idle()
            return {"classes": classes}
        raise ValueError(f"unknown request {what!r}")

    def _open(self) -> p.Loaded:
        # a file is opened here, on the clock; a runtime of a script may be open already
        start = time.perf_counter()
        self._runtime.__enter__()
        load_ms = (time.perf_counter() - start) * 1e3
        info = self._runtime.info
        if len(self._runtime.inputs) != 1:
            raise UsageError(
                f"the file takes {len(self._runtime.inputs)} inputs, the benchmark knows one"
            )
        resident, load_peak = memory.resident_bytes(), memory.peak_bytes()
        can_reset = memory.reset_peak()
        first_ms = time_runs(self._runtime, {self._runtime.inputs[0].name: self._inputs[0]}, 1)[0]
        peak = memory.peak_bytes()
        known = can_reset and peak is not None and resident is not None
        wait_until_idle()
        return p.Loaded(
            version=info.version,
            device_name=info.device_name,
            precision_executed=info.precision_executed,
            threads=info.threads,
            load_ms=load_ms,
            compile_ms=info.compile_ms,
            first_ms=first_ms,
            rss_bytes=resident,
            load_peak_bytes=load_peak,
            first_peak_bytes=max(0, peak - resident) if known and peak and resident else None,
        )

    def _window(self, seconds: float) -> float:
        """Milliseconds per item of the batches that were finished in one window."""
        if not self._workers:
            fed = {self._runtime.inputs[0].name: self._inputs[0]}
            self._workers = make_workers(self._spec, self._runtime, fed, self._stack)
            window(self._workers, 0.0)
        runs, spent = window(self._workers, seconds)
        return spent * 1e3 / (runs * len(self._inputs[0]))

    def _memory(self) -> dict[str, Any]:
        return {"peak_rss_bytes": memory.peak_bytes()}

    def _expected(self) -> list[dict[str, Array]]:
        outputs: list[dict[str, Array]] = [{} for _ in self._inputs]
        with np.load(self._spec.expected, allow_pickle=False) as arrays:
            for key in arrays.files:
                place, _, name = key.partition(":")
                outputs[int(place.removeprefix("out"))][name] = arrays[key]
        return outputs


def serve(
    spec: p.ChildSpec, runtime: Runtime, *, setting: AbstractContextManager[Any] | None = None
) -> int:
    """Answer requests on stdin until it ends. Whatever libraries print goes to stderr."""
    replies = _private_stdout()
    with setting or nullcontext(), ExitStack() as stack:
        try:
            server = Server(spec, runtime, stack)
            for line in sys.stdin:
                _reply(replies, server, json.loads(line))
        finally:
            runtime.__exit__(None, None, None)
    return 0


def _reply(replies: IO[str], server: Server, request: dict[str, Any]) -> None:
    try:
        document = server.answer(request)
    except VitpeError as error:
        document = {"error": error.as_document()}
    except Exception as problem:
        wrapped = InternalError(f"{type(problem).__name__}: {str(problem)[:300]}")
        document = {"error": wrapped.as_document()}
    replies.write(json.dumps(document) + "\n")
    replies.flush()


def _private_stdout() -> IO[str]:
    """The pipe to the parent; descriptor 1 becomes stderr, so that C++ cannot write into it."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return replies


def _runtime(spec: p.ChildSpec) -> Runtime:
    """The runtime of a spec, its engine imported so that loading is timed without it."""
    if spec.runtime == "torch":
        from vitpe_deploy.bench.torch_model import eager_runtime

        return eager_runtime(Path(spec.path), spec.shape, spec.threads, spec.device)
    if spec.runtime == "openvino":
        from vitpe_deploy.runtimes.openvino import import_openvino

        import_openvino()
        threads = spec.threads
    else:
        from vitpe_deploy.runtimes.onnxruntime import import_onnxruntime

        import_onnxruntime()
        threads = threads_per_stream(spec)
    return open_runtime(
        spec.runtime,
        Path(spec.path),
        device=spec.device,
        threads=threads,
        precision=spec.precision,
        streams=spec.streams,
    )


def main(argv: list[str] | None = None) -> int:
    """One child. Errors before the first request are told in reply to it."""
    text = (sys.argv[1:] if argv is None else argv)[0]
    spec = p.ChildSpec.from_document(json.loads(text))
    try:
        runtime = _runtime(spec)
    except (VitpeError, ImportError) as problem:
        error = problem if isinstance(problem, VitpeError) else InternalError(str(problem))
        replies = _private_stdout()
        sys.stdin.readline()
        replies.write(json.dumps({"error": error.as_document()}) + "\n")
        replies.flush()
        return 1
    return serve(spec, runtime)


if __name__ == "__main__":
    sys.exit(main())
