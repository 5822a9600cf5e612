"""Engines that run an artifact, one file each, all with the same shape.

``open_runtime`` imports the file of the engine that was asked for and nothing of the others. A new
engine is a new file here with a subclass of :class:`Runtime`, and one line in ``_RUNTIMES``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import closest
from vitpe_deploy.runtimes.base import Runtime, RuntimeInfo, TensorInfo

if TYPE_CHECKING:
    from vitpe_deploy.runtimes.base import FileRuntime

__all__ = ["Runtime", "RuntimeInfo", "TensorInfo", "canonical", "names", "open_runtime"]

_RUNTIMES = {
    "onnxruntime": ("onnxruntime", "OnnxRuntime"),
    "openvino": ("openvino", "OpenVinoRuntime"),
    "torch": ("torch_eager", "TorchRuntime"),
}
_ALIASES = {"ort": "onnxruntime", "ov": "openvino", "pytorch": "torch"}


def names() -> tuple[str, ...]:
    """The canonical names, as JSON documents spell them."""
    return tuple(_RUNTIMES)


def canonical(name: str) -> str:
    """The canonical spelling: ``"ort"`` is ``"onnxruntime"``.

    Raises:
        UsageError: unknown name; the hint has the closest one and the whole list.
    """
    word = name.strip().lower()
    word = _ALIASES.get(word, word)
    if word not in _RUNTIMES:
        raise UsageError(
            f"runtime {name!r} is not known",
            hint=f"{closest(word, [*_RUNTIMES, *_ALIASES])}Choose from: {', '.join(_RUNTIMES)}.",
        )
    return word


def open_runtime(
    name: str,
    path: Path,
    *,
    device: str = "CPU",
    threads: int | None = None,
    extra_outputs: tuple[str, ...] = (),
    precision: str = "f32",
    streams: int = 1,
    cache: Path | None = None,
    repack: bool = True,
) -> Runtime:
    """A runtime for the file at ``path``; enter it with ``with`` to load the file.

    Args:
        name: ``onnxruntime`` (or ``ort``) or ``openvino``.
        path: A ``.onnx`` file, or an OpenVINO ``.xml``.
        device: In the engine's own words: ``CPU``, ``GPU.1``, ``AUTO``, ``HETERO:GPU,CPU``.
        threads: Threads of the engine's pool; None is :func:`~vitpe_deploy.threads.available_cpus`.
        extra_outputs: Names of values inside the graph to return beside the declared outputs.
        precision: What is asked of an engine that can compute in another than the file's;
            ``info.precision_executed`` says what it does.
        streams: Requests that the engine is to work on at a time.
        cache: Folder for what the engine compiled; None keeps nothing.
        repack: Whether ONNX Runtime may copy weights into the order of its kernels; without, files
            that share a data file share its memory.

    Raises:
        UsageError: unknown name, or ``torch``, which runs modules and not files.
        DeviceError: the engine is not installed.
    """
    word = canonical(name)
    if word == "torch":
        raise UsageError(
            f"torch cannot run the file {path}",
            hint="torch runs the source model: build a TorchRuntime from the module, or choose "
            "onnxruntime or openvino.",
        )
    module, cls = _RUNTIMES[word]
    kind: type[FileRuntime] = getattr(importlib.import_module(f"{__name__}.{module}"), cls)
    return kind(
        Path(path),
        device=device,
        threads=threads,
        extra_outputs=tuple(extra_outputs),
        precision=precision,
        streams=streams,
        cache=cache,
        repack=repack,
    )
