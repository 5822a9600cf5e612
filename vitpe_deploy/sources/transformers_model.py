"""How a network of the transformers library is called, and what its outputs are named."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.base import ModelFacts
from vitpe_deploy.sources.watched import WatchedModel


class TransformersModel(WatchedModel):
    """A transformers network and how it is called."""

    def __init__(
        self,
        facts: ModelFacts,
        pristine: nn.Module,
        weights: str,
        override: ResampleOverride,
        *,
        interpolate_flag: bool,
    ) -> None:
        super().__init__(facts, pristine, weights, override)
        self._options = {"interpolate_pos_encoding": True} if interpolate_flag else {}

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Run the class as the library documents it."""
        network: Any = module
        result: dict[str, Tensor] = {}
        encoder: Any = getattr(network, network.base_model_prefix, network)
        if "logits" in names:
            seen: list[Any] = []
            handle = encoder.register_forward_hook(lambda _m, _i, output: seen.append(output))
            try:
                result["logits"] = network(inputs, **self._options).logits
            finally:
                handle.remove()
            output = seen[-1]
        else:
            output = encoder(inputs, **self._options)
        tokens = output.last_hidden_state
        result["tokens"] = tokens
        result["cls"] = tokens[:, 0]
        if "pooled" in names:
            result["pooled"] = output.pooler_output
        if "feature-map" in names:
            grid = self.facts.grid(Resolution(*inputs.shape[-2:]))
            patches = tokens[:, self.facts.prefix_tokens :]
            result["feature-map"] = patches.transpose(1, 2).unflatten(2, grid)
        return {name: result[name] for name in names}
