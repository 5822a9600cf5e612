"""Positions of networks that were not written here, found by watching them run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.encodings.relative_index import offset_index
from vitpe_deploy.errors import SourceError, UsageError, VitpeError
from vitpe_deploy.plot.meetings import Meeting, may_be_position, positions_among
from vitpe_deploy.plot.reference import decomposed_strength
from vitpe_deploy.plot.similarity import Array
from vitpe_deploy.plot.values import DECOMPOSED, NATIVE, RECOMPUTED, PositionSet
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import LoadedModel
from vitpe_deploy.sources.observe import TableWatcher, torch_unchanged

_ADD = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_MULTIPLY = frozenset({"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"})

_TAKES_ONLY_FORM = frozenset({"to", "type_as", "expand_as", "view_as", "reshape_as"})
"""Of their further arguments, these read type and shape and no values."""

_NEW = frozenset(
    {"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor",
     "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"}
)  # fmt: skip


class MeetingWatcher(TableWatcher):
    """Notes every tensor without the picture that meets one with it; changes nothing."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__(inputs, torch_unchanged)
        self._seen: list[tuple[str, Tensor]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """As the base class, but a type or shape taken from a picture is no mark."""
        name = getattr(func, "__name__", "")
        if name in _NEW or (name in _TAKES_ONLY_FORM and not self.carries_mark(args[:1])):
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    def call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Note what meets, then run the function."""
        name = getattr(func, "__name__", "")
        if func is F.scaled_dot_product_attention:
            self._note("attend", args[3] if len(args) > 3 else kwargs.get("attn_mask"))
        elif name in _ADD or name in _MULTIPLY:
            operands = [*args[:2], *(kwargs[k] for k in ("other",) if k in kwargs)]
            if any(self.carries_mark(x) for x in operands):
                for operand in operands:
                    self._note("add" if name in _ADD else "multiply", operand)
        return func(*args, **kwargs)

    def _note(self, how: str, value: Any) -> None:
        if (
            isinstance(value, Tensor)
            and not self.carries_mark(value)
            and may_be_position(tuple(value.shape))
        ):
            self._seen.append((how, value))

    def meetings(self) -> list[Meeting]:
        """What was noted, in order; a tensor that met often is converted once."""
        arrays: dict[int, Array] = {}
        found = []
        for how, value in self._seen:
            if id(value) not in arrays:
                plain = value.detach()
                plain = plain if plain.dtype == torch.bool else plain.float()
                arrays[id(value)] = plain.numpy()
            found.append(Meeting(how, arrays[id(value)]))  # type: ignore[arg-type]
        return found


class WatchedReader:
    """A loaded model of any source."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.name = model.facts.name
        self.encoding: str | None = model.facts.encoding

    def sets(self, resolutions: Sequence[Resolution]) -> tuple[PositionSet, ...]:
        """At the native size, then at each size given; one run of the network each.

        Raises:
            SourceError: the library cannot run one of the sizes.
            UsageError: no size was given, and the model has no native one.
        """
        native = self._model.facts.native
        sizes = [*([native] if native is not None else []), *resolutions]
        if not sizes:
            raise UsageError(f"{self.name} has no native size", hint="Give one with --res.")
        return tuple(self._at(size) for size in sizes)

    def _at(self, size: Resolution) -> PositionSet:
        facts = self._model.facts
        inputs = torch.zeros(facts.input.shape(size, 1), dtype=getattr(torch, facts.input.dtype))
        watcher = MeetingWatcher(inputs)
        module = self._model.fresh(size)
        try:
            with torch.no_grad(), watcher:
                self._model.call(module, inputs, facts.default_outputs)
        except VitpeError:
            raise
        except Exception as problem:  # whatever a library does at a size that it cannot run
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            raise SourceError(
                f"{facts.name} does not run at {size}: {lines[0][:200]}",
                hint="Only sizes that its library runs at can be drawn.",
            ) from problem
        found = positions_among(watcher.meetings(), facts.grid(size))
        if not found.biases:
            found = replace(found, biases=_decomposed(module), bias_meaning=DECOMPOSED)
        return replace(found, resolution=size, note=self._note(size, found))

    def _note(self, size: Resolution, found: PositionSet) -> str:
        if size == self._model.facts.native:
            return NATIVE
        rules = [fit.rule for fit in self._model.position_fits(size) if fit.rule is not None]
        if rules:
            return rules[0]
        return RECOMPUTED if found.kinds[:1] == ("frequencies",) else "by the library"


def _decomposed(module: nn.Module) -> tuple[Array, ...]:
    """Layers with a table per axis (SAM, ViTDet), whose bias no tensor holds without a query.

    The tables are known by the names that both papers' code gives them: ``rel_pos_h`` [2h-1, d]
    and ``rel_pos_w`` [2w-1, d].
    """
    found = []
    for layer in module.modules():
        tables = [getattr(layer, name, None) for name in ("rel_pos_h", "rel_pos_w")]
        axes = [
            t.detach()[offset_index((len(t) + 1) // 2)]
            for t in tables
            if isinstance(t, Tensor) and t.dim() == 2 and len(t) % 2
        ]
        if len(axes) == 2:
            found.append(decomposed_strength(*axes))
    return tuple(found)
