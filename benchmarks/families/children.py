"""Cells in processes of their own: a crash or an endless export costs one cell, not the table."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from benchmarks.families.base import Cell

_CELLS_PER_PROCESS = 24
"""Libraries keep caches: memory is given back after so many cells."""

Key = tuple[str, str, str]


def run_cells(command: Sequence[str], keys: Sequence[Key], *, limit_s: float) -> Iterator[Cell]:
    """Each cell as soon as it is finished.

    Args:
        command: reads a cell's key per line as JSON, prints a cell per line.
        keys: library, name and mode of each cell.
        limit_s: seconds after which a cell is given up and its process ended.
    """
    waiting = deque(keys)
    while waiting:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as noise:
            child = _start(command, noise)
            lines = _lines_of(child)
            try:
                for _ in range(min(_CELLS_PER_PROCESS, len(waiting))):
                    key = waiting.popleft()
                    cell, alive = _one(child, lines, key, noise, limit_s)
                    yield cell
                    if not alive:
                        break
            finally:
                _end(child)


def _start(command: Sequence[str], noise: IO[str]) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    environment = {"HF_HUB_OFFLINE": "1", **os.environ, "PYTHONPATH": path}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=noise,
        text=True,
        start_new_session=True,
        env=environment,
    )


def _lines_of(child: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """What a child prints, line by line; None when it has ended."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _one(
    child: subprocess.Popen[str],
    lines: queue.Queue[str | None],
    key: Key,
    noise: IO[str],
    limit_s: float,
) -> tuple[Cell, bool]:
    """One cell, and whether the child can take another."""
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps(key) + "\n")
        child.stdin.flush()
        line = lines.get(timeout=limit_s)
    except BrokenPipeError:
        line = None
    except queue.Empty:
        return Cell(*key, problem=f"over {limit_s:.0f} s"), False
    if line is not None:
        return Cell(**json.loads(line)), True
    code = child.wait()
    noise.seek(0)
    last = (noise.read().strip().splitlines() or ["no output"])[-1]
    return Cell(*key, problem=f"exit {code}: {last[:200]}"), False


def _end(child: subprocess.Popen[str]) -> None:
    """End a child with all that it started."""
    assert child.stdin is not None
    try:
        child.stdin.close()
        child.wait(timeout=5)
    except (BrokenPipeError, subprocess.TimeoutExpired):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
