"""Which sizes a timm network takes, and how timm gets native weights there.

Nothing is known by name: networks are made and run on the ``meta`` device, and timm's own answer
counts. There are three ways to a size:

* ``native``: the size of the weights;
* ``created``: the class is made for the size (``img_size``) and timm's loader resamples the
  weights of the training size into it;
* ``as-is``: the native network runs at the size by itself, because nothing in it belongs to a
  size (conditional positions, windows that pad) or because its forward resamples its own tables.

A network whose tables belong to a size, but which runs at another one without touching them, is
not taken: it reads them at the wrong place (MViTv2 below its native size).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import nn

from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import SizeRule
from vitpe_deploy.sources.timm_library import CreationError, Library
from vitpe_deploy.sources.timm_relative import writes_in_graph
from vitpe_deploy.sources.timm_steps import Outcome, find_rule, patch_size, reduction_of, run

Way: TypeAlias = Literal["native", "created", "as-is"]


class NoRuleError(Exception):
    """timm has no rule for this size; the message says what makes it so.

    ``final`` means that it has none for any other size either.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


@dataclass
class Sizes:
    """What timm answers about the sizes of one network.

    Attributes:
        library: the name and its options.
        probe: the native network without data.
        native: the size of its weights.
        takes_size: whether the class has ``img_size``.
    """

    library: Library
    probe: nn.Module
    native: Resolution
    takes_size: bool
    _found: dict[Resolution, tuple[Way, Outcome] | NoRuleError] = field(default_factory=dict)
    _flag: bool | None = None
    _owned: str | None = None

    @classmethod
    def of(cls, library: Library) -> Sizes:
        """Ask timm about a network."""
        probe = library.probe()
        native = _native_size(probe)
        return cls(library, probe, native, library.takes("img_size", (native.height, native.width)))

    def way(self, size: Resolution) -> Way:
        """How native weights get to a size.

        Raises:
            NoRuleError: they do not, with timm's reason.
        """
        return "native" if size == self.native else self._look(size)[0]

    def _look(self, size: Resolution) -> tuple[Way, Outcome]:
        if size not in self._found:
            try:
                self._found[size] = self._find(size)
            except NoRuleError as problem:
                self._found[size] = problem
        found = self._found[size]
        if isinstance(found, NoRuleError):
            raise found
        return found

    def _find(self, size: Resolution) -> tuple[Way, Outcome]:
        if not self.takes_size:
            outcome = run(self.probe, size)
            if outcome.reason:
                raise NoRuleError(f"timm's forward fails at {size}: {outcome.reason}")
            return "as-is", outcome
        try:
            self.library.create(device="meta", size=size)
        except CreationError as problem:
            raise NoRuleError(f"timm does not make it at {size}: {problem}") from problem
        try:
            made = self.library.create(device="meta", size=size, state=self.probe.state_dict())
        except CreationError as problem:
            outcome = run(self.probe, size)
            if not outcome.reason and outcome.tables:
                return "as-is", outcome
            raise NoRuleError(
                f"timm's loader does not resample weights of {self.native} ({_first(problem)})",
                final=True,
            ) from problem
        outcome = run(made, size)
        if outcome.reason:
            raise NoRuleError(f"timm's forward fails at {size}: {outcome.reason}")
        return "created", outcome

    @property
    def has_flag(self) -> bool:
        """Whether the class has ``dynamic_img_size``."""
        if self._flag is None:
            self._flag = self.library.takes("dynamic_img_size", True)
        return self._flag

    @property
    def in_graph(self) -> bool:
        """Whether all that belongs to a size can be computed from it in the file."""
        if self.has_flag or not self.takes_size or not writes_in_graph(self.probe):
            return False
        return self._owned_table() is not None

    def symbolic_probe(self) -> nn.Module:
        """A network without data that runs at any size of its rule.

        Raises:
            NoRuleError: timm has none, with the mechanism that makes it so.
        """
        if self.has_flag:
            try:
                return self.library.create(device="meta", symbolic=True)
            except CreationError as problem:
                raise NoRuleError(f"timm does not make it dynamic: {problem}") from problem
        return self.probe

    def static_rule(self) -> SizeRule:
        """Sizes of static files."""

        def attempt(size: Resolution) -> Outcome:
            try:
                return self._look(size)[1]
            except NoRuleError as problem:
                return Outcome(reason=str(problem), final=problem.final)

        return find_rule(attempt, self.native, self.probe, self._smallest_step())

    def _smallest_step(self) -> int:
        """Pixels below which runs without data prove nothing.

        Tables of a pyramid's maps are read by index, which a run without data does not check: the
        maps must divide evenly, as they do at the native size.
        """
        reduction = reduction_of(self.probe)
        if not self.takes_size or reduction <= max(patch_size(self.probe)):
            return 1
        made = self._another()
        return 1 if made is None or _table_that_differs(self.probe, made) is None else reduction

    def symbolic_rule(self) -> SizeRule:
        """Sizes of files with symbolic height and width.

        Raises:
            NoRuleError: there is no network that runs at more than one size.
        """
        if self.in_graph:
            return self.static_rule()
        probe = self.symbolic_probe()
        if self.has_flag:
            rule = find_rule(lambda size: run(probe, size), self.native, probe)
        else:
            rule = find_rule(self._as_is, self.native, probe)
        if rule.fixed is not None:
            raise NoRuleError(rule.fixed_reason)
        return rule

    def _as_is(self, size: Resolution) -> Outcome:
        """The native network at another size, when its tables do not belong to its own size."""
        outcome = run(self.probe, size)
        if outcome.tables or not self.takes_size:
            return outcome
        table = self._owned_table()
        if table is None:
            return outcome
        return Outcome(
            reason=f"{table} belongs to one size; timm resamples it when the network is made for "
            "a size, if at all, and not while it runs",
            final=True,
        )

    def _owned_table(self) -> str | None:
        """A table of the native network that belongs to its size."""
        if self._owned is None:
            made = self._another()
            found = None if made is None else _table_that_differs(self.probe, made)
            if made is not None and found is None:
                found = _buffer_that_differs(self.probe, made)
            self._owned = found or ""
        return self._owned or None

    def _another(self) -> nn.Module | None:
        """The network made for another size, the next that all maps divide."""
        step = max(reduction_of(self.probe), *patch_size(self.probe))
        size = Resolution(self.native.height + step, self.native.width + step)
        try:
            return self.library.create(device="meta", size=size)
        except CreationError:
            return None


