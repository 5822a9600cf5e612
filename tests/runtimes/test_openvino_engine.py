"""OpenVINO's own sides: devices, precision read back, IR files, telemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitpe_deploy.errors import ArtifactError, DeviceError, UnsupportedError, UsageError
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.runtimes.openvino import OpenVinoRuntime, import_openvino, shared_core

Answer = Callable[[np.ndarray], dict[str, np.ndarray]]
MakeModel = Callable[..., Path]


@pytest.fixture
def make_ir(make_model: MakeModel, tmp_path: Path) -> Callable[..., Path]:
    """The tiny model as ``.xml`` and ``.bin``; ``shape`` reshapes it first."""

    def make(shape: str | None = None) -> Path:
        openvino = import_openvino()
        model = shared_core().read_model(str(make_model()))
        if shape is not None:
            model.reshape(openvino.PartialShape(shape))
        path = tmp_path / "ir" / "tiny.xml"
        path.parent.mkdir()
        openvino.save_model(model, str(path), compress_to_fp16=False)
        return path

    return make


@pytest.mark.parametrize("device", ["CPU", "cpu", "AUTO", "AUTO:CPU", "HETERO:CPU", "MULTI:CPU"])
def test_every_cpu_based_device_runs_and_reports_what_executes(
    make_model: MakeModel, pictures: np.ndarray, answer: Answer, device: str
) -> None:
    with open_runtime("openvino", make_model(), device=device, threads=1) as runtime:
        got = runtime.run({"pixel_values": pictures})["logits"]
        info = runtime.info
    np.testing.assert_allclose(got, answer(pictures)["logits"], atol=1e-6)
    full_name = shared_core().get_property("CPU", "FULL_DEVICE_NAME")
    assert (info.device, info.device_name) == (device, full_name)
    assert (info.precision_executed, info.threads) == ("f32", 1)


@pytest.mark.parametrize("asked", ["bf16", "f16", "f32"])
def test_precision_is_the_one_executed_not_the_one_asked_for(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """A CPU runs f16 requests in another format; which one only the compiled model knows."""
    path = make_model()
    compiled = shared_core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": asked})
    executed = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()

    monkeypatch.setattr(
        OpenVinoRuntime, "_config", lambda self, used: {"INFERENCE_PRECISION_HINT": asked}
    )
    with open_runtime("openvino", path) as runtime:
        assert runtime.info.precision_executed == executed


@pytest.mark.parametrize(
    ("device", "word"),
    [
        ("GPU", "GPU"),
        ("GPU.1", "GPU.1"),
        ("NPU", "NPU"),
        ("TPU", "TPU"),
        ("AUTO:GPU", "GPU"),
        ("HETERO:GPU,CPU", "GPU"),
    ],
)
def test_absent_device_names_the_present_ones(
    make_model: MakeModel, device: str, word: str
) -> None:
    available = shared_core().available_devices
    if any(d.startswith(word.split(".")[0]) for d in available):
        pytest.skip(f"this machine has {word}")
    with (
        pytest.raises(DeviceError) as got,
        open_runtime("openvino", make_model(dims=(1, 3, 5, 7)), device=device),
    ):
        pass
    assert got.value.message == (
        f"no such device here; there are: {', '.join(available)} (asked for {word})"
    )
    assert "driver" in got.value.hint
    assert "libOpenCL" not in got.value.message + got.value.hint


@pytest.mark.parametrize("device", ["NPU", "AUTO:NPU", "npu"])
def test_npu_refuses_dynamic_files_before_compiling(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    def compile_model(*_: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(import_openvino().Core, "compile_model", compile_model)
    with (
        pytest.raises(
            UnsupportedError, match=r"fixed shapes only.*pixel_values \[\?,3,\?,\?\]"
        ) as got,
        open_runtime("openvino", make_model(), device=device),
    ):
        pass
    assert "--buckets 224,384" in got.value.hint
    assert got.value.exit_code == 2


@pytest.mark.parametrize(
    ("used", "config"),
    [
        (["CPU"], {"INFERENCE_PRECISION_HINT", "PERFORMANCE_HINT", "INFERENCE_NUM_THREADS",
                   "NUM_STREAMS"}),
        (["GPU"], {"INFERENCE_PRECISION_HINT", "PERFORMANCE_HINT"}),
        (["GPU", "CPU"], {"INFERENCE_PRECISION_HINT", "PERFORMANCE_HINT", "DEVICE_PROPERTIES"}),
        (["NPU"], {"PERFORMANCE_HINT"}),
    ],
)  # fmt: skip
def test_each_device_gets_only_the_properties_it_knows(
    tmp_path: Path, used: list[str], config: set[str]
) -> None:
    assert set(OpenVinoRuntime(tmp_path)._config(used)) == config


def test_ir_runs(make_ir: Callable[..., Path], pictures: np.ndarray, answer: Answer) -> None:
    with open_runtime("openvino", make_ir(), extra_outputs=("hidden",)) as runtime:
        assert runtime.inputs[0].shape == (None, 3, None, None)
        got = runtime.run({"pixel_values": pictures})
    for name, want in answer(pictures).items():
        np.testing.assert_allclose(got[name], want, atol=1e-6)


def test_ir_without_its_bin_names_it(make_ir: Callable[..., Path]) -> None:
    path = make_ir()
    path.with_suffix(".bin").unlink()
    with (
        pytest.raises(ArtifactError, match=r"needs the data file 'tiny\.bin'"),
        open_runtime("openvino", path),
    ):
        pass


def test_damaged_ir_is_named_and_nothing_is_printed(
    make_ir: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = make_ir()
    content, weights = path.read_text(), path.with_suffix(".bin").read_bytes()
    path.write_text(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match="cannot load"), open_runtime("openvino", path):
        pass
    path.write_text("hello")
    with pytest.raises(ArtifactError, match="not an OpenVINO"), open_runtime("openvino", path):
        pass
    path.write_text(content)
    path.with_suffix(".bin").write_bytes(weights[:20])
    with pytest.raises(ArtifactError, match="Incorrect weights"), open_runtime("openvino", path):
        pass
    path.unlink()
    with pytest.raises(ArtifactError, match="does not exist"), open_runtime("openvino", path):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("size", "fits"), [(3, False), (4, True), (9, True), (10, False)])
def test_bounds_of_a_dimension_are_checked_and_named(
    make_ir: Callable[..., Path], size: int, fits: bool
) -> None:
    x = np.ones((1, 3, size, 5), dtype=np.float32)
    with open_runtime("openvino", make_ir("[?,3,4..9,4..9]")) as runtime:
        if fits:
            assert runtime.run({"pixel_values": x})["logits"].shape == (1, 4)
        else:
            with pytest.raises(UsageError, match=rf"\[1, 3, {size}, 5\].*\[\?,3,4\.\.9,4\.\.9\]"):
                runtime.run({"pixel_values": x})


def test_ci_variable_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitpe_deploy.runtimes.telemetry import without_telemetry

    for before in (None, "", "false"):
        if before is None:
            monkeypatch.delenv("CI", raising=False)
        else:
            monkeypatch.setenv("CI", before)
        with without_telemetry():
            assert os.environ["CI"] == "true"
        assert os.environ.get("CI") == before


_TELEMETRY = """
import multiprocessing, os, socket, sys, threading
from pathlib import Path

