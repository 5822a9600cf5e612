"""What must hold for ONNX Runtime and OpenVINO alike."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.runtimes import TensorInfo, canonical, names, open_runtime
from vitpe_deploy.threads import available_cpus

ENGINES = ("onnxruntime", "openvino")
pytestmark = pytest.mark.parametrize("engine", ENGINES)

Answer = Callable[[np.ndarray], dict[str, np.ndarray]]
MakeModel = Callable[..., Path]


def test_outputs_equal_numpy_at_two_sizes_of_a_dynamic_file(
    engine: str, make_model: MakeModel, pictures: np.ndarray, answer: Answer
) -> None:
    other = np.ascontiguousarray(pictures[:1, :, :, :3])
    with open_runtime(engine, make_model()) as runtime:
        for x in (pictures, other):
            got = runtime.run({"pixel_values": x})
            assert list(got) == ["logits"]
            np.testing.assert_allclose(got["logits"], answer(x)["logits"], atol=1e-6)


def test_results_are_not_overwritten_by_the_next_run(
    engine: str, make_model: MakeModel, pictures: np.ndarray, answer: Answer
) -> None:
    with open_runtime(engine, make_model()) as runtime:
        first = runtime.run({"pixel_values": pictures})["logits"]
        runtime.run({"pixel_values": -pictures})
    np.testing.assert_allclose(first, answer(pictures)["logits"], atol=1e-6)


def test_static_file_lists_its_tensors(engine: str, make_model: MakeModel) -> None:
    with open_runtime(engine, make_model(dims=(2, 3, 5, 7))) as runtime:
        assert runtime.inputs == (TensorInfo("pixel_values", (2, 3, 5, 7), "float32"),)
        assert runtime.outputs == (TensorInfo("logits", (2, 4), "float32"),)


@pytest.mark.parametrize("threads", [1, 2])
def test_thread_count_is_read_back(engine: str, make_model: MakeModel, threads: int) -> None:
    if threads > available_cpus():
        pytest.skip("OpenVINO takes no more threads than there are cores")
    with open_runtime(engine, make_model(), threads=threads) as runtime:
        assert runtime.info.threads == threads


def test_info_names_engine_device_and_precision(engine: str, make_model: MakeModel) -> None:
    module = __import__(engine)
    with open_runtime(engine, make_model()) as runtime:
        info = runtime.info
    assert info.runtime == engine
    assert module.__version__.startswith(info.version)
    assert (info.device, info.precision_executed) == ("CPU", "f32")
    assert info.device_name not in ("", "CPU")
    assert info.threads == available_cpus()


def test_float32_is_executed_not_bfloat16(
    engine: str, make_model: MakeModel, pictures: np.ndarray, answer: Answer
) -> None:
    """A bf16 product of these numbers is off by more than 1e-3."""
    x = pictures * 1000
    with open_runtime(engine, make_model()) as runtime:
        got = runtime.run({"pixel_values": x})["logits"]
    want = answer(x)["logits"]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_nan_and_infinity_pass_through(
    engine: str, make_model: MakeModel, pictures: np.ndarray
) -> None:
    pictures[0, 0, 0, 0] = np.nan
    with open_runtime(engine, make_model(), extra_outputs=("hidden",)) as runtime:
        got = runtime.run({"pixel_values": pictures})
    assert np.isnan(got["hidden"][0]).all()
    assert np.isfinite(got["hidden"][1]).all()


def test_extra_outputs_come_after_the_declared_ones(
    engine: str, make_model: MakeModel, pictures: np.ndarray, answer: Answer
) -> None:
    extra = ("hidden", "logits")
    with open_runtime(engine, make_model(), extra_outputs=extra) as runtime:
        got = runtime.run({"pixel_values": pictures})
        assert {o.name for o in runtime.outputs} == {"logits", "hidden"} == set(got)
    for name, want in answer(pictures).items():
        np.testing.assert_allclose(got[name], want, atol=1e-6)
    assert (got["hidden"] < 0).any()


def test_extra_outputs_with_external_data_from_another_working_directory(
    engine: str,
    make_model: MakeModel,
    pictures: np.ndarray,
    answer: Answer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_model("model/tiny.onnx", external="tiny.data")
    before = sorted(p.name for p in path.parent.iterdir())
    monkeypatch.chdir(tmp_path)
    relative = path.relative_to(tmp_path)
    with open_runtime(engine, relative, extra_outputs=("hidden",)) as runtime:
        got = runtime.run({"pixel_values": pictures})["hidden"]
    np.testing.assert_allclose(got, answer(pictures)["hidden"], atol=1e-6)
    assert sorted(p.name for p in path.parent.iterdir()) == before


def test_unknown_extra_output_is_named(engine: str, make_model: MakeModel) -> None:
    runtime = open_runtime(engine, make_model(), extra_outputs=("hiden",))
    with pytest.raises(UsageError, match=r"tiny\.onnx has no value 'hiden'"), runtime:
        pass


def test_moved_folder_works(
    engine: str,
    make_model: MakeModel,
    pictures: np.ndarray,
    answer: Answer,
    tmp_path: Path,
) -> None:
    path = make_model("model/tiny.onnx", external="tiny.data")
    moved = path.parent.rename(tmp_path / "elsewhere") / path.name
    with open_runtime(engine, moved) as runtime:
        got = runtime.run({"pixel_values": pictures})["logits"]
    np.testing.assert_allclose(got, answer(pictures)["logits"], atol=1e-6)


def test_moving_only_the_onnx_names_the_missing_data_file(
    engine: str, make_model: MakeModel, tmp_path: Path
) -> None:
    path = make_model("model/tiny.onnx", external="tiny.data")
    moved = Path(shutil.move(path, tmp_path / "alone.onnx"))
    with (
        pytest.raises(ArtifactError, match=r"alone\.onnx needs the data file 'tiny\.data'") as got,
        open_runtime(engine, moved),
    ):
        pass
    assert "Copy tiny.data next to alone.onnx" in got.value.hint


def test_truncated_data_file_is_refused(engine: str, make_model: MakeModel) -> None:
    path = make_model("model/tiny.onnx", external="tiny.data")
    data = path.with_name("tiny.data")
    data.write_bytes(data.read_bytes()[:47])
    with (
        pytest.raises(ArtifactError, match=r"has 47 bytes, weight 'weight' ends at byte 48"),
        open_runtime(engine, path),
    ):
        pass


@pytest.mark.parametrize("kind", ["absolute", "parent", "symlink"])
def test_data_outside_the_folder_is_refused(
    engine: str, make_model: MakeModel, tmp_path: Path, kind: str
) -> None:
    path = make_model("model/tiny.onnx", external="tiny.data")
    outside = path.with_name("tiny.data").rename(tmp_path / "tiny.data")
    location = {"absolute": str(outside), "parent": "../tiny.data", "symlink": "tiny.data"}[kind]
    if kind == "symlink":
        path.with_name("tiny.data").symlink_to(outside)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    pattern = "absolute path" if kind == "absolute" else "outside its folder"
    with pytest.raises(ArtifactError, match=pattern), open_runtime(engine, path):
        pass


def test_absolute_location_inside_the_folder_is_refused_too(
    engine: str, make_model: MakeModel
) -> None:
    """OpenVINO alone would take it, and the folder could never be moved."""
    path = make_model("model/tiny.onnx", external="tiny.data")
    model = onnx.load(path, load_external_data=False)
    entries = [e for t in model.graph.initializer for e in t.external_data if e.key == "location"]
    entries[0].value = str(path.with_name("tiny.data"))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match="absolute path"), open_runtime(engine, path):
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"not a model", "is not a whole ONNX file"),
        (b"\x08\x0a", "it holds no graph"),
        (None, "is not a whole ONNX file"),
    ],
    ids=["empty", "text", "no graph", "truncated"],
)
def test_damaged_file_is_named_and_nothing_is_printed(
    engine: str,
    make_model: MakeModel,
    capfd: pytest.CaptureFixture[str],
    content: bytes | None,
    message: str,
) -> None:
    path = make_model()
    path.write_bytes(path.read_bytes()[:150] if content is None else content)
    with pytest.raises(ArtifactError, match=message) as got, open_runtime(engine, path):
        pass
    assert str(path) in got.value.message
    assert capfd.readouterr() == ("", "")


def test_missing_file_and_folder(engine: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        open_runtime(engine, tmp_path / "none.onnx").__enter__()
    with pytest.raises(ArtifactError, match="is a folder"):
        open_runtime(engine, tmp_path).__enter__()


def test_unknown_operator_is_reported_in_one_line(
    engine: str, make_model: MakeModel, capfd: pytest.CaptureFixture[str]
) -> None:
    path = make_model()
    model = onnx.load(path)
    model.graph.node[-1].op_type = "Rellu"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match="Rellu") as got, open_runtime(engine, path):
        pass
    assert "\n" not in got.value.message
    assert ".cpp:" not in got.value.message.split("Rellu")[0]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 3, 5), (2, 3, 5, 7, 1), (1, 3, 5, 7)])
def test_wrong_shape_names_both_shapes(
    engine: str, make_model: MakeModel, shape: tuple[int, ...]
) -> None:
    with (
        open_runtime(engine, make_model(dims=(2, 3, 5, 7))) as runtime,
        pytest.raises(UsageError) as got,
    ):
        runtime.run({"pixel_values": np.zeros(shape, dtype=np.float32)})
    assert str(list(shape)) in got.value.message
    assert "[2, 3, 5, 7]" in got.value.message


def test_wrong_names_and_dtype(engine: str, make_model: MakeModel, pictures: np.ndarray) -> None:
    with open_runtime(engine, make_model()) as runtime:
        with pytest.raises(UsageError, match="missing 'pixel_values'; unknown 'image'"):
            runtime.run({"image": pictures})
        with pytest.raises(UsageError, match="unknown 'mask'"):
            runtime.run({"pixel_values": pictures, "mask": pictures})
        with pytest.raises(UsageError, match="is float64, the model takes float32"):
            runtime.run({"pixel_values": pictures.astype(np.float64)})
        with pytest.raises(UsageError, match="is a list, not a numpy array"):
            runtime.run({"pixel_values": pictures.tolist()})


def test_failure_inside_the_graph_names_file_and_size(
    engine: str,
    make_model: MakeModel,
    pictures: np.ndarray,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if engine == "openvino" and available_cpus() == 1:
        pytest.skip("on one core OpenVINO answers where rows do not fit")
    with (
        open_runtime(engine, make_model(fixed_rows=6)) as runtime,
        pytest.raises(ArtifactError) as got,
    ):
        runtime.run({"pixel_values": pictures})
    assert "tiny.onnx on pixel_values [2, 3, 5, 7]" in got.value.message
    assert capfd.readouterr() == ("", "")


def test_read_only_and_strided_inputs(
    engine: str, make_model: MakeModel, pictures: np.ndarray, answer: Answer
) -> None:
    strided = pictures[:, :, ::-1, ::2]
    strided.flags.writeable = False
    with open_runtime(engine, make_model()) as runtime:
        got = runtime.run({"pixel_values": strided})["logits"]
    np.testing.assert_allclose(got, answer(strided)["logits"], atol=1e-6)


def test_use_outside_the_context(engine: str, make_model: MakeModel, pictures: np.ndarray) -> None:
    runtime = open_runtime(engine, make_model())
    for _ in range(2):  # before the first `with`, and after it
        for use in (
            lambda: runtime.run({"pixel_values": pictures}),
            lambda: runtime.info,
            lambda: runtime.inputs,
            lambda: runtime.outputs,
        ):
            with pytest.raises(UsageError, match="is not open") as got:
                use()
            assert "with open_runtime" in got.value.hint
        with runtime, pytest.raises(UsageError, match="open already"):
            runtime.__enter__()


def test_session_is_released_after_the_context(engine: str, make_model: MakeModel) -> None:
    attribute = {"onnxruntime": "_session", "openvino": "_request"}[engine]
    runtime = open_runtime(engine, make_model())
    with runtime:
        assert getattr(runtime, attribute) is not None
    assert getattr(runtime, attribute) is None


def test_threads_below_one_are_refused(engine: str, make_model: MakeModel) -> None:
    with pytest.raises(UsageError, match="at least 1, got 0"):
        open_runtime(engine, make_model(), threads=0)


def test_only_the_engine_asked_for_is_imported(engine: str, make_model: MakeModel) -> None:
    code = (
        "import sys; from pathlib import Path; from vitpe_deploy.runtimes import open_runtime\n"
        "assert not {'onnxruntime', 'openvino', 'torch', 'onnx'} & set(sys.modules)\n"
        f"with open_runtime({engine!r}, Path({str(make_model())!r})): pass\n"
        "print(*sorted({'onnxruntime', 'openvino', 'torch', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [engine]
    assert done.stderr == ""


def test_names_and_aliases(engine: str) -> None:
    assert engine in names()
    assert canonical(engine.upper()) == engine
    assert canonical("ort") == "onnxruntime"
    with pytest.raises(UsageError) as got:
        canonical(f"{engine}x")
    assert f"Did you mean '{engine}'?" in got.value.hint
