"""A timm network with its weights, made by timm for each size it is asked for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.base import ModelFacts, PositionFit
from vitpe_deploy.sources.observe import (
    TableResample,
    TableWatcher,
    torch_override,
    torch_unchanged,
)
from vitpe_deploy.sources.timm_facts import all_outputs, block_paths
from vitpe_deploy.sources.timm_library import CreationError, Library
from vitpe_deploy.sources.timm_relative import write_relative
from vitpe_deploy.sources.timm_sizes import NoRuleError, Sizes
from vitpe_deploy.sources.timm_traceable import make_traceable
from vitpe_deploy.sources.watched import WatchedModel

GEOMETRIC = "uneven geometric grid, linear"
"""How timm reads tables of relative positions of BEiT's kind at another size."""


class Outline(WatchedModel):
    """A timm network for looking at, called as timm calls it."""

    def block_paths(self) -> tuple[str, ...]:
        """Blocks of all stages, in order."""
        return block_paths(self._pristine)

    def explicit(self, size: Resolution | None) -> nn.Module:
        """The same with the parts that torch cannot trace written in another way."""
        return make_traceable(self.fresh(), symbolic=size is None)

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Run the network as timm does: features, then the head."""
        network: Any = module
        if names == ("logits",):
            return {"logits": network(inputs)}
        found = all_outputs(network, inputs, names)
        if "feature-map" in names and "feature-map" not in found:
            grid = self.facts.grid(Resolution(*inputs.shape[-2:]))
            patches = found["tokens"][:, self.facts.prefix_tokens :]
            found["feature-map"] = patches.transpose(1, 2).reshape(*patches.shape[::2], *grid)
        return {name: found[name] for name in names}


class TimmModel(Outline):
    """A timm network; the reference at a size is what timm itself makes for that size."""

    def __init__(
        self,
        facts: ModelFacts,
        pristine: nn.Module,
        weights: str,
        override: ResampleOverride,
        *,
        library: Library,
        sizes: Sizes,
        state: Mapping[str, Tensor],
    ) -> None:
        super().__init__(facts, pristine, weights, override)
        self._library = library
        self._sizes = sizes
        self._state = state
        self._made: tuple[object, nn.Module, tuple[TableResample, ...]] | None = None

    def fresh(self, size: Resolution | None = None, *, symbolic: bool = False) -> nn.Module:
        """An untouched network of the size, or the one that timm has for any size."""
        made = self._network(size, symbolic)[0]
        shared = {id(p): p for p in made.parameters()}
        return copy.deepcopy(made, memo=shared)

    def explicit(self, size: Resolution | None) -> nn.Module:
        """The same with the parts that torch cannot trace written in another way."""
        if size is None and self._sizes.in_graph:
            network = self.fresh()
            write_relative(network)
            return make_traceable(network, symbolic=True)
        return make_traceable(self.fresh(size, symbolic=size is None), symbolic=size is None)

    def _network(
        self, size: Resolution | None, symbolic: bool
    ) -> tuple[nn.Module, tuple[TableResample, ...]]:
        """The network and the tables that were resampled to make it; the last one is kept."""
        symbolic = symbolic and not self._sizes.in_graph
        if symbolic:
            key: object = "any size"
            if not self._sizes.has_flag:
                return self._pristine, ()
        elif size is None or self._way(size) != "created":
            return self._pristine, ()
        else:
            key = size
        if self._made is None or self._made[0] != key:
            self._made = None  # frees the one before
            made, tables = self._create(None if symbolic else size, symbolic)
            self._made = (key, made, tables)
        return self._made[1], self._made[2]

    def _way(self, size: Resolution) -> str:
        try:
            return self._sizes.way(size)
        except NoRuleError as problem:
            raise UnsupportedError(
                f"{self.facts.spec} has no rule for {size}: {problem}",
                hint=f"Use its own size {self.facts.native}; weights of another size need "
                "--model-kwarg img_size=HEIGHTxWIDTH.",
            ) from problem

    def _create(
        self, size: Resolution | None, symbolic: bool
    ) -> tuple[nn.Module, tuple[TableResample, ...]]:
        tables: list[TableResample] = []

        def resample(call: TableResample) -> Tensor:
            tables.append(call)
            return torch_override(call, self._override) if self._override else torch_unchanged(call)

        try:
            with torch.no_grad(), TableWatcher(torch.empty(0), resample):
                made = self._library.create(size=size, symbolic=symbolic, state=self._state)
        except CreationError as problem:
            raise UnsupportedError(
                f"{self.facts.spec} cannot be made for {size or 'any size'}: {problem}"
            ) from problem
        if size is not None and self._override and self._geometric(made):
            raise UnsupportedError(
                "--interpolation and --antialias have no meaning for the relative positions of "
                f"{self.facts.spec}, which timm reads on an {GEOMETRIC}",
                hint="Leave them out.",
            )
        return made, tuple(tables)

    def _geometric(self, made: nn.Module) -> bool:
        """Whether tables were resampled by anything else than an interpolation of torch."""
        old = {n: tuple(t.shape) for n, t in self._pristine.named_parameters()}
        return any(
            n.endswith("bias_table") and old.get(n) != tuple(t.shape)
            for n, t in made.named_parameters()
        )

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """What timm's loader or forward resamples on the way to ``size``."""
        facts = self.facts
        kind = facts.encoding or "positions"
        old = None if facts.native is None else facts.grid(facts.native)
        if size is None and self._sizes.in_graph:
            rule = None if kind == "log-cpb" else GEOMETRIC
            return (PositionFit(kind, old, None, rule),)
        if size is None or self._way(size) != "created":
            return tuple(dict.fromkeys(super().position_fits(size)))
        made, tables = self._network(size, False)
        fits = [
            PositionFit(kind, c.old_grid, facts.grid(size), str(c.rule.overridden(self._override)))
            for c in tables
        ]
        if self._geometric(made):
            fits.append(PositionFit("relative-2d", old, facts.grid(size), GEOMETRIC))
        return tuple(dict.fromkeys(fits)) or (PositionFit(kind, old, facts.grid(size), None),)
