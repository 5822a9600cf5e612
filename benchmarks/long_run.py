"""Many exports in one process: memory, handles, and what a failed one leaves behind.

    python benchmarks/long_run.py [--exports 200] [--fail-every 10]

Exports tiny models of several encodings, static and dynamic, in both formats and with parity,
through the Python API of one process; every tenth has a forward that raises while it is traced.
After each, everything of the process that an export could have changed is compared with what it was
before the first: torch's modes, threads, gradients and random state, Python's warnings, signals,
streams and environment, hooks and flags of the module passed in, open file handles. Resident memory
is read after each export; wanted are no differences at all, and the last 50 exports (a quarter of
fewer) within 5 percent of each other.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitpe_deploy
from vitpe_deploy.errors import ExportFailedError

TINY = {"depth": 2, "embed_dim": 32, "num_heads": 2, "image_size": 64, "num_classes": 5}
ENCODINGS = ("learned-1d", "rope-2d", "sincos-2d", "relative-2d", "conditional")
SPREAD = 0.05


class Raises(nn.Module):
    """A small network whose forward gives up once it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 8, 16, 16)
        self.block = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Patches, one attention, a mean. x: [B, 3, H, W] -> [B, 8]."""
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(tokens, tokens, self.block(tokens))
        if torch.compiler.is_exporting():
            raise RuntimeError("this network cannot be traced")
        return mixed.mean(1)


@dataclass(frozen=True)
class Surroundings:
    """What belongs to the process and not to an export."""

    facts: dict[str, Any]

    @classmethod
    def now(cls, module: nn.Module) -> Surroundings:
        """Read everything."""
        modes = torch.overrides._get_current_function_mode_stack()
        dispatch = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        parameters = [(n, p.requires_grad, p.grad is None) for n, p in module.named_parameters()]
        hooks = [
            (name, len(m._forward_hooks), len(m._forward_pre_hooks), m.training)
            for name, m in module.named_modules()
        ]
        functions = (
            F.scaled_dot_product_attention,
            F.interpolate,
            F.multi_head_attention_forward,
            F.softmax,
            torch.argmax,
            nn.Module.__call__,
            nn.Module.forward,
            Tensor.reshape,
        )
        return cls(
            {
                "function modes": len(modes),
                "dispatch modes": len(dispatch),
                "patched functions": tuple(map(id, functions)),
                "torch threads": torch.get_num_threads(),
                "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
                "dtype and device": (torch.get_default_dtype(), torch.get_default_device()),
                "random state": hash(torch.get_rng_state().numpy().tobytes()),
                "other random states": (
                    hash(random.getstate()),
                    hash(np.random.get_state()[1].tobytes()),
                ),
                "module": (hooks, parameters),
                "warnings": hash(tuple(map(str, warnings.filters))),
                "signals": (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)),
                "streams": (id(sys.stdout), id(sys.stderr)),
                "environment": hash(tuple(sorted(os.environ.items()))),
                "folder": str(Path.cwd()),
                "log level": logging.getLogger().level,
                "threads": threading.active_count(),
            }
        )

    def changed(self, before: Surroundings) -> list[str]:
        """Names of what differs."""
        return [name for name, fact in self.facts.items() if before.facts[name] != fact]


def handles() -> int:
    """Open files of this process, without the one that lists them."""
    return len(os.listdir("/proc/self/fd")) - 1


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Run:
    """What was seen.

    Attributes:
        resident: bytes after each export.
        open_files: handles after each export.
        failures: what changed, by number of the export.
        refused: exports that failed as they should.
    """

    resident: list[int]
    open_files: list[int]
    failures: list[str]
    refused: int

    def spread(self, last: int) -> float:
        """Highest resident memory of the last exports over the lowest, less one."""
        tail = self.resident[-last:]
        return max(tail) / min(tail) - 1


def one_export(number: int, module: nn.Module, folder: Path) -> None:
    """An export of one of several kinds."""
    encoding = ENCODINGS[number % len(ENCODINGS)]
    dynamic = ("none", "size", "none", "all")[number % 4]
    formats = (["onnx"], ["onnx", "openvino"])[number % 2]
    options: dict[str, Any] = {"output_dir": folder, "force": True, "threads": 1}
    if number % 3 == 0:
        report = vitpe_deploy.export(module, 64, formats=formats, **options)
    else:
        report = vitpe_deploy.export(
            "vit_tiny_patch16_224",
            encoding=encoding,
            model_kwargs=TINY,
            dynamic=dynamic,
            formats=formats,
            **options,
        )
    if report.verdict != "passed":
        raise RuntimeError(f"export {number} ended with verdict {report.verdict}")


def long_run(exports: int, fail_every: int, *, say: bool = True) -> Run:
    """Do it, in this process; Ctrl-C ends it early, and what was seen until then counts."""
    from vitpe_deploy.models.presets import VIT_PRESETS, with_options
    from vitpe_deploy.models.vit import VisionTransformer

    torch.manual_seed(0)
    module = VisionTransformer(with_options(VIT_PRESETS["vit_tiny_patch16_224"], TINY)).eval()
    broken = Raises().eval()
    resident, open_files, failures = [], [], []
    refused = 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vitpe-long-") as folder:
        # The first exports import libraries and start engines' pools of threads.
        for number in range(len(ENCODINGS)):
            one_export(number, module, Path(folder))
        files_before = handles()
        before: Surroundings | None = None
        for number in _until_interrupted(exports):
            before = before or Surroundings.now(module)
            if fail_every and number % fail_every == fail_every - 1:
                try:
                    vitpe_deploy.export(broken, 64, output_dir=folder, force=True, threads=1)
                except ExportFailedError as problem:
                    refused += "cannot be traced" in problem.message
                    del problem
                else:
                    failures.append(f"export {number}: a network that cannot be traced was")
                changed = Surroundings.now(broken).changed(before)
                changed = [name for name in changed if name != "module"]
            else:
                one_export(number, module, Path(folder))
                changed = Surroundings.now(module).changed(before)
            if changed:
                failures.append(f"export {number} changed: {', '.join(changed)}")
            gc.collect()
            resident.append(resident_bytes())
            open_files.append(handles())
            if open_files[-1] > files_before:
                failures.append(f"export {number}: {open_files[-1] - files_before} handles more")
                files_before = open_files[-1]
            if say and number % 10 == 9:
                print(
                    f"{number + 1} of {exports}: {resident[-1] / 1e6:.0f} MB, "
                    f"{open_files[-1]} handles, {time.monotonic() - start:.0f} s",
                    file=sys.stderr,
                )
    return Run(resident, open_files, failures, refused)


def _until_interrupted(count: int) -> Iterator[int]:
    stop: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: stop.append(number))
    try:
        for number in range(count):
            if stop:
                return
            yield number
    finally:
        signal.signal(signal.SIGINT, before)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--exports", type=int, default=200)
    parser.add_argument("--fail-every", type=int, default=10)
    options = parser.parse_args(argv)
    run = long_run(options.exports, options.fail_every)
    done = len(run.resident)
    last = min(50, max(done // 4, 2))
    spread = run.spread(last)
    print(f"{done} exports, {run.refused} of them failed in the tracer as they should")
    print(
        f"resident: {run.resident[0] / 1e6:.0f} MB after the first, "
        f"{run.resident[-1] / 1e6:.0f} MB after the last; the last {last} within {spread:.1%}"
    )
    print(f"handles: {run.open_files[0]} after the first, {run.open_files[-1]} after the last")
    print(f"left behind: {len(run.failures)}")
    for line in run.failures:
        print(line, file=sys.stderr)
    return 1 if run.failures or spread > SPREAD else 0


if __name__ == "__main__":
    sys.exit(main())
