"""Ctrl-C after OpenVINO, whose CPU plugin lends the thread a stack for signal handlers."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from vitpe_deploy.runtimes.openvino import shared_core

TWO_FILES = textwrap.dedent(
    """
    import gc, os, signal, sys, time
    from pathlib import Path
    import numpy as np
    from vitpe_deploy.runtimes import open_runtime

    file, number = Path(sys.argv[1]), int(sys.argv[2])

    def used():
        runtime = open_runtime("openvino", file, threads=1).__enter__()
        runtime.run({"pixel_values": np.zeros((2, 3, 5, 7), np.float32)})
        return runtime

    def interrupt(*_):
        raise KeyboardInterrupt

    files = [used(), used()]
    while files:  # the older one first
        files.pop(0).__exit__(None, None, None)
        gc.collect()
    signal.signal(number, interrupt)  # those of a job in the background are ignored
    try:
        os.kill(os.getpid(), number)
        time.sleep(5)
    except KeyboardInterrupt:
        print("interrupted")
    """
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_two_files_is_handled(
    make_model: Callable[..., Path], number: signal.Signals
) -> None:
    """With a Core for each, the second leaves a stack behind that went with the first."""
    command = [sys.executable, "-c", TWO_FILES, str(make_model()), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_one_core_for_all() -> None:
    assert shared_core() is shared_core()
