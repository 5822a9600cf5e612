"""Resident memory of this process, from what the system offers without any package."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident_bytes() -> int | None:
    """Resident set size now; None where the system does not tell."""
    return _field("VmRSS")


def peak_bytes() -> int | None:
    """Largest resident set since the start of the process, or since :func:`reset_peak`."""
    found = _field("VmHWM")
    if found is not None or sys.platform == "win32":
        return found
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak() -> bool:
    """Start a new peak at what is resident now (Linux). Gives whether that worked."""
    with suppress(OSError):
        _CLEAR.write_text("5")
        return True
    return False


def _field(name: str) -> int | None:
    """A field of ``/proc/self/status``, which counts in kB."""
    with suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0]) * 1024
    return None
