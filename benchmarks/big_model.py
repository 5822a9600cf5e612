"""A model over 2 GB through the whole export, with the memory that its processes hold.

    python benchmarks/big_model.py [--depth 48] [--res 224] [--threads 2] [-- FLAGS OF vitpe-export]
    python benchmarks/big_model.py --depth 12 --external-bytes 1000    # the same way, smaller

Runs ``vitpe-export`` on the reference ``vit_large_patch16_224`` with more blocks (48 of them are
608 million parameters, 2.4 GB in float32), both formats, and samples every process of the tree: the
sum of their proportional set sizes (``Pss`` of ``/proc/PID/smaps_rollup``), in which a page that
two processes share counts once and a mapped file counts as far as it is in memory. Also printed:
the kernel's own high-water mark of the largest process (``VmHWM``), which no sampling can miss.

Exits 1 when the export fails, or when the peak is over 2.5 times the weights plus 1 GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "vit_large_patch16_224"
WEIGHTS_FACTOR = 2.5
REST_BYTES = 1_000_000_000
PAUSE_S = 0.05

COMMAND = """
import sys
import exporters.onnx_file

threshold = int(sys.argv.pop(1))
if threshold:
    exporters.onnx_file.EXTERNAL_BYTES = threshold
from vitpe_deploy.cli import export_main

sys.exit(export_main())
"""


@dataclass
class Peak:
    """The most memory seen, by step of the export.

    Attributes:
        by_step: proportional bytes of the tree, of which mapped from files.
        high_water: resident bytes of the largest single process, from the kernel.
    """

    by_step: dict[str, tuple[int, int]] = field(default_factory=dict)
    high_water: int = 0
    samples: int = 0

    def add(self, step: str, total: int, mapped: int) -> None:
        """One sample."""
        self.samples += 1
        self.by_step[step] = max(self.by_step.get(step, (0, 0)), (total, mapped))

    @property
    def most(self) -> int:
        """Bytes at the worst moment."""
        return max((total for total, _ in self.by_step.values()), default=0)


def descendants(pid: int) -> list[int]:
    """The process and all processes below it that are there now."""
    found = [pid]
    for parent in found:
        for listing in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(word) for word in listing.read_text().split()]
            except OSError:
                continue
    return found


def memory_of(pids: Iterable[int]) -> tuple[int, int, int]:
    """Proportional bytes of all, those of them mapped from files, and the highest high water."""
    total = mapped = high = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has just ended
            continue
        total += _kilobytes(rollup, "Pss:") * 1024
        mapped += _kilobytes(rollup, "Pss_File:") * 1024
        high = max(high, _kilobytes(status, "VmHWM:") * 1024)
    return total, mapped, high


def _kilobytes(text: str, key: str) -> int:
    return next((int(li.split()[1]) for li in text.splitlines() if li.startswith(key)), 0)


def watch(command: Sequence[str]) -> tuple[int, Peak]:
    """Run a command and sample its tree; a step ends with the line that reports it on stderr."""
    peak = Peak()
    steps = ["1/6"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CI": "true"}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:

        def follow() -> None:
            for line in process.stderr or ():
                sys.stderr.write(line)
                if line.startswith("["):
                    done = int(line[1])
                    steps.append(f"{min(done + 1, 6)}/6" if done != 5 else "5/6")

        reader = threading.Thread(target=follow)
        reader.start()
        while process.poll() is None:
            total, mapped, high = memory_of(descendants(process.pid))
            peak.add(steps[-1], total, mapped)
            peak.high_water = max(peak.high_water, high)
            time.sleep(PAUSE_S)
        reader.join()
    return process.returncode, peak


def weight_bytes(depth: int) -> int:
    """Bytes of the parameters in float32, counted without allocating them."""
    from vitpe_deploy.request import ModelRequest
    from vitpe_deploy.sources import open_source

    outline = open_source(ModelRequest(MODEL, kwargs={"depth": depth})).outline()
    return outline.num_parameters * 4


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--depth", type=int, default=48)
    parser.add_argument("--res", default="224")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--format", default="onnx,openvino")
    parser.add_argument(
        "--external-bytes", type=int, default=0, help="weights above this go to a data file"
    )
    parser.add_argument("rest", nargs="*", help="further flags of vitpe-export, behind --")
    options = parser.parse_args(argv)
    weights = weight_bytes(options.depth)
    limit = int(WEIGHTS_FACTOR * weights) + REST_BYTES
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vitpe-big-") as folder:
        code, peak = watch(
            [
                sys.executable, "-c", COMMAND, str(options.external_bytes),
                MODEL, "--model-kwarg", f"depth={options.depth}",
                "--res", options.res, "--format", options.format, "--threads", options.threads,
                "-o", folder, *options.rest,
            ]
        )  # fmt: skip
        files = {p.name: p.stat().st_size for p in Path(folder).iterdir()}
    print(f"weights {weights / 1e9:.2f} GB, exit code {code}, {time.monotonic() - start:.0f} s")
    for name, size in sorted(files.items()):
        print(f"  {name}  {size / 1e9:.2f} GB")
    print("| step | peak of the tree | of it mapped from files | times the weights |")
    print("|---|---|---|---|")
    for step, (total, mapped) in peak.by_step.items():
        print(f"| {step} | {total / 1e9:.2f} GB | {mapped / 1e9:.2f} GB | {total / weights:.2f} |")
    print(f"largest process, kernel's high-water mark: {peak.high_water / 1e9:.2f} GB")
    print(
        f"peak {peak.most / 1e9:.2f} GB of {limit / 1e9:.2f} GB allowed "
        f"({WEIGHTS_FACTOR} x weights + 1 GB), {peak.samples} samples"
    )
    return 1 if code or peak.most > limit else 0


if __name__ == "__main__":
    sys.exit(main())