def _table_that_differs(one: nn.Module, other: nn.Module) -> str | None:
    """A parameter whose shape depends on the size of the picture."""
    shapes = {n: tuple(t.shape) for n, t in other.state_dict().items()}
    return next((n for n, t in one.state_dict().items() if shapes.get(n) != tuple(t.shape)), None)


def _buffer_that_differs(one: nn.Module, other: nn.Module) -> str | None:
    shapes = {n: tuple(t.shape) for n, t in other.named_buffers()}
    return next((n for n, t in one.named_buffers() if shapes.get(n) != tuple(t.shape)), None)


def _native_size(probe: nn.Module) -> Resolution:
    """The size that the positions were made for."""
    size = getattr(getattr(probe, "patch_embed", None), "img_size", None)
    if isinstance(size, int):
        return Resolution(size, size)
    if isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(n, int) for n in size):
        return Resolution(size[0], size[1])
    config: Any = probe.pretrained_cfg
    return Resolution(*config["input_size"][1:])


def _first(problem: CreationError) -> str:
    """What does not fit first, in few words."""
    text = str(problem).partition(";")[0]
    found = re.search(r"mismatch for (\S+):.*?Size\((\[[^)]*\])\).*?Size\((\[[^)]*\])\)", text)
    return f"{found[1]} is {found[2]}, needs {found[3]}" if found is not None else text
