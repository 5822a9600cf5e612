"""Which sizes a network of the transformers library takes, found by running it without data.

Nothing is known by name. The class is made on the ``meta`` device and run at sizes of growing
steps; the library's own answer counts. A network is refused a size

* where its forward raises (tables that are added without being resampled, sizes that are checked);
* where it has a table that belongs to ``image_size`` and reads it without resampling;

and pixels that fall off the border are noted, as the library drops them without a word.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import Remainder, SizeRule
from vitpe_deploy.sources.observe import TableResample, TableWatcher, torch_unchanged

Forward = Callable[[nn.Module, Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Outcome:
    """One run without data.

    Attributes:
        reason: why it failed; empty when it ran.
        floors: whether border pixels were dropped on the way.
        tables: interpolations of position tables that the forward made.
        outputs: what came out.
    """

    reason: str = ""
    floors: bool = False
    tables: tuple[TableResample, ...] = ()
    outputs: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether it ran and used every pixel."""
        return not self.reason and not self.floors


def run(probe: nn.Module, size: Resolution, channels: int, forward: Forward) -> Outcome:
    """Run a copy of a network of the ``meta`` device; some keep what they saw (Swin's windows)."""
    module = copy.deepcopy(probe)
    _compute_afresh(module)
    tables: list[TableResample] = []
    dropped: list[str] = []

    def note(call: TableResample) -> Tensor:
        tables.append(call)
        return torch_unchanged(call)

    def look(path: str) -> Callable[..., None]:
        def hook(conv: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            sizes = zip(inputs[0].shape[-2:], conv.kernel_size, conv.stride, strict=True)  # type: ignore[arg-type]
            if any((n - k) % s for n, k, s in sizes):
                dropped.append(path)

        return hook

    for path, child in module.named_modules():
        # Keys of attention may be reduced by a stride: that is no border of the picture.
        if isinstance(child, nn.Conv2d) and _cuts(child) and "attention" not in path:
            child.register_forward_pre_hook(look(path))
    try:
        with torch.device("meta"), torch.no_grad():
            pixels = torch.empty(1, channels, size.height, size.width)
            with TableWatcher(pixels, note):
                outputs = forward(module, pixels)
    except Exception as problem:  # whatever a forward raises at a size it was not made for
        return Outcome(reason=_line(problem))
    return Outcome(floors=bool(dropped), tables=tuple(tables), outputs=outputs)


def _compute_afresh(module: nn.Module) -> None:
    """Let a copy compute what its classes would keep for the whole process.

    BEiT's index of relative positions is cached by the grid alone: computed on the ``meta`` device,
    it would be given to every later network of that grid, the referee among them, whose biases were
    then read from nowhere. Caches of bound methods are keyed by the copy and need no care.
    """
    for child in module.modules():
        for name in {n for cls in type(child).__mro__ for n in vars(cls)}:
            held = inspect.getattr_static(type(child), name)
            if isinstance(held, staticmethod) and hasattr(held.__func__, "__wrapped__"):
                setattr(child, name, inspect.unwrap(held.__func__))


def _cuts(conv: nn.Conv2d) -> bool:
    """Whether a remainder of the picture falls off: a stride without padding."""
    return conv.stride[0] > 1 and conv.kernel_size[0] > 1 and conv.padding in ((0, 0), 0, "valid")


@dataclass(frozen=True)
class SizeSearch:
    """The library's answers about one network.

    Attributes:
        attempt: one run without data at a size.
        native: the size of its positions.
        patch: pixels of a patch.
        windows: sides of windows, in tokens.
        owned: a table that belongs to ``image_size``, when there is one.
    """

    attempt: Callable[[Resolution], Outcome]
    native: Resolution
    patch: tuple[int, int]
    windows: tuple[int, ...]
    owned: Callable[[], str | None]

    def rule(self) -> SizeRule:
        """The smallest step between sizes that run without dropping pixels."""
        native, patch = self.native, self.patch
        odd = Resolution(native.height + 2 * patch[0] + 1, native.width + 5 * patch[1] + 1)
        rough = self._judged(odd)
        if rough.exact:
            return SizeRule((1, 1), "", least=self._least((1, 1)))
        remainder: Remainder = "floors" if not rough.reason else "refuses"
        reason = ""
        for step, why in self._steps():
            found = self._judged(Resolution(native.height + step[0], native.width + 3 * step[1]))
            if found.exact and self._divides(step):
                return SizeRule(step, why, remainder, least=self._least(step))
            square = self._judged(Resolution(native.height + step[0], native.width + step[1]))
            if found.reason and square.exact and native.height == native.width:
                return SizeRule(step, why, "refuses", square=_sentence(found.reason))
            reason = reason or square.reason or found.reason
        return SizeRule(
            patch,
            f"patch size {patch[0]}",
            "refuses",
            fixed=native,
            fixed_reason=_sentence(reason or rough.reason),
        )

    def _divides(self, step: tuple[int, int]) -> bool:
        return self.native.height % step[0] == 0 and self.native.width % step[1] == 0

    def _judged(self, size: Resolution) -> Outcome:
        outcome = self.attempt(size)
        if outcome.reason or outcome.tables:
            return outcome
        table = self.owned()
        if table is None:
            return outcome
        return Outcome(reason=f"{table} belongs to one size and is read without being resampled")

    def _least(self, step: tuple[int, int]) -> tuple[int, int]:
        """The smallest multiples of the step at which the network runs at all."""
        native = self.native
        good = min(native.height // step[0], native.width // step[1])
        bad = 0
        while good - bad > 1:
            middle = (good + bad) // 2
            found = self.attempt(Resolution(middle * step[0], middle * step[1]))
            good, bad = (good, middle) if found.reason else (middle, bad)
        return good * step[0], good * step[1]

    def _steps(self) -> Iterator[tuple[tuple[int, int], str]]:
        """Steps to try, smallest first, with what they come from."""
        h, w = self.patch
        yield self.patch, f"patch size {h}" if h == w else f"patch size {h}x{w}"
        for factor in (2, 4, 8, 16):
            yield (h * factor, w * factor), f"a map that is reduced {h * factor} times"
        for window in self.windows:
            for factor in (1, 2, 4, 8):
                step = (h * factor * window, w * factor * window)
                yield step, f"windows of {window} on a map reduced {h * factor} times"


def _sentence(reason: str) -> str:
    return f"transformers' forward fails there ({reason.rstrip('.')})"


def _line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).strip().splitlines() if line.strip()]
    return lines[0][:300] if lines else type(problem).__name__


def table_that_differs(one: nn.Module, other: nn.Module) -> str | None:
    """A parameter whose shape depends on ``image_size``."""
    shapes: dict[str, Any] = {n: tuple(p.shape) for n, p in other.named_parameters()}
    return next((n for n, p in one.named_parameters() if shapes.get(n) != tuple(p.shape)), None)
