"""The referee of parity: PyTorch's own eager model, untouched and fresh for every size.

Fresh, because libraries keep state between calls (transformers' Swin answers differently at 64 px
after a call at 32 px); untouched, because a comparison with the module that was patched for tracing
proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from vitpe_deploy.parity import INPUT, Array, Outputs
from vitpe_deploy.request import Resolution
from vitpe_deploy.runtimes.torch_eager import TorchRuntime
from vitpe_deploy.sources.base import LoadedModel


class Referee:
    """Reference outputs of a loaded model. See :class:`vitpe_deploy.parity.Reference`."""

    def __init__(self, loaded: LoadedModel, *, threads: int | None = None) -> None:
        self._loaded = loaded
        self._threads = threads

    def outputs(
        self, size: Resolution, inputs: Sequence[Array], names: Sequence[str]
    ) -> list[Outputs]:
        """Run a fresh copy of the model over inputs [B, C, H, W] of one size."""
        del size  # the inputs have it; stored references need it
        module = self._loaded.fresh()

        def forward(pixel_values: Tensor) -> Mapping[str, Tensor]:
            with self._loaded.reference_rule(pixel_values):
                return self._loaded.read(module, pixel_values, tuple(names))

        runtime = TorchRuntime(
            forward,
            INPUT,
            threads=self._threads,
            output_names=tuple(names),
            input_shape=("batch", self._loaded.facts.channels, "height", "width"),
        )
        with runtime:
            return [runtime.run({INPUT: x}) for x in inputs]
