"""What a runtime is: a context manager with one ``run(inputs) -> outputs``.

Parity and benchmark use the same classes, so what is verified is what is timed. Nothing here
imports torch, onnx or an engine.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.limits import AxisLimit, check_shape
from vitpe_deploy.threads import available_cpus

Array: TypeAlias = npt.NDArray[Any]
Dim: TypeAlias = int | str | None


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """What is really running, read back from the engine where the engine tells.

    ``precision_executed`` is the float format of the kernels (``f32``, ``bf16``, ``f16``), which
    may differ from what was asked; ``device`` is the word the user gave, ``device_name`` the
    hardware behind it. ``compile_ms`` is what the engine took to prepare the graph; None for eager.
    ``from_cache`` says whether the compiled graph was kept from an earlier start.
    """

    runtime: str
    version: str
    device: str
    device_name: str
    precision_executed: str
    threads: int
    compile_ms: float | None = field(default=None, compare=False)
    from_cache: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, shape and numpy dtype of an input or output.

    A dimension is a number, the name of a symbolic size, or None when it is free and unnamed.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {_brackets(self.shape)} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Opened:
    """What an engine reports once the model is loaded."""

    info: RuntimeInfo
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    limits: tuple[AxisLimit, ...] = ()


class Runtime(ABC):
    """One model in one engine, loaded between ``__enter__`` and ``__exit__``."""

    def __init__(self, *, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise UsageError(
                f"--threads must be at least 1, got {threads}",
                hint="Leave it out to use every CPU this process may use.",
            )
        self._threads = available_cpus() if threads is None else threads
        self._opened: Opened | None = None

    @abstractmethod
    def _open(self) -> Opened:
        """Load the model into the engine."""

    @abstractmethod
    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One inference; the inputs have been checked."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of everything ``_open`` made; also called when ``_open`` fails half-way."""

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise UsageError(
                "this runtime is open already", hint="Make a second runtime for a second session."
            )
        try:
            self._opened = self._open()
        except UnicodeDecodeError as error:
            self._close()
            raise ArtifactError(
                "the model has names that are no text",
                hint="The file is damaged: copy it again, or export it again.",
            ) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened = None
        self._close()

    def _state(self) -> Opened:
        if self._opened is None:
            raise UsageError(
                f"{type(self).__name__} is not open",
                hint="Use it as a context manager: with open_runtime(...) as runtime: ...",
            )
        return self._opened

    @property
    def info(self) -> RuntimeInfo:
        """What is running."""
        return self._state().info

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs, in the order of the file."""
        return self._state().inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The declared outputs, then the extra ones."""
        return self._state().outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One inference.

        Args:
            inputs: Every input by name, in the dtype and with the shape that ``inputs`` lists.

        Returns:
            Every output by name. NaN and infinity pass through: judging values is parity's work.

        Raises:
            UsageError: not open, an input is missing, unknown, or of another shape or dtype.
            SizeError: a size outside the limits that the file carries.
            ArtifactError: the engine failed on inputs that fit the declaration.
        """
        return self.prepared(inputs)()

    def prepared(self, inputs: Mapping[str, Array]) -> Callable[[], dict[str, Array]]:
        """The inference of ``run``, its inputs checked now and not in every call: what is timed.

        Raises:
            UsageError: as ``run`` does.
            SizeError: as ``run`` does.
        """
        state = self._state()
        check_inputs(inputs, state.inputs)
        if state.limits and state.inputs:
            check_shape(state.limits, inputs[state.inputs[0].name].shape)
        return functools.partial(self._run, inputs)


class FileRuntime(Runtime):
    """A runtime that loads a file; all of them are constructed alike."""

    def __init__(
        self,
        path: Path,
        *,
        device: str = "CPU",
        threads: int | None = None,
        extra_outputs: tuple[str, ...] = (),
        precision: str = "f32",
        streams: int = 1,
        cache: Path | None = None,
        repack: bool = True,
    ) -> None:
        super().__init__(threads=threads)
        self._cache = cache
        self._repack = repack
        self._precision = precision
        self._streams = streams
        self._path = path
        self._device = device.strip() or "CPU"
        self._extra_outputs = extra_outputs


def check_inputs(given: Mapping[str, Array], expected: tuple[TensorInfo, ...]) -> None:
    """Refuse what does not fit before an engine sees it; engines differ in what they let through.

    OpenVINO converts a float64 array silently where ONNX Runtime refuses it, and reports a wrong
    shape in three lines of C++ paths.

    Raises:
        UsageError: names what was expected and what was given.
    """
    wanted = {info.name: info for info in expected}
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown:
        problems = []
        if missing:
            problems.append(f"missing {', '.join(map(repr, missing))}")
        if unknown:
            problems.append(f"unknown {', '.join(map(repr, unknown))}")
        raise UsageError(
            f"the inputs do not fit the model: {'; '.join(problems)}",
            hint=f"It takes: {', '.join(map(str, expected))}.",
        )
    symbols: dict[str, tuple[int, str]] = {}
    for name, info in wanted.items():
        array = given[name]
        if not isinstance(array, np.ndarray):
            raise UsageError(
                f"input {name!r} is a {type(array).__name__}, not a numpy array",
                hint=f"It takes: {info}.",
            )
        if array.dtype != np.dtype(info.dtype):
            raise UsageError(
                f"input {name!r} is {array.dtype}, the model takes {info.dtype}",
                hint=f"Convert it: array.astype('{info.dtype}').",
            )
        fits = len(array.shape) == len(info.shape) and all(
            size == dim
            for size, dim in zip(array.shape, info.shape, strict=True)
            if isinstance(dim, int)
        )
        if not fits:
            raise shape_error(name, array.shape, _brackets(info.shape))
        for size, dim in zip(array.shape, info.shape, strict=True):
            if isinstance(dim, str):
                first, owner = symbols.setdefault(dim, (size, name))
                if first != size:
                    raise UsageError(
                        f"inputs {owner!r} and {name!r} disagree on {dim!r}: {first} and {size}",
                        hint="Dimensions of the same name must have the same size.",
                    )


def shape_error(name: str, got: tuple[int, ...], expected: str) -> UsageError:
    """The one wording for a shape that does not fit."""
    return UsageError(
        f"input {name!r} has shape {_brackets(got)}, the model takes {expected}",
        hint="Feed the size the file was exported for, or export another one with --res, or one "
        "file for every size with --dynamic size.",
    )


def reason(error: BaseException) -> str:
    """An engine's message as one line, without the C++ source positions around it."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [
        line
        for line in lines
        if line
        and not line.startswith("Exception from ")
        and not (line.startswith("Check '") and " failed at " in line)
        and line != "Loading input model"
    ]
    text = " ".join(kept) or " ".join(lines) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."


def _brackets(shape: tuple[Dim, ...]) -> str:
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"
