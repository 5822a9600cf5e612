"""A network that was not written here, whose positions are found by watching it run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitpe_deploy.errors import SourceError, VitpeError
from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, PositionFit
from vitpe_deploy.sources.inspection import find_blocks, without_data
from vitpe_deploy.sources.observe import (
    TableResample,
    TableWatcher,
    torch_override,
    torch_unchanged,
)


class WatchedModel(LoadedModel):
    """A model whose positions are whatever it interpolates independently of the picture."""

    def __init__(
        self, facts: ModelFacts, pristine: nn.Module, weights: str, override: ResampleOverride
    ) -> None:
        super().__init__(facts, pristine, weights)
        self._override = override

    def block_paths(self) -> tuple[str, ...]:
        """The stack of equal modules, wherever the library keeps it."""
        return find_blocks(self._pristine, self.facts.depth)

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """What is interpolated on the way to ``size``, seen on a copy without data."""
        facts = self.facts
        native = facts.native or Resolution(*(16 * d for d in facts.size_rule.divisor))
        rule = facts.sizes(symbolic=size is None)
        probe = size or rule.nearby(native)[2]
        calls = self._observed(probe, symbolic=size is None)
        kind = facts.encoding or "positions"
        if not calls:
            grid = facts.grid(probe)
            return (PositionFit(kind, grid, grid, None),)
        new = None if size is None else facts.grid(size)
        return tuple(
            PositionFit(kind, c.old_grid, new, str(c.rule.overridden(self._override)))
            for c in calls
        )

    def _observed(self, size: Resolution, *, symbolic: bool) -> list[TableResample]:
        calls: list[TableResample] = []

        def note(call: TableResample) -> Tensor:
            calls.append(call)
            return torch_unchanged(call)

        module = self.fresh(size, symbolic=symbolic)
        with without_data():
            pixels = torch.empty(self.facts.input.shape(size, 1))
            try:
                with TableWatcher(pixels, note):
                    self.call(module, pixels, self.facts.default_outputs)
            except VitpeError:
                raise
            except Exception as problem:
                lines = str(problem).strip().splitlines() or [type(problem).__name__]
                raise SourceError(
                    f"{self.facts.name} does not run at {size}: {lines[0][:200]}",
                    hint="Only sizes that its library runs at can be exported.",
                ) from problem
        return calls

    @contextmanager
    def reference_rule(self, inputs: Tensor) -> Iterator[None]:
        """Torch's interpolation with the user's rule instead of the library's."""
        if not self._override:
            yield
            return
        with TableWatcher(inputs, lambda call: torch_override(call, self._override)):
            yield
