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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import Remainder, SizeRule
from vitpe_deploy.sources.observe import TableResample, TableWatcher, torch_unchanged
from vitpe_deploy.sources.timm_library import CreationError, Library, first_line
from vitpe_deploy.sources.timm_relative import writes_in_graph

Way: TypeAlias = Literal["native", "created", "as-is"]


class NoRuleError(Exception):
    """timm has no rule for this size; the message says what makes it so.

    ``final`` means that it has none for any other size either.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


@dataclass(frozen=True)
class Outcome:
    """One run without data.

    Attributes:
        reason: why it failed; empty when it ran.
        floors: whether border pixels were dropped on the way.
        tables: interpolations of position tables that the forward made.
        outputs: what came out.
        final: whether no other size would run either.
    """

    reason: str = ""
    floors: bool = False
    tables: tuple[TableResample, ...] = ()
    outputs: Any = None
    final: bool = False

    @property
    def exact(self) -> bool:
        """Whether it ran and used every pixel."""
        return not self.reason and not self.floors


def run(
    module: nn.Module, size: Resolution, forward: Callable[[nn.Module, Tensor], Any] | None = None
) -> Outcome:
    """Run a network of the ``meta`` device at a size."""
    tables: list[TableResample] = []
    dropped: list[str] = []
    channels = int(getattr(module, "in_chans", None) or _first_convolution(module).in_channels)

    def note(call: TableResample) -> Tensor:
        tables.append(call)
        return torch_unchanged(call)

    def look(path: str) -> Callable[..., None]:
        def hook(conv: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            sizes = zip(inputs[0].shape[-2:], conv.kernel_size, conv.stride, strict=True)  # type: ignore[arg-type]
            if any((n - k) % s for n, k, s in sizes):
                dropped.append(path)

        return hook

    handles = [
        child.register_forward_pre_hook(look(path))
        for path, child in module.named_modules()
        if isinstance(child, nn.Conv2d) and _cuts_patches(child) and "attn" not in path
    ]
    try:
        with torch.device("meta"), torch.no_grad():
            pixels = torch.empty(1, channels, size.height, size.width)
            with TableWatcher(pixels, note):
                outputs = module(pixels) if forward is None else forward(module, pixels)
    except Exception as problem:  # whatever a forward raises at a size it was not made for
        return Outcome(reason=first_line(problem))
    finally:
        for handle in handles:
            handle.remove()
    return Outcome(floors=bool(dropped), tables=tuple(tables), outputs=outputs)


def _cuts_patches(conv: nn.Conv2d) -> bool:
    """Whether a remainder of the picture falls off: a stride without padding."""
    plain = type(conv) is nn.Conv2d  # timm's subclasses pad by themselves
    return plain and conv.stride[0] > 1 and conv.kernel_size[0] > 1 and conv.padding in ((0, 0), 0)


def _first_convolution(module: nn.Module) -> nn.Conv2d:
    return next(m for m in module.modules() if isinstance(m, nn.Conv2d))


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

        return _rule(attempt, self.native, self.probe, self._smallest_step(attempt))

    def _smallest_step(self, attempt: Callable[[Resolution], Outcome]) -> int:
        """Pixels below which runs without data prove nothing.

        Tables of a pyramid's maps are read by index, which a run without data does not check: the
        maps must divide evenly, as they do at the native size.
        """
        reduction = _reduction(self.probe)
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
            rule = _rule(lambda size: run(probe, size), self.native, probe)
        else:
            rule = _rule(self._as_is, self.native, probe)
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
        step = max(_reduction(self.probe), *patch_size(self.probe))
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


def _rule(
    attempt: Callable[[Resolution], Outcome],
    native: Resolution,
    probe: nn.Module,
    smallest: int = 1,
) -> SizeRule:
    """The smallest step between sizes that run without dropping pixels."""
    patch = patch_size(probe)
    rough = attempt(_odd(native, patch))
    if rough.exact and smallest == 1:
        return SizeRule((1, 1), "")
    remainder: Remainder = "floors" if not rough.reason else "refuses"
    reason, final = rough.reason, False
    for step, why in _steps(patch, probe):
        if min(step) < smallest or final:
            continue
        found = attempt(Resolution(native.height + step[0], native.width + 3 * step[1]))
        if found.exact:
            return SizeRule(step, why, remainder)
        square = attempt(Resolution(native.height + step[0], native.width + step[1]))
        if found.reason and square.exact:
            return SizeRule(step, why, "refuses", square=found.reason)
        reason, final = found.reason or reason, found.final
    return SizeRule(patch, f"patch size {patch[0]}", "refuses", fixed=native, fixed_reason=reason)


def _odd(native: Resolution, patch: tuple[int, int]) -> Resolution:
    """A size that no patch divides, not square and well above the native one."""
    return Resolution(native.height + 2 * patch[0] + 1, native.width + 5 * patch[1] + 1)


def _steps(patch: tuple[int, int], probe: nn.Module) -> list[tuple[tuple[int, int], str]]:
    """Steps to try, smallest first, with what they come from."""
    named = str(patch[0]) if patch[0] == patch[1] else f"{patch[0]}x{patch[1]}"
    steps = [(patch, f"patch size {named}")]
    reduction = _reduction(probe)
    factor = 2
    while patch[0] * factor <= reduction:
        step = (patch[0] * factor, patch[1] * factor)
        steps.append((step, f"a map that is reduced {step[0]} times"))
        factor *= 2
    windows = sorted({w for m in probe.modules() for w in _window(m)})
    base = max(reduction, patch[0])
    steps += [
        ((base * w, base * w), f"windows of {w} on a map reduced {base} times") for w in windows
    ]
    return steps


def _window(module: nn.Module) -> tuple[int, ...]:
    for name in ("partition_size", "window_size"):
        value = getattr(module, name, None)
        if isinstance(value, int) and value > 1:
            return (value,)
        if isinstance(value, (tuple, list)) and len(value) == 2 and value[0] == value[1]:
            return (int(value[0]),) if value[0] > 1 else ()
    return ()


def _reduction(probe: nn.Module) -> int:
    """Pixels per row of the smallest map, as timm's own feature table says."""
    info: Any = getattr(probe, "feature_info", None)
    entries = info if isinstance(info, list) else getattr(info, "info", None) or []
    found = [int(e["reduction"]) for e in entries if isinstance(e, dict) and "reduction" in e]
    return max(found, default=1)


def patch_size(probe: nn.Module) -> tuple[int, int]:
    """Height and width of a patch: of the patch embedding, else of the first convolution."""
    embed = getattr(probe, "patch_embed", None)
    value = getattr(embed, "patch_size", None)
    if isinstance(value, int):
        return value, value
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return int(value[0]), int(value[1])
    stride = _first_convolution(probe).stride
    return int(stride[0]), int(stride[1])


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
