"""ONNX Runtime's own sides: devices, symbolic names, missing packages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from vitpe_deploy.errors import DeviceError, MissingExtraError, UsageError
from vitpe_deploy.runtimes import open_runtime

MakeModel = Callable[..., Path]


def test_symbolic_dimensions_keep_their_names(make_model: MakeModel) -> None:
    with open_runtime("ort", make_model()) as runtime:
        assert runtime.inputs[0].shape == ("batch", 3, "height", "width")
        assert runtime.outputs[0].shape == ("batch", 4)


def test_dimensions_of_one_name_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "pair.onnx"
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in ("a", "b", "c")
    ]
    graph = helper.make_graph(
        [helper.make_node("Concat", ["a", "b"], ["c"], axis=1)], "pair", ports[:2], ports[2:]
    )
    ports[2].type.tensor_type.shape.dim[1].dim_value = 4
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    with (
        open_runtime("ort", path) as runtime,
        pytest.raises(UsageError, match="'a' and 'b' disagree on 'batch': 3 and 2"),
    ):
        runtime.run({n: np.zeros((s, 2), np.float32) for n, s in (("a", 3), ("b", 2))})


def test_session_options_are_explicit(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    real = onnxruntime.InferenceSession

    def spy(model: Any, options: Any, providers: Any) -> Any:
        seen.append((options, providers))
        return real(model, options, providers=providers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    with open_runtime("ort", make_model(), threads=1):
        pass
    options, providers = seen[0]
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert [name for name, _ in providers] == ["CPUExecutionProvider"]


@pytest.mark.parametrize("device", ["GPU", "NPU", "CPU:1", "OPENVINO:GPU"])
def test_absent_device_names_the_present_ones(make_model: MakeModel, device: str) -> None:
    if "OpenVINOExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime-openvino is installed here")
    with (
        pytest.raises(DeviceError, match=f"no device '{device}' here; there are: CPU$"),
        open_runtime("ort", make_model(), device=device),
    ):
        pass


def test_a_provider_that_fell_back_to_the_cpu_is_an_error(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime-openvino does that without a word."""
    asked: list[Any] = []
    real = onnxruntime.InferenceSession

    def fall_back(model: Any, options: Any, providers: Any) -> Any:
        asked.extend(providers)
        return real(model, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", fall_back)
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["OpenVINOExecutionProvider"]
    )
    with (
        pytest.raises(DeviceError, match="fell back from OpenVINOExecutionProvider"),
        open_runtime("ort", make_model(), device="OPENVINO:NPU", threads=1),
    ):
        pass
    assert asked[0][1] == {
        "device_type": "NPU",
        "load_config": '{"NPU": {"INFERENCE_PRECISION_HINT": "f32"}}',
    }


def test_openvino_file_is_pointed_to_openvino(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"cannot read model\.xml") as got,
        open_runtime("ort", tmp_path / "model.xml"),
    ):
        pass
    assert "--runtime openvino" in got.value.hint


def _without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make importing one package fail as it does where it is not installed."""
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]


def test_extra_outputs_without_onnx_say_what_to_install(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model()
    _without("onnx", monkeypatch)
    with open_runtime("ort", path) as runtime:  # the base install has no onnx
        assert runtime.outputs[0].name == "logits"
    with (
        pytest.raises(MissingExtraError, match="onnx is not installed") as got,
        open_runtime("ort", path, extra_outputs=("hidden",)),
    ):
        pass
    assert "vitpe-deploy[export]" in got.value.hint


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_missing_engine_says_what_to_install(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    path = make_model()
    _without(engine, monkeypatch)
    with (
        pytest.raises(DeviceError, match=f"engine {engine} cannot be imported") as got,
        open_runtime(engine, path),
    ):
        pass
    assert f"pip install {engine}" in got.value.hint


def test_torch_does_not_run_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="torch cannot run the file"):
        open_runtime("torch", tmp_path / "model.onnx")


def test_ort_format_files_run(
    make_model: MakeModel, pictures: np.ndarray, answer: Callable[..., Any], tmp_path: Path
) -> None:
    converted = tmp_path / "tiny.ort"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(converted)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(make_model()), options, providers=["CPUExecutionProvider"])
    with open_runtime("ort", converted) as runtime:
        got = runtime.run({"pixel_values": pictures})["logits"]
    np.testing.assert_allclose(got, answer(pictures)["logits"], atol=1e-6)
    with pytest.raises(UsageError, match=r"openvino cannot read tiny\.ort"):
        open_runtime("openvino", converted).__enter__()
