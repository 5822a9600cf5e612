"""CPU counts from control groups that are built in a temporary folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vitpe_deploy import threads
from vitpe_deploy.threads import available_cpus, cgroup_quota, cpu_name


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_v2_takes_the_tightest_of_the_chain(tmp_path: Path) -> None:
    _write(tmp_path / "a/b/cpu.max", "max 100000\n")
    _write(tmp_path / "a/cpu.max", "150000 100000\n")
    _write(tmp_path / "other/cpu.max", "1000 100000\n")
    assert cgroup_quota(tmp_path, "0::/a/b\n") == 1.5


def test_v2_inside_a_container_reads_the_mount(tmp_path: Path) -> None:
    _write(tmp_path / "cpu.max", "200000 100000\n")
    assert cgroup_quota(tmp_path, "0::/host/path/not/visible\n") == 2.0


def test_v1(tmp_path: Path) -> None:
    _write(tmp_path / "cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n")
    _write(tmp_path / "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    _write(tmp_path / "cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    _write(tmp_path / "cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    membership = "4:memory:/job\n2:cpuset:/job\n1:cpu,cpuacct:/job\n"
    assert cgroup_quota(tmp_path, membership) == 0.5


@pytest.mark.parametrize("text", ["", "max 100000", "0 100000", "junk", "100000"])
def test_no_limit(tmp_path: Path, text: str) -> None:
    _write(tmp_path / "cpu.max", text)
    assert cgroup_quota(tmp_path, "0::/\n") is None
    assert cgroup_quota(tmp_path, "") is None


@pytest.mark.parametrize(
    ("quota", "affinity", "machine", "expected"),
    [
        (1.5, 8, 16, 2),
        (0.1, 8, 16, 1),
        (None, 3, 16, 3),
        (64.0, 8, 4, 4),
        (None, 8, None, 1),
    ],
)
def test_available_is_the_smallest_and_rounds_up(
    monkeypatch: pytest.MonkeyPatch,
    quota: float | None,
    affinity: int,
    machine: int | None,
    expected: int,
) -> None:
    monkeypatch.setattr(threads, "cgroup_quota", lambda *_: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    assert available_cpus() == expected


def test_affinity_of_this_process_is_respected() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity on this system")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_cpu_name_is_the_model_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _write(tmp_path / "cpuinfo", "processor\t: 0\nmodel name\t: Fancy 9000 @ 2GHz: x\n")
    monkeypatch.setattr(threads, "_CPUINFO", tmp_path / "cpuinfo")
    assert cpu_name() == "Fancy 9000 @ 2GHz: x"
    monkeypatch.setattr(threads, "_CPUINFO", tmp_path / "missing")
    assert cpu_name() != ""
