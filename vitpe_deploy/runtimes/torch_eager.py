"""PyTorch eager: the reference that the other runtimes are compared with and timed against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vitpe_deploy.errors import DeviceError, MissingExtraError, UsageError
from vitpe_deploy.runtimes.base import Array, Dim, Opened, Runtime, RuntimeInfo, TensorInfo
from vitpe_deploy.threads import cpu_name

if TYPE_CHECKING:
    from torch import Tensor

Forward: TypeAlias = "Callable[[Tensor], Mapping[str, Tensor] | tuple[Tensor, ...] | Tensor]"

_PRECISIONS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}


def device_name(device: str) -> str:
    """The hardware behind ``CPU``, ``XPU`` or ``XPU:1``.

    Raises:
        DeviceError: it is not here; names those that are.
    """
    import torch

    kind, _, number = device.upper().partition(":")
    count = torch.xpu.device_count() if torch.xpu.is_available() else 0
    if kind == "CPU" and not number:
        return cpu_name()
    if kind == "XPU" and number in ("", *map(str, range(count))) and count:
        return str(torch.xpu.get_device_name(int(number or 0)))
    there = ["CPU", *(f"XPU:{k}" for k in range(count))]
    raise DeviceError(
        f"torch has no device {device} here; there are: {', '.join(there)}",
        hint="Use one of them. XPU needs a torch build for Intel GPUs and its driver.",
    )


class TorchRuntime(Runtime):
    """A module or function, run as it is under ``inference_mode``.

    Args:
        forward: Takes the input tensor; returns named tensors, or one tensor or a tuple of them in
            the order of ``output_names``.
        input_name: What the exported file calls the input.
        threads: Size of torch's pool inside the ``with``; the old size comes back after it.
        output_names: Needed unless ``forward`` names its outputs itself.
        input_shape: What :attr:`inputs` says and checks; the default is a batch of pictures.
        input_dtype: numpy name.
        device: ``CPU``, or ``XPU`` for an Intel GPU; ``forward`` has to be there already.

    Raises:
        UsageError: a module in training mode: dropout would make the reference random.
    """

    def __init__(
        self,
        forward: Forward,
        input_name: str = "pixel_values",
        *,
        threads: int | None = None,
        output_names: tuple[str, ...] = (),
        input_shape: tuple[Dim, ...] = ("batch", 3, "height", "width"),
        input_dtype: str = "float32",
        device: str = "CPU",
    ) -> None:
        super().__init__(threads=threads)
        if getattr(forward, "training", False):
            raise UsageError(
                "the module is in training mode", hint="Call module.eval() before it is run."
            )
        self._forward = forward
        self._input = TensorInfo(input_name, input_shape, input_dtype)
        self._output_names = output_names
        self._device = device
        self._torch: Any = None
        self._threads_before: int | None = None

    def _open(self) -> Opened:
        try:
            import torch
        except ImportError:
            raise MissingExtraError("torch", "export") from None
        name = device_name(self._device)
        self._torch = torch
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        info = RuntimeInfo(
            runtime="torch",
            version=torch.__version__.split("+")[0],
            device=self._device,
            device_name=name,
            precision_executed=self._precision(),
            threads=torch.get_num_threads(),
        )
        outputs = tuple(TensorInfo(name, (), "float32") for name in self._output_names)
        return Opened(info, (self._input,), outputs)

    def _precision(self) -> str:
        parameters = getattr(self._forward, "parameters", None)
        first = next(parameters(), None) if callable(parameters) else None
        dtype = "float32" if first is None else str(first.dtype).removeprefix("torch.")
        return _PRECISIONS.get(dtype, dtype)

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        torch = self._torch
        # torch warns about arrays it must not write to, and would share the memory of the others
        tensor = torch.tensor(
            np.ascontiguousarray(inputs[self._input.name]), device=self._device.lower()
        )
        with torch.inference_mode():
            result = self._forward(tensor)
        if isinstance(result, torch.Tensor):
            result = (result,)
        if not isinstance(result, Mapping):
            if len(result) != len(self._output_names):
                raise UsageError(
                    f"the module returned {len(result)} tensors for "
                    f"{len(self._output_names)} output names",
                    hint="Pass output_names with one name for each.",
                )
            result = dict(zip(self._output_names, result, strict=True))
        return {name: self._to_numpy(value) for name, value in result.items()}

    def _to_numpy(self, value: Tensor) -> Array:
        # numpy has no bfloat16; float32 holds each of its values exactly
        if value.dtype == self._torch.bfloat16:
            value = value.float()
        return value.detach().cpu().numpy()

    def _close(self) -> None:
        if self._torch is not None and self._threads_before is not None:
            self._torch.set_num_threads(self._threads_before)
        self._threads_before = None
