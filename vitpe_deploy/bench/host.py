"""The machine a result belongs to, and what makes its timings doubtful."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from vitpe_deploy import __version__
from vitpe_deploy.threads import available_cpus, cgroup_quota, cpu_name

_CPUINFO = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
_POWER = Path("/sys/class/power_supply")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")

# What the linear algebra of the engines chooses its kernels by, in the kernel's own words.
_ISA = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-openvino", "openvino", "torch")


@dataclass(frozen=True, slots=True)
class Host:
    """What the system says; None where it does not."""

    cpu: str
    cores_used: int
    cpu_quota: float | None
    isa: tuple[str, ...]
    memory_bytes: int | None
    os: str
    versions: dict[str, str]


def read_host() -> Host:
    """This machine, without importing an engine."""
    membership = _text(Path("/proc/self/cgroup"))
    return Host(
        cpu=cpu_name(),
        cores_used=available_cpus(),
        cpu_quota=cgroup_quota(Path("/sys/fs/cgroup"), membership),
        isa=isa_of(_text(_CPUINFO)),
        memory_bytes=_memory(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions=_versions(),
    )


def isa_of(cpuinfo: str) -> tuple[str, ...]:
    """The instruction sets of the first processor of ``/proc/cpuinfo``, of those that matter."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            there = set(value.split())
            return tuple(word for word in _ISA if word in there)
    return ()


@dataclass(frozen=True, slots=True)
class Throttle:
    """How often the CPU was held back since the machine or the container began.

    Attributes:
        quota_periods: periods in which the container had used up its CPU quota.
        hot: times that a core slowed down because it was hot.
    """

    quota_periods: int
    hot: int

    def since(self, before: Throttle) -> tuple[str, ...]:
        """What happened since an earlier reading, with advice."""
        said = []
        periods, hot = self.quota_periods - before.quota_periods, self.hot - before.hot
        if periods > 0:
            said.append(
                f"the container was stopped {periods} times because its CPU quota was used up: "
                "use fewer --threads, or give it more."
            )
        if hot > 0:
            said.append(f"cores slowed down {hot} times because they were hot: let them cool.")
        return tuple(said)


def read_throttle(cgroup: Path = _CGROUP, cpus: Path = _CPUS) -> Throttle:
    """The counters of the kernel now; those that it does not keep count as 0."""
    fields = dict(line.partition(" ")[::2] for line in _text(cgroup / "cpu.stat").splitlines())
    hot = 0
    with suppress(OSError):
        for file in cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
            hot += _count(_text(file))
    return Throttle(_count(fields.get("nr_throttled", "")), hot)


def _count(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def warnings(threads: int) -> tuple[str, ...]:
    """What makes timings on this machine doubtful now, with advice."""
    said = []
    cpus = available_cpus()
    if threads > cpus:
        said.append(
            f"{threads} threads on {cpus} CPUs that this process may use: they take turns. "
            f"Use --threads {cpus}."
        )
    with suppress(OSError, AttributeError):
        busy = os.getloadavg()[0]
        if busy > 0.5 * (os.cpu_count() or 1):
            said.append(
                f"the machine is busy (load {busy:.1f} on {os.cpu_count()} CPUs): "
                "end other work, or trust ratios more than milliseconds."
            )
    if _on_battery():
        said.append("the machine runs on battery and may lower its clock: plug it in.")
    governor = _text(_GOVERNOR).strip()
    if governor == "powersave" and "intel_pstate" not in _text(
        _GOVERNOR.with_name("scaling_driver")
    ):
        said.append("the CPU governor is powersave: choose performance.")
    return tuple(said)


def _on_battery() -> bool:
    with suppress(OSError):
        states = [
            _text(folder / "online").strip()
            for folder in _POWER.iterdir()
            if _text(folder / "type").strip() == "Mains"
        ]
        return bool(states) and "1" not in states
    return False


def _memory() -> int | None:
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _versions() -> dict[str, str]:
    found = {"vitpe-deploy": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
