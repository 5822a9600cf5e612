"""Networks that their callable builds anew for each size: ``build(img_size=...)``.

Where a module runs at one size only and its callable takes the size, the network of another size
is what the callable builds for it, with the weights of the native one: tensors of the same shape
are taken over, learned tables of another shape are resampled, and what the constructor computes for
a size (buffers, tables that it fills and freezes) is the constructor's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.encodings.resample import ResampleRule, interpolate_grid, resample_grid
from vitpe_deploy.errors import UnsupportedError, UsageError
from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.base import ModelFacts, PositionFit, SizeRule
from vitpe_deploy.sources.inspection import detached, patch_convolution
from vitpe_deploy.sources.module import PlainModel
from vitpe_deploy.sources.module_sizes import ModuleSizes, multiples, unlike
from vitpe_deploy.sources.table_search import Search, Trial
from vitpe_deploy.sources.tables import Grid, PositionTable, Resample, readings_of
from vitpe_deploy.sources.timm_traceable import make_traceable
from vitpe_deploy.sources.torchvision_windows import make_torchvision_traceable

SIZE_OPTIONS = ("img_size", "image_size", "input_size")
"""Arguments by which a callable is told the size."""

Make = Callable[[Resolution], nn.Module]


@dataclass(frozen=True)
class Rebuild:
    """A callable that takes the size, and the network that it builds by itself.

    Attributes:
        make: builds for a size; raises UsageError where it does not.
        option: the argument.
        native: the size that it builds by itself.
        patch: height and width of a patch.
    """

    make: Make
    option: str
    native: Resolution
    patch: Grid

    def network(
        self, pristine: nn.Module, size: Resolution, resample: Resample, rule: ResampleRule
    ) -> tuple[nn.Module, tuple[PositionTable, ...]]:
        """The network of a size with the weights of the native one, and the tables resampled.

        Raises:
            UnsupportedError: a learned tensor of another shape that is no table of patches.
        """
        made = self.make(size)
        learned = {n for n, p in made.named_parameters() if p.requires_grad}
        given, state = pristine.state_dict(), made.state_dict()
        grid = (size.height // self.patch[0], size.width // self.patch[1])
        tables: list[PositionTable] = []
        for name, value in state.items():
            own = given.get(name)
            if own is not None and own.shape == value.shape:
                state[name] = own
            elif name in learned:
                table = self._table(pristine, name, value, grid)
                state[name] = table.fitted(pristine, grid, resample, rule)[name]
                tables.append(table)
        made.load_state_dict(state, assign=True)
        return made.eval().requires_grad_(False), tuple(tables)

    def _table(self, pristine: nn.Module, name: str, value: Tensor, grid: Grid) -> PositionTable:
        own = pristine.state_dict().get(name)
        here = "no such tensor" if own is None else str(list(own.shape))
        guesses = [] if own is None else readings_of(pristine, name, own, self.patch, self.native)
        fits = [
            g
            for g in guesses
            if g.fitted(pristine, grid, _shape_only, ResampleRule())[name].shape == value.shape
        ]
        if len(fits) != 1:
            raise UnsupportedError(
                f"{name} is {list(value.shape)} where the network is built for other patches "
                f"({grid[0]}x{grid[1]}) and {here} at {self.native}; that is no table of patches",
                hint=f"Export the size {self.native}, or build and train it for the other.",
            )
        return fits[0]

    def sizes(self, pristine: nn.Module, channels: int) -> ModuleSizes | None:
        """Which sizes it can be built for; None when no other one was found."""
        for times in multiples(pristine):
            step = (self.patch[0] * times, self.patch[1] * times)
            other = unlike(step, self.native)
            side = max(other.height, other.width)
            square = ""
            trial = self._trial(pristine, other, channels)
            if not trial.ran:
                square = trial.reason
                other = Resolution(side, side)
                trial = self._trial(pristine, other, channels)
            if not trial.ran or (square and self.native.height != self.native.width):
                continue
            reason = "" if times == 1 else f"{times}x{times} windows of "
            rule = replace(
                SizeRule.for_patches(self.patch, "floors"),
                divisor=step,
                square=square and f"the callable builds no other ({square})",
            )
            if reason:
                rule = replace(rule, reason=reason + rule.reason, remainder="refuses")
            own = self._trial(pristine, self.native, channels)
            return ModuleSizes(
                self.patch, channels, self.native, rule, (), own, self.native,
                no_dynamic=f"it is built for each size ({self.option})",
            )  # fmt: skip
        return None

    def _trial(self, pristine: nn.Module, size: Resolution, channels: int) -> Trial:
        """Build for a size, and run without data."""
        try:
            made, _ = self.network(pristine, size, _shape_only, ResampleRule())
        except (UsageError, UnsupportedError) as problem:
            return Trial(reason=problem.message)
        return Search(lambda: detached(made), channels, self.patch).run(size)


def rebuild_of(module: nn.Module, make: Make, option: str, native: Resolution) -> Rebuild | None:
    """How a network gets to other sizes by its callable; None for a network without patches."""
    convolution = patch_convolution(module)
    if convolution is None:
        return None
    return Rebuild(
        make, option, native, (int(convolution.kernel_size[0]), int(convolution.kernel_size[1]))
    )


def _shape_only(table: Tensor, grid: Grid, rule: ResampleRule) -> Tensor:
    del rule
    return table.new_zeros(*grid, table.shape[-1])


class RebuiltModel(PlainModel):
    """A network whose callable builds it for each size."""

    def __init__(
        self,
        facts: ModelFacts,
        pristine: nn.Module,
        weights: str,
        override: ResampleOverride,
        sizes: ModuleSizes,
        rebuild: Rebuild,
    ) -> None:
        super().__init__(facts, pristine, weights, override, sizes)
        self._rebuild = rebuild

    def fresh(self, size: Resolution | None = None, *, symbolic: bool = False) -> nn.Module:
        """What the callable builds for the size; its learned tables are resampled by torch."""
        if size is None or size == self.facts.native:
            return super().fresh(symbolic=symbolic)
        return self._built(size, interpolate_grid)[0]

    def explicit(self, size: Resolution | None) -> nn.Module:
        """The same with tables from our matrices, and with parts that the tracer can follow."""
        native = size is None or size == self.facts.native
        network = super().fresh() if native else self._built(size, resample_grid)[0]  # type: ignore[arg-type]
        make_torchvision_traceable(make_traceable(network, symbolic=False))
        return network

    def _built(
        self, size: Resolution, resample: Resample
    ) -> tuple[nn.Module, tuple[PositionTable, ...]]:
        with torch.no_grad():
            return self._rebuild.network(self._pristine, size, resample, self._rule)

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """The learned tables that are resampled on the way to a size."""
        native: Any = self.facts.native
        if size is None or size == native:
            grid = self.facts.grid(native)
            return (PositionFit(self.facts.encoding or "positions", grid, grid, None),)
        rule = f"{self._rule} (ours: the module has no rule)"
        fits = [
            PositionFit(t.kind, t.grid, self.facts.grid(size), rule)
            for t in self._built(size, resample_grid)[1]
        ]
        built = PositionFit(f"built for the size ({self._rebuild.option})", None, None, None)
        return tuple(dict.fromkeys(fits)) or (built,)
