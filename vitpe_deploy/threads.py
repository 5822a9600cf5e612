"""How many CPUs this process may use, and what the processor is called.

Engines ask the machine, not the container: ONNX Runtime's default pool has one thread per core of
the host, also where a cgroup grants two. So every engine here is told the number explicitly.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

_CGROUP_MOUNT = Path("/sys/fs/cgroup")
_CGROUP_MEMBERSHIP = Path("/proc/self/cgroup")
_CPUINFO = Path("/proc/cpuinfo")


def available_cpus() -> int:
    """CPUs this process may use, at least 1.

    The smallest of the scheduler affinity, the cgroup quota (v1 or v2, a fraction counts as a
    whole CPU) and the CPUs of the machine.
    """
    limits = [os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    quota = cgroup_quota(_CGROUP_MOUNT, _read(_CGROUP_MEMBERSHIP))
    if quota is not None:
        limits.append(math.ceil(quota))
    return max(1, min(limits))


def cgroup_quota(mount: Path, membership: str) -> float | None:
    """CPUs the control groups grant, in CPU seconds per second; None when nothing limits.

    A quota of any ancestor binds too, so the whole chain up to the mount is read. Inside a
    container the mount often *is* the own group while the membership names the path on the host;
    that path does not exist then, and the chain still ends at the mount.

    Args:
        mount: Where the cgroup file systems are mounted.
        membership: The text of ``/proc/self/cgroup``.
    """
    quotas: list[float] = []
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            roots = [mount, mount / "unified"]
            read = _quota_v2
        elif "cpu" in controllers.split(","):
            roots = [mount / controllers, mount / "cpu"]
            read = _quota_v1
        else:
            continue
        for root in roots:
            own = root / group.strip("/")
            chain = [own, *own.parents]
            quotas += [
                quota
                for folder in chain[: chain.index(root) + 1]
                if (quota := read(folder)) is not None
            ]
    return min(quotas, default=None)


def cpu_name() -> str:
    """The processor's full name as the system reports it, for reports."""
    for line in _read(_CPUINFO).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "CPU"


def _quota_v2(folder: Path) -> float | None:
    """``cpu.max`` is ``"max 100000"`` or ``"QUOTA PERIOD"`` in microseconds."""
    return _ratio(_read(folder / "cpu.max").split())


def _quota_v1(folder: Path) -> float | None:
    """A quota of -1 microseconds means no limit."""
    return _ratio([_read(folder / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")])


def _ratio(fields: list[str]) -> float | None:
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    quota, period = (int(field) for field in fields)
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