attempts = []
def refuse(self, *address):
    attempts.append(address)
    raise OSError("no network in this test")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = lambda *address, **_: refuse(None, *address)
multiprocessing.Process.start = refuse  # events are sent from a child process

if sys.argv[1] == "ours":
    from vitpe_deploy.runtimes import open_runtime
    with open_runtime("openvino", Path(sys.argv[2])):
        pass
    assert "CI" not in os.environ
else:
    import openvino
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join(1)
home = Path.home()
print(len(attempts), *(p.relative_to(home) for p in home.rglob("*") if p.is_file()))
"""


@pytest.mark.parametrize("way", ["ours", "plain"])
def test_nothing_is_sent_or_written_into_the_home_folder(
    make_model: MakeModel, tmp_path: Path, way: str
) -> None:
    """The plain import is the control: it shows that this test can see telemetry at all."""
    pytest.importorskip("openvino_telemetry")
    home = tmp_path / "home"
    home.mkdir()
    silent = ("CI", "TF_BUILD", "JENKINS_URL")
    environment = {k: v for k, v in os.environ.items() if k not in silent} | {"HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", _TELEMETRY, way, str(make_model())],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    attempts, *files = done.stdout.split()
    if way == "ours":
        assert (attempts, files) == ("0", [])
    else:
        assert int(attempts) > 0
        assert files
