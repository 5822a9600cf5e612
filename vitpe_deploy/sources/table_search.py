"""Which tensors of a module belong to one size, found by running it without data.

A reading of a tensor as a table (:mod:`vitpe_deploy.sources.tables`) is a guess. It is right when
the module, which does not run at another size, runs there with that tensor made for the size. One
guess that passes is certain; several are not, and the user is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.encodings.resample import ResampleRule
from vitpe_deploy.errors import UnsupportedError, UsageError
from vitpe_deploy.request import Resolution, closest
from vitpe_deploy.sources.inspection import without_data
from vitpe_deploy.sources.tables import (
    Grid,
    PositionTable,
    fitted,
    install,
    readings,
    readings_of,
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run without data.

    Attributes:
        reason: why it failed, in one line; empty when it ran.
        outputs: what came out.
    """

    reason: str = ""
    outputs: Any = None

    @property
    def ran(self) -> bool:
        """Whether it came to its end."""
        return not self.reason


Copy = Callable[[], nn.Module]
"""Gives a fresh copy of the module under inspection."""


@dataclass(frozen=True)
class Search:
    """A module under inspection.

    Attributes:
        copy: gives a fresh copy.
        channels: colour channels it reads.
        patch: height and width of a patch.
        native: the size its positions were made for, where the module says so.
    """

    copy: Copy
    channels: int
    patch: Grid
    native: Resolution | None = None

    def run(self, size: Resolution, tables: Sequence[PositionTable] = ()) -> Trial:
        """Run a copy at a size, with tables made for it."""
        network = self.copy()
        install(network, fitted(network, tables, self.grid(size), _shape_only, ResampleRule()))
        try:
            with without_data(), _quietly():
                pixels = torch.empty(1, self.channels, size.height, size.width)
                return Trial(outputs=network(pixels))
        except Exception as problem:  # whatever a forward raises at a size it was not made for
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            return Trial(reason=lines[0][:200])

    def grid(self, size: Resolution) -> Grid:
        """Rows and columns of patches."""
        return size.height // self.patch[0], size.width // self.patch[1]

    def find(self, size: Resolution, *, named: str | None = None) -> tuple[PositionTable, ...]:
        """The tables that a module which does not run at ``size`` needs there; empty for none.

        Args:
            size: neither native nor square, so that no wrong reading fits by chance.
            named: path of the table, where the user said so.

        Raises:
            UsageError: no parameter or buffer is called that.
            UnsupportedError: several guesses fit, or the one that was named does not.
        """
        network = self.copy()
        if named is not None:
            return self._named(network, named, size)
        guesses = readings(network, self.patch, self.native)
        for together in (1, 2):
            fits = [
                group
                for group in combinations(guesses, together)
                if len({t.path for t in group}) == together
                and len({t.grid for t in group}) == 1
                and self.run(size, group).ran
            ]
            if len(fits) > 1:
                raise _unsure(network, fits)
            if fits:
                return fits[0]
        return self._all(guesses, size)

    def _all(self, guesses: Sequence[PositionTable], size: Resolution) -> tuple[PositionTable, ...]:
        """Tables in every layer: all guesses of one grid and one number of prefix tokens."""
        for key in dict.fromkeys((t.grid, t.kind) for t in guesses):
            group = tuple(t for t in guesses if (t.grid, t.kind) == key)
            if len(group) > 2 and self.run(size, group).ran:
                return group
        return ()

    def _named(self, network: nn.Module, path: str, size: Resolution) -> tuple[PositionTable, ...]:
        tensors: dict[str, Tensor] = dict(network.named_parameters()) | dict(
            network.named_buffers()
        )
        if path not in tensors:
            raise UsageError(
                f"--pos-embed {path!r} is no parameter or buffer of {type(network).__name__}",
                hint=f"{closest(path, tensors)}"
                f"It has: {', '.join(list(tensors)[:12])}{', ...' if len(tensors) > 12 else ''}",
            )
        shape = list(tensors[path].shape)
        guesses = readings_of(network, path, tensors[path], self.patch, self.native)
        if not guesses:
            raise UnsupportedError(
                f"--pos-embed {path} is {shape}, which is no table of a grid of patches",
                hint="Tables are [1, L + h*w, D], [L + h*w, D], [1, D, h, w] or [1, h, w, D]; a "
                "grid that is not square needs an attribute img_size of the module.",
            )
        trials = [self.run(size, (guess,)) for guess in guesses]
        fits = [guess for guess, trial in zip(guesses, trials, strict=True) if trial.ran]
        if len(fits) != 1:
            reason = "it is read in several ways" if fits else trials[0].reason
            raise UnsupportedError(
                f"--pos-embed {path} is {shape}; with that table made for {size} "
                f"{type(network).__name__} does not run: {reason}",
                hint="Name another parameter, or export the size that the module was made for.",
            )
        return (fits[0],)


@contextmanager
def _quietly() -> Iterator[None]:
    """Torch logs a traceback for each shape that does not fit, which is what is found out here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _shape_only(table: Tensor, grid: Grid, rule: ResampleRule) -> Tensor:
    """A table of the right shape: without data, values do not matter."""
    del rule
    return table.new_zeros(*grid, table.shape[-1])


def _unsure(network: nn.Module, fits: Sequence[Sequence[PositionTable]]) -> UnsupportedError:
    paths = dict.fromkeys(table.path for group in fits for table in group)
    listed = ", ".join(
        f"{path} {list(dict(network.state_dict(keep_vars=True))[path].shape)}"
        if path in network.state_dict()
        else path
        for path in paths
    )
    return UnsupportedError(
        f"{type(network).__name__} could have its positions in more than one place: {listed}",
        hint=f"Name the table: --pos-embed {next(iter(paths))}.",
    )
