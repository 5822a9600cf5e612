"""OpenVINO on any of its devices, executing float32.

Facts this file rests on (OpenVINO 2026.4): without a hint the CPU plugin picks bf16 on capable
CPUs, the precision asked for is not always the one executed, AUTO, HETERO and MULTI answer for
their compiled model only through ``DEVICE_PROPERTIES``, and importing the package sends a
telemetry event and writes files into the home folder unless ``CI=true``.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vitpe_deploy.errors import ArtifactError, DeviceError, UnsupportedError, UsageError
from vitpe_deploy.limits import KEY, AxisLimit, limits_from_text
from vitpe_deploy.runtimes.base import (
    Array,
    Dim,
    FileRuntime,
    Opened,
    RuntimeInfo,
    TensorInfo,
    reason,
    shape_error,
)
from vitpe_deploy.runtimes.bounds import bound_shapes
from vitpe_deploy.runtimes.compile_cache import entry_folder
from vitpe_deploy.runtimes.ir_file import weights_path
from vitpe_deploy.runtimes.onnx_file import check_onnx_file, external_tensors
from vitpe_deploy.runtimes.telemetry import without_telemetry
from vitpe_deploy.versions import require_version

_META_DEVICES = ("AUTO", "HETERO", "MULTI", "BATCH")


class OpenVinoRuntime(FileRuntime):
    """One compiled model with one request: latency hint, one stream, explicit threads on the CPU.

    Reads ``.onnx`` and ``.xml``. ``device`` is any OpenVINO device string.
    """

    _request: Any = None

    def _open(self) -> Opened:
        engine = import_openvino()
        core = shared_core()
        model = self._read(core)
        limits = _limits(model)
        base_devices = self._base_devices()
        if any(d.startswith("NPU") for d in base_devices) and model.is_dynamic():
            shapes = ", ".join(f"{_name(p)} {p.get_partial_shape()}" for p in model.inputs)
            raise UnsupportedError(
                f"the NPU takes fixed shapes only, {self._path.name} is dynamic: {shapes}",
                hint="Export static files of several sizes that share their weights: "
                "vitpe-export MODEL --buckets 224,384, without --dynamic.",
            )
        used = self._require_devices(core.available_devices, base_devices)
        if any(device.startswith("GPU") for device in used):
            bound_shapes(model, limits)
        for name in self._extra_outputs:
            self._expose(model, name)
        config = self._config(used)
        if self._cache is not None:
            config["CACHE_DIR"] = str(self._cache_entry(core, engine.__version__, used, config))
        start = time.perf_counter()
        try:
            compiled = self._compile(core, model, config)
        except (RuntimeError, UnicodeDecodeError) as error:
            raise ArtifactError(
                f"openvino cannot compile {self._path} for {self._device}: {reason(error)}",
                hint="Export with --target portable, or use another --device.",
            ) from error
        compile_ms = (time.perf_counter() - start) * 1e3
        self._request = compiled.create_infer_request()
        self._shapes = {_name(port): port.get_partial_shape() for port in compiled.inputs}
        self._positions = _output_positions(compiled.outputs, self._extra_outputs)
        outputs = tuple(
            _tensor(compiled.outputs[position], name) for name, position in self._positions.items()
        )
        executed_on = list(compiled.get_property("EXECUTION_DEVICES"))
        device = executed_on[0].strip("()") if executed_on else self._device
        info = RuntimeInfo(
            runtime="openvino",
            version=str(engine.__version__).split("-")[0],
            device=self._device,
            device_name=_device_name(core, device),
            precision_executed=_read_precision(compiled, device),
            threads=_read_threads(compiled, device, self._threads),
            compile_ms=compile_ms,
            from_cache=self._cache is not None and _is_from_cache(compiled),
        )
        inputs = tuple(_tensor(p, _name(p)) for p in compiled.inputs)
        return Opened(info, inputs, outputs, limits)

    def _read(self, core: Any) -> Any:
        path = self._path
        if path.suffix == ".xml":
            if not path.is_file():
                raise ArtifactError(
                    f"{path} does not exist", hint="Check the path, or export the model first."
                )
            # The reader tries every frontend in turn, and one of them logs to stderr.
            with path.open("rb") as file:
                if b"<net" not in file.read(1024):
                    raise ArtifactError(
                        f"{path} is not an OpenVINO model", hint="Export the model again."
                    )
            weights = weights_path(path)
            if not weights.is_file():
                raise ArtifactError(
                    f"{path} needs the data file {weights.name!r}, which is not there",
                    hint=f"Copy {weights.name} next to {path.name}: the two files are moved "
                    "together.",
                )
        elif path.suffix == ".ort":
            raise UsageError(
                f"openvino cannot read {path.name}",
                hint=".ort files run with --runtime onnxruntime; openvino takes .onnx and .xml.",
            )
        else:
            check_onnx_file(path)
        try:
            if path.suffix == ".xml":
                return core.read_model(str(path), str(weights_path(path)))
            return core.read_model(str(path))
        except (RuntimeError, UnicodeDecodeError) as error:  # messages quote the file's own bytes
            raise ArtifactError(
                f"openvino cannot load {path}: {reason(error)}",
                hint="Copy or export the file again; export with --target portable if the engine "
                "lacks an operator.",
            ) from error

    def _expose(self, model: Any, name: str) -> None:
        if any(name in port.get_names() for port in model.outputs):
            return
        try:
            model.add_outputs([name])
        except RuntimeError as error:
            raise UsageError(
                f"{self._path.name} has no value {name!r}",
                hint="OpenVINO keeps the names of ONNX values, except of those it folded away.",
            ) from error

    def _base_devices(self) -> list[str]:
        """The hardware named by the device string: ``HETERO:GPU,CPU`` is GPU and CPU."""
        device = self._device.upper()
        kind, _, rest = device.partition(":")
        if kind not in _META_DEVICES:
            return [device]
        words = re.sub(r"\(.*?\)", "", rest).split(",")
        return [word.strip() for word in words if word.strip() and not word.startswith("-")]

    def _require_devices(self, available: list[str], base_devices: list[str]) -> list[str]:
        """The devices that may be used; an empty list of words means every device there is."""
        for word in base_devices:
            if word not in available and not any(d.startswith(f"{word}.") for d in available):
                raise DeviceError(
                    f"no such device here; there are: {', '.join(available)} (asked for {word})",
                    hint="Use one of them with --device. If the machine has this device, "
                    "OpenVINO cannot see it because its driver is not installed.",
                )
        return base_devices or available

    def _config(self, used: list[str]) -> dict[str, Any]:
        if any(device.startswith("NPU") for device in used) and len(used) == 1:
            # The NPU plugin knows neither float32 nor streams and refuses the words.
            return {"PERFORMANCE_HINT": "LATENCY"}
        config: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": self._precision,
            "PERFORMANCE_HINT": "LATENCY" if self._streams == 1 else "THROUGHPUT",
        }
        cpu_only = {"INFERENCE_NUM_THREADS": self._threads, "NUM_STREAMS": self._streams}
        if used == ["CPU"]:
            return config | cpu_only
        if "CPU" in used:
            return config | {"DEVICE_PROPERTIES": {"CPU": cpu_only}}
        return config

    def _compile(self, core: Any, model: Any, config: dict[str, Any]) -> Any:
        """Compile; an entry of the cache that cannot be read goes, and what it held is made again.

        Raises:
            RuntimeError: the model cannot be compiled.
        """
        device = self._device.upper()
        try:
            return core.compile_model(model, device, config)
        except RuntimeError:
            entry = config.get("CACHE_DIR")
            if entry is None or not any(Path(entry).glob("*")):
                raise
            shutil.rmtree(entry, ignore_errors=True)
            return core.compile_model(model, device, config)

    def _cache_entry(
        self, core: Any, version: str, used: list[str], config: Mapping[str, Any]
    ) -> Path:
        """The folder of this very model, engine, device and configuration."""
        path = self._path
        if path.suffix == ".xml":
            files = [path, weights_path(path)]
        else:
            data = sorted({tensor.location for tensor in external_tensors(path)})
            files = [path, *(path.parent / name for name in data)]
        return entry_folder(
            self._cache or Path(),
            files,
            version=version,
            device=self._device,
            device_names=[_device_name(core, device) for device in used],
            settings={**config, "outputs": ",".join(self._extra_outputs)},
        )

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for name, array in inputs.items():
            # Bounded dimensions (1..8) are not numbers, so the common check let them pass.
            for size, dim in zip(array.shape, self._shapes[name], strict=True):
                if size < dim.get_min_length() or 0 < dim.get_max_length() < size:
                    raise shape_error(name, array.shape, str(self._shapes[name]))
        try:
            values = self._request.infer(dict(inputs), share_inputs=True)
        except RuntimeError as error:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items())
            raise ArtifactError(
                f"openvino failed in {self._path} on {shapes}: {reason(error)}",
                hint="The graph does not compute at this size; export the model for it.",
            ) from error
        arrays = values.to_tuple()
        return {name: arrays[position] for name, position in self._positions.items()}

    def requests(self, count: int) -> list[Any]:
        """Further requests of the same compiled model, to be worked on at a time."""
        compiled = self._request.get_compiled_model()
        return [compiled.create_infer_request() for _ in range(count)]

    def _close(self) -> None:
        self._request = None


def read_model(path: Path) -> Any:
    """An ``.onnx`` or ``.xml`` as an ``openvino.Model``, checked first; nothing is compiled.

    Raises:
        ArtifactError: missing, damaged, or without its data files.
        DeviceError: OpenVINO is not installed.
    """
    return OpenVinoRuntime(path)._read(shared_core())


def import_openvino() -> Any:
    """The ``openvino`` module, imported without telemetry.

    Every import of OpenVINO in this product goes through here: the package decides at import time
    whether to send events.

    Raises:
        DeviceError: it is not installed, or its libraries do not load.
        VersionError: it is too old.
    """
    loaded: Any = sys.modules.get("openvino")
    if loaded is not None:
        return loaded
    try:
        with without_telemetry():
            loaded = importlib.import_module("openvino")
    except ImportError as error:
        raise DeviceError(
            f"the engine openvino cannot be imported: {reason(error)}",
            hint="It belongs to the base install. Run: pip install openvino",
        ) from error
    require_version("openvino", str(loaded.__version__))
    return loaded


def _limits(model: Any) -> tuple[AxisLimit, ...]:
    """The limits that the file carries, under ``framework`` as OpenVINO keeps ONNX metadata."""
    path = ["framework", KEY]
    return limits_from_text(
        model.get_rt_info(path).astype(str) if model.has_rt_info(path) else None
    )


def _output_positions(ports: list[Any], extra: tuple[str, ...]) -> dict[str, int]:
    """Output name to position; a value with several names is listed under every name asked for."""
    positions: dict[str, int] = {}
    for position, port in enumerate(ports):
        if not port.get_names().intersection(extra):
            positions[_name(port)] = position
    for name in extra:
        positions[name] = next(i for i, port in enumerate(ports) if name in port.get_names())
    return positions


def _name(port: Any) -> str:
    """The ONNX name of an input or output.

    One value can carry several names (an Identity that was removed); the node behind it keeps the
    declared one.
    """
    names = sorted(port.get_names())
    declared = str(port.get_node().get_friendly_name()).split("/sink_port_")[0]
    return declared if declared in names or not names else names[0]


def _tensor(port: Any, name: str) -> TensorInfo:
    shape: tuple[Dim, ...] = tuple(
        dim.get_length() if dim.is_static else None for dim in port.get_partial_shape()
    )
    return TensorInfo(name, shape, str(port.get_element_type().to_dtype().name))


def _property(compiled: Any, key: str, device: str) -> Any:
    """A property of the compiled model, or of the one inside AUTO, HETERO and MULTI."""
    try:
        return compiled.get_property(key)
    except RuntimeError:
        pass
    try:
        return compiled.get_property("DEVICE_PROPERTIES").get(device, {}).get(key)
    except RuntimeError:
        return None


def _is_from_cache(compiled: Any) -> bool:
    try:
        return bool(compiled.get_property("LOADED_FROM_CACHE"))
    except RuntimeError:  # a device that does not tell
        return False


def _read_precision(compiled: Any, device: str) -> str:
    value = _property(compiled, "INFERENCE_PRECISION_HINT", device)
    return "unknown" if value is None else str(value.to_string())


def _read_threads(compiled: Any, device: str, asked: int) -> int:
    value = _property(compiled, "INFERENCE_NUM_THREADS", device)
    return asked if value is None else int(value)


def _device_name(core: Any, device: str) -> str:
    try:
        return str(core.get_property(device, "FULL_DEVICE_NAME"))
    except RuntimeError:
        return device


def shared_core() -> Any:
    """The one ``openvino.Core`` of this process, which lives as long as the process.

    The CPU plugin of every Core gives the thread that loads it a stack for signal handlers, and
    takes it back when the Core goes. Of two Cores the older one going first leaves the thread with
    a stack that is no longer there, and the next signal, Ctrl-C too, ends the process with a
    segmentation fault (OpenVINO 2026.4).

    Raises:
        DeviceError: OpenVINO is not installed.
        VersionError: it is too old.
    """
    return _core_of(import_openvino())


@cache
def _core_of(engine: Any) -> Any:
    return engine.Core()
