"""ONNX Runtime on the CPU, or on OpenVINO devices where ``onnxruntime-openvino`` is installed."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitpe_deploy.errors import ArtifactError, DeviceError, MissingExtraError, UsageError
from vitpe_deploy.limits import KEY, limits_from_text
from vitpe_deploy.request import closest
from vitpe_deploy.runtimes.base import (
    Array,
    FileRuntime,
    Opened,
    RuntimeInfo,
    TensorInfo,
    reason,
)
from vitpe_deploy.runtimes.onnx_file import check_onnx_file
from vitpe_deploy.runtimes.telemetry import without_telemetry
from vitpe_deploy.threads import cpu_name
from vitpe_deploy.versions import require_version

_FATAL_ONLY = 4
_CPU_PROVIDER = "CPUExecutionProvider"
_OPENVINO_PROVIDER = "OpenVINOExecutionProvider"

# Weights stay where they are mapped, so that sessions of several files can share them.
_NO_PREPACKING_KEY = "session.disable_prepacking"

# Tells a session that was given bytes where the data files of the model are.
_DATA_FOLDER_KEY = "session.model_external_initializers_file_folder_path"

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


class OnnxRuntime(FileRuntime):
    """One session: explicit threads, sequential execution, every graph optimisation on.

    ``device`` is ``CPU``, or ``OPENVINO:DEVICE`` for the OpenVINO execution provider. The CPU
    provider computes in float32 also where weights are stored as float16.
    """

    _session: Any = None

    def _open(self) -> Opened:
        engine = import_onnxruntime()
        providers = self._providers(engine)
        if self._path.suffix == ".xml":
            raise UsageError(
                f"onnxruntime cannot read {self._path.name}",
                hint="OpenVINO files run with --runtime openvino; onnxruntime takes .onnx.",
            )
        if self._path.suffix != ".ort":
            check_onnx_file(self._path)
        options = engine.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.execution_mode = engine.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = engine.GraphOptimizationLevel.ORT_ENABLE_ALL
        if not self._repack:
            options.add_session_config_entry(_NO_PREPACKING_KEY, "1")
        model: str | bytes = str(self._path)
        if self._extra_outputs:
            model = expose_values(self._path, self._extra_outputs)
            options.add_session_config_entry(_DATA_FOLDER_KEY, str(self._path.parent.resolve()))
        start = time.perf_counter()
        try:
            session = engine.InferenceSession(model, options, providers=providers)
        except Exception as error:  # its exception classes share no base but Exception
            raise ArtifactError(
                f"onnxruntime {engine.__version__} cannot load {self._path}: {reason(error)}",
                hint="Export the model again, with a lower --opset if the engine is older.",
            ) from error
        compile_ms = (time.perf_counter() - start) * 1e3
        provider = providers[0][0]
        if session.get_providers()[0] != provider:
            raise DeviceError(
                f"onnxruntime fell back from {provider} to {session.get_providers()[0]}",
                hint=f"Device {self._device!r} did not start; use --device CPU.",
            )
        self._session = session
        outputs = _tensors(session.get_outputs())
        self._names = [output.name for output in outputs]
        info = RuntimeInfo(
            runtime="onnxruntime",
            version=engine.__version__,
            device=self._device,
            device_name=cpu_name() if provider == _CPU_PROVIDER else self._device,
            # the OpenVINO provider does not tell what it compiled for
            precision_executed="f32" if provider == _CPU_PROVIDER else "unknown",
            threads=session.get_session_options().intra_op_num_threads,
            compile_ms=compile_ms,
        )
        limits = limits_from_text(session.get_modelmeta().custom_metadata_map.get(KEY))
        return Opened(info, _tensors(session.get_inputs()), outputs, limits)

    def _providers(self, engine: Any) -> list[tuple[str, dict[str, str]]]:
        available = engine.get_available_providers()
        kind, _, target = self._device.upper().partition(":")
        if kind == "CPU" and not target:
            return [(_CPU_PROVIDER, {})]
        if kind == "OPENVINO" and _OPENVINO_PROVIDER in available:
            # A provider is made before any session, so only the default logger can be silenced.
            engine.set_default_logger_severity(_FATAL_ONLY)
            target = target or "CPU"
            config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
            if target == "CPU":
                config |= {"INFERENCE_NUM_THREADS": self._threads, "NUM_STREAMS": 1}
            # The provider takes a JSON string, and ignores everything else without a word.
            settings = {"device_type": target, "load_config": json.dumps({target: config})}
            return [(_OPENVINO_PROVIDER, settings)]
        devices = ["CPU", *(["OPENVINO:DEVICE"] if _OPENVINO_PROVIDER in available else [])]
        raise DeviceError(
            f"onnxruntime has no device {self._device!r} here; there are: {', '.join(devices)}",
            hint="Use --device CPU, or --runtime openvino for GPU and NPU.",
        )

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            values = self._session.run(self._names, dict(inputs))
        except Exception as error:  # its exception classes share no base but Exception
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items())
            raise ArtifactError(
                f"onnxruntime failed in {self._path} on {shapes}: {reason(error)}",
                hint="The graph does not compute at this size; export the model for it.",
            ) from error
        return dict(zip(self._names, values, strict=True))

    def _close(self) -> None:
        self._session = None


def expose_values(path: Path, names: tuple[str, ...]) -> bytes:
    """The model with values inside its graph declared as outputs, data files left where they are.

    Types are left out: the engine infers them.

    Raises:
        MissingExtraError: the ``onnx`` package is not installed.
        UsageError: the graph has no value of that name.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("onnx", "export") from None
    model = onnx.load(str(path), load_external_data=False)
    declared = {output.name for output in model.graph.output}
    known = declared | {name for node in model.graph.node for name in node.output if name}
    for name in dict.fromkeys(names):
        if name not in known:
            raise UsageError(
                f"{path.name} has no value {name!r}",
                hint=f"{closest(name, known)}Values are the outputs of the graph's nodes.",
            )
        if name not in declared:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    content: bytes = model.SerializeToString()
    return content


def import_onnxruntime() -> Any:
    """The ``onnxruntime`` module, imported without telemetry.

    Every import of ONNX Runtime in this product goes through here, and comes before that of a
    library which imports it too.

    Raises:
        DeviceError: it is not installed, or its libraries do not load.
        VersionError: it is too old.
    """
    try:
        with without_telemetry():
            engine = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise DeviceError(
            f"the engine onnxruntime cannot be imported: {reason(error)}",
            hint="It belongs to the base install. Run: pip install onnxruntime",
        ) from error
    require_version("onnxruntime", str(engine.__version__))
    return engine


def _tensors(arguments: Any) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(
            argument.name,
            tuple(d if isinstance(d, int) else (d or None) for d in argument.shape),
            _DTYPES.get(argument.type, argument.type),
        )
        for argument in arguments
    )
