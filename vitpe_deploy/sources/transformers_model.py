"""How a network of the transformers library is called, and what its outputs are named."""

from __future__ import annotations

import types
from typing import Any

import torch
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
        self._options = {"return_dict": True}
        if interpolate_flag:
            self._options["interpolate_pos_encoding"] = True

    def explicit(self, size: Resolution | None) -> nn.Module:
        """A copy; for symbolic sizes, one whose positions take them as they are."""
        module = self.fresh()
        if size is None:
            for part in module.modules():
                _keep_sizes_symbolic(part)
        return module

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


def _keep_sizes_symbolic(module: nn.Module) -> None:
    """Let a copy's ``interpolate_pos_encoding`` see symbolic sizes.

    The library passes sizes through its ``torch_int``, which is ``int`` outside torch.jit: in some
    families that freezes the grid of the trace. The method's own code runs here, on this object
    alone, with a ``torch_int`` that leaves symbols as they are.
    """
    method = getattr(type(module), "interpolate_pos_encoding", None)
    if not isinstance(method, types.FunctionType) or "torch_int" not in method.__globals__:
        return
    names = {**method.__globals__, "torch_int": _int_or_symbol}
    own = types.FunctionType(
        method.__code__, names, method.__name__, method.__defaults__, method.__closure__
    )
    own.__kwdefaults__ = method.__kwdefaults__
    module.interpolate_pos_encoding = types.MethodType(own, module)  # type: ignore[assignment]


def _int_or_symbol(value: Any) -> Any:
    return value if isinstance(value, torch.SymInt) else int(value)
