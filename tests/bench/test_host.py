"""What makes timings doubtful, read from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitpe_deploy.bench.host import Throttle, read_throttle
from vitpe_deploy.errors import DeviceError
from vitpe_deploy.runtimes.torch_eager import device_name


def test_throttling_is_counted(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 9\nnr_periods 40\nnr_throttled 7\n")
    for k, hot in enumerate((2, 3)):
        folder = tmp_path / f"cpu{k}" / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{hot}\n")
    found = read_throttle(tmp_path, tmp_path)
    assert found == Throttle(7, 5)
    assert found.since(found) == ()
    quota, heat = found.since(Throttle(4, 4))
    assert "stopped 3 times because its CPU quota" in quota
    assert "slowed down 1 times" in heat
    assert read_throttle(tmp_path / "none", tmp_path / "none") == Throttle(0, 0)


def test_torch_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert device_name("CPU")
    with pytest.raises(DeviceError, match=r"no device XPU:7 here; there are: CPU"):
        device_name("XPU:7")
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda k: f"card {k}")
    assert device_name("xpu:1") == "card 1"
    with pytest.raises(DeviceError, match=r"CPU, XPU:0, XPU:1"):
        device_name("GPU")
