"""What measuring itself costs: time per sample, and memory of the processes around it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import numpy as np

from vitpe_deploy.bench import memory
from vitpe_deploy.bench.documents import HarnessRecord
from vitpe_deploy.runtimes.base import Array, Opened, Runtime, RuntimeInfo, TensorInfo

RUNS = 2000


class NoRuntime(Runtime):
    """Takes a picture and computes nothing: what is left of a sample is the harness."""

    def _open(self) -> Opened:
        info = RuntimeInfo("none", "", "CPU", "CPU", "f32", 1)
        return Opened(info, (TensorInfo("pixel_values", (1, 3, 224, 224), "float32"),), ())

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {}

    def _close(self) -> None:
        pass


def sample_overhead_ms() -> float:
    """Median of samples of nothing: the clock, and the call of a runtime that returns at once."""
    from vitpe_deploy.bench.child import time_runs

    fed = {"pixel_values": np.zeros((1, 3, 224, 224), np.float32)}
    with NoRuntime(threads=1) as runtime:
        return float(np.median(time_runs(runtime, fed, RUNS)))


def measure_harness() -> HarnessRecord:
    """In a process like a child, before it would load an engine; and the memory of this one."""
    done = subprocess.run(
        [sys.executable, "-m", "vitpe_deploy.bench.overhead"],
        capture_output=True,
        text=True,
        check=True,
    )
    overhead_ms, child_rss = json.loads(done.stdout.splitlines()[-1])
    return HarnessRecord(
        sample_overhead_ms=overhead_ms,
        parent_rss_bytes=memory.resident_bytes(),
        child_rss_bytes=child_rss,
    )


def main() -> int:
    """The measuring process: overhead and resident bytes on stdout."""
    from vitpe_deploy.bench import child  # noqa: F401  what a child has imported

    resident = memory.resident_bytes()
    sys.stdout.write(f"\n{json.dumps([sample_overhead_ms(), resident])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
