"""The referee of parity: PyTorch's own eager model, untouched and fresh for every size.

Fresh, because libraries keep state between calls (transformers' Swin answers differently at 64 px
after a call at 32 px); untouched, because a comparison with the module that was patched for tracing
proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from vitpe_deploy.parity import Array, Outputs
from vitpe_deploy.request import Resolution
from vitpe_deploy.runtimes.torch_eager import TorchRuntime
from vitpe_deploy.sources.base import LoadedModel


class Referee:
    """Reference outputs of a loaded model. See :class:`vitpe_deploy.parity.Reference`."""

    def __init__(
        self, loaded: LoadedModel, *, threads: int | None = None, symbolic: bool = False
    ) -> None:
        """``symbolic`` says whether the file proved has symbolic height and width."""
        self._loaded = loaded
        self._symbolic = symbolic
        self._threads = threads

    def outputs(
        self, size: Resolution, inputs: Sequence[Array], names: Sequence[str]
    ) -> list[Outputs]:
        """Run a fresh copy of the model over inputs of one size."""
        layout = self._loaded.facts.input
        axes = {0: "batch", **layout.size_axes()}
        module = self._loaded.fresh(size, symbolic=self._symbolic)

        def forward(batch: Tensor) -> Mapping[str, Tensor]:
            with self._loaded.reference_rule(batch):
                return self._loaded.read(module, batch, tuple(names))

        runtime = TorchRuntime(
            forward,
            layout.name,
            threads=self._threads,
            output_names=tuple(names),
            input_shape=tuple(axes.get(k, n) for k, n in enumerate(layout.shape(size, 1))),
            input_dtype=layout.dtype,
        )
        with runtime:
            return [runtime.run({layout.name: x}) for x in inputs]
