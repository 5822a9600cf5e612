"""How a network of the transformers library is called, and what its outputs are named."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.errors import SourceError
from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.base import ModelFacts, PositionFit
from vitpe_deploy.sources.observe import TableResample
from vitpe_deploy.sources.transformers_look import block_paths
from vitpe_deploy.sources.transformers_outputs import forward
from vitpe_deploy.sources.transformers_sizes import run
from vitpe_deploy.sources.transformers_traceable import keep_sizes_symbolic, make_traceable
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
                keep_sizes_symbolic(part)
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


class PictureModel(WatchedModel):
    """A network of pictures, run as its library documents it."""

    def block_paths(self) -> tuple[str, ...]:
        """Blocks of all stages, in order."""
        return block_paths(self._pristine)

    def explicit(self, size: Resolution | None) -> nn.Module:
        """A copy in which torch can trace what it cannot in the library's own words."""
        return make_traceable(self.fresh(), symbolic=size is None)

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Outputs by the names of the facts."""
        facts = self.facts
        found = forward(module, inputs, flag=facts.size_rule.fixed is None)
        tokens = found.get("tokens")
        if tokens is not None and "cls" in names:
            found["cls"] = tokens[:, 0]
        if tokens is not None and "feature-map" in names and "feature-map" not in found:
            h, w = facts.grid_divisor
            grid = (-(-inputs.shape[-2] // h), -(-inputs.shape[-1] // w))
            if facts.size_rule.remainder == "floors":
                grid = (inputs.shape[-2] // h, inputs.shape[-1] // w)
            patches = tokens[:, facts.prefix_tokens :]
            found["feature-map"] = torch.unflatten(patches.transpose(1, 2), 2, grid)
        return {name: found[name] for name in names}

    def _observed(self, size: Resolution, *, symbolic: bool) -> list[TableResample]:
        """On the ``meta`` device: tensors of a fake mode would stay in the library's caches."""
        module = self.fresh(size, symbolic=symbolic).to("meta")
        seen = run(
            module,
            size,
            self.facts.input.shape(size, 1)[1],
            lambda m, x: self.call(m, x, self.facts.default_outputs),
        )
        if seen.reason:
            raise SourceError(
                f"{self.facts.name} does not run at {size}: {seen.reason}",
                hint="Only sizes that its library runs at can be exported.",
            )
        return list(seen.tables)

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """What the forward interpolates on the way to ``size``; a table has a grid of its own."""
        facts = self.facts
        native = facts.native or Resolution(224, 224)
        rule = facts.sizes(symbolic=size is None)
        probe = size or rule.nearby(native)[2]
        kind = facts.encoding or "positions"
        fits = [
            PositionFit(
                kind,
                call.old_grid,
                None if size is None else call.size,
                str(call.rule.overridden(self._override)),
            )
            for call in self._observed(probe, symbolic=size is None)
        ]
        if fits:
            return tuple(dict.fromkeys(fits))
        old = facts.grid(native)
        return (PositionFit(kind, old, None if size is None else facts.grid(probe), None),)
