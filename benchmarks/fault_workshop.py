"""Two sets of files, processes that export one over the other, and what they leave behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

TINY = {"depth": 1, "embed_dim": 16, "num_heads": 2, "image_size": 32, "num_classes": 5}
FLAGS = [word for k, v in TINY.items() for word in ("--model-kwarg", f"{k}={v}")]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130
END_S = 60.0

Files = dict[str, bytes]


def arguments(folder: Path, seed: int, *, force: bool = True) -> list[str]:
    """Of ``vitpe-export``; another seed gives other weights, so other bytes in every file."""
    rest = ["--seed", str(seed), "--threads", "1", "-q", "-o", str(folder)]
    return [
        "vit_tiny_patch16_224", *FLAGS, "--format", "onnx,openvino",
        *rest, *(["--force"] if force else []),
    ]  # fmt: skip


def _child(argv: list[str], log: str, ready: Any, strike: tuple[int, int, str] | None) -> None:
    """One export in a process of its own; its output goes to ``log``.

    ``strike`` is ``(signal, number, folder)``: sent at that operation on the folder, never at 0.
    """
    from vitpe_deploy import cli

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    seen = 0
    if strike is not None:
        number, last, folder = strike

        def hook(event: str, words: tuple[object, ...]) -> None:
            nonlocal seen
            touches = event == "open" or event.startswith(("os.", "shutil.", "tempfile."))
            if touches and any(folder in str(word) for word in words):
                seen += 1
                if seen == last:
                    os.kill(os.getpid(), number)

        sys.addaudithook(hook)
    code = 1
    try:
        ready.send(True)
        code = cli.export_main(argv)
        ready.send(seen)
    except KeyboardInterrupt:  # before the command could take it
        code = INTERRUPTED
    except BaseException:
        traceback.print_exc()
    os._exit(code)  # nothing of the parent's is to be run or flushed here


@dataclass
class Export:
    """A running export.

    Attributes:
        process: its process.
        pipe: says True when the command begins, and how many operations there were at its end.
        log: file that its output goes to.
    """

    process: Any
    pipe: Any
    log: Path

    def wait(self) -> int | None:
        """Its exit code, negative for a signal; None when it had to be killed."""
        self.process.join(END_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            return None
        return int(self.process.exitcode)

    def problem(self, code: int | None, allowed: Sequence[int]) -> str:
        """What is wrong with how it ended; empty when nothing is."""
        said = self.log.read_text(errors="replace")
        if code is None:
            return f"did not end within {END_S:.0f} s"
        if code not in allowed:
            return f"exit code {code}: {said[-300:]}"
        if "Traceback" in said or "This is a defect" in said:
            return f"not a clear error: {said[-600:]}"
        if code in (1, 2) and sum(li.startswith("error: ") for li in said.splitlines()) != 1:
            return f"not one error: {said[-300:]}"
        return ""


class Workshop:
    """The old and the new set of files, and processes that write them.

    Children are forked from a server that has imported what an export imports and run nothing,
    which is as good as a fresh process and saves most of its time.
    """

    IMPORTED: ClassVar = [
        "exporters.pipeline", "vitpe_deploy.cli", "vitpe_deploy.referee", "torch._dynamo",
        "torch.onnx._internal.exporter._core", "onnxscript", "onnxruntime", "onnxsim",
    ]  # fmt: skip

    def __init__(self, root: Path) -> None:
        self.root = root
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(self.IMPORTED)
        self._count = 0
        self.old, _ = self._made(seed=0)
        start = time.monotonic()
        self.new, self.operations = self._made(seed=1)
        self.duration_s = time.monotonic() - start

    def _made(self, seed: int) -> tuple[Files, int]:
        folder = self.fresh(None)
        export = self.start(folder, seed=seed, strike=(0, 0, str(folder)))
        if export.wait() != 0:
            raise SystemExit(f"the export itself fails:\n{export.log.read_text()}")
        export.pipe.recv()
        return contents(folder), int(export.pipe.recv())

    def fresh(self, files: Files | None) -> Path:
        """A folder of its own with a set of files, or one that does not exist."""
        self._count += 1
        folder = self.root / f"out{self._count}"
        if files is not None:
            fill(folder, files)
        return folder

    def start(
        self,
        folder: Path,
        *,
        seed: int = 1,
        force: bool = True,
        strike: tuple[int, int, str] | None = None,
    ) -> Export:
        """Begin an export into ``folder``; returns when the command has begun."""
        self._count += 1
        log = self.root / f"log{self._count}"
        pipe, other = self._context.Pipe()
        process = self._context.Process(
            target=_child, args=(arguments(folder, seed, force=force), str(log), other, strike)
        )
        process.start()
        other.close()
        if not pipe.poll(END_S):
            raise SystemExit(f"a child did not start: {log.read_text() if log.exists() else ''}")
        return Export(process, pipe, log)

    def left(self, folder: Path) -> str:
        """``old`` or ``new``, or what is wrong with the folder; then the next writer comes."""
        from vitpe_deploy.files import StagedFiles, finish_interrupted

        finish_interrupted(folder)  # what every reader does first
        found = contents(folder)
        with StagedFiles(folder):  # what every writer does
            pass
        strays = [p.name for p in folder.iterdir() if p.name not in self.old]
        if strays:
            return f"left over: {', '.join(strays)}"
        return self.which(found)

    def which(self, found: Files) -> str:
        """``old``, ``new``, ``nothing``, or the files that do not belong together."""
        for name, files in (("old", self.old), ("new", self.new), ("nothing", {})):
            if found == files:
                return name
        words = [
            f"{n} {'old' if d == self.old.get(n) else 'new' if d == self.new.get(n) else 'half'}"
            for n, d in sorted(found.items())
        ]
        return f"a mixture: {', '.join(words)}"


def contents(folder: Path) -> Files:
    """All files that are not temporary."""
    if not folder.is_dir():
        return {}
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.startswith(".vitpe-")}


def fill(folder: Path, files: Files) -> None:
    """Put a set of files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
