"""Finding position tables by watching a model run.

In a ViT, whatever is interpolated without depending on the picture is a position table. So: mark
the input, let the mark spread through every torch function, and look at each
``torch.nn.functional.interpolate`` whose argument carries no mark. The same watcher serves three
ends: reporting the rule that a library uses, making the eager referee follow a user's override,
and (in the exporter) writing positions as matrix products.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitpe_deploy.encodings.resample import ResampleRule
from vitpe_deploy.request import ResampleOverride

_SIGNATURE = inspect.signature(F.interpolate)
_RULES = {"bicubic", "bilinear"}


@dataclass(frozen=True, slots=True)
class TableResample:
    """One interpolation of a position table, as the library asked for it.

    Attributes:
        table: [1, D, h, w].
        size: rows and columns that come out; symbolic in a dynamic trace.
        rule: kernel and coordinates.
        arguments: what ``F.interpolate`` was called with.
    """

    table: Tensor
    size: tuple[int, int]
    rule: ResampleRule
    arguments: Mapping[str, Any]

    @property
    def old_grid(self) -> tuple[int, int]:
        """Rows and columns of the table."""
        return int(self.table.shape[-2]), int(self.table.shape[-1])


OnTable: TypeAlias = Callable[[TableResample], Tensor]


class TableWatcher(TorchFunctionMode):
    """Calls ``on_table`` in place of every interpolation of a position table."""

    def __init__(self, inputs: Tensor, on_table: OnTable) -> None:
        super().__init__()
        self._on_table = on_table
        # Marked tensors are kept alive: an id must not be reused while the mode is on.
        self._marked: dict[int, Tensor] = {id(inputs): inputs}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Intercept table interpolations; let everything else through and spread the mark."""
        kwargs = kwargs or {}
        marked = self.carries_mark(args) or self.carries_mark(kwargs)
        if func is F.interpolate and not marked:
            call = read_interpolate(args, kwargs)
            if call is not None:
                return self._on_table(call)
        result = self.call(func, args, kwargs)
        if marked:
            self.mark(result)
        return result

    def call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a torch function; subclasses may intercept more of them."""
        return func(*args, **kwargs)

    def mark(self, value: Any) -> None:
        """Remember tensors that depend on the input."""
        if isinstance(value, Tensor):
            self._marked[id(value)] = value
        elif isinstance(value, (tuple, list)):
            for item in value:
                self.mark(item)

    def carries_mark(self, value: Any) -> bool:
        """Whether any tensor inside depends on the input."""
        if isinstance(value, Tensor):
            return id(value) in self._marked
        if isinstance(value, (tuple, list)):
            return any(self.carries_mark(item) for item in value)
        if isinstance(value, Mapping):
            return any(self.carries_mark(item) for item in value.values())
        return False


def read_interpolate(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TableResample | None:
    """What a call of ``F.interpolate`` asks for; None when it is not a 2-D linear or cubic one."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    call = bound.arguments
    table = call["input"]
    if call["mode"] not in _RULES or table.dim() != 4:
        return None
    size, offset = _size_and_offset(table, call)
    rule = ResampleRule(
        interpolation=call["mode"],
        antialias=bool(call["antialias"]),
        align_corners=bool(call["align_corners"]),
        offset=offset,
    )
    return TableResample(table, size, rule, dict(call))


def _size_and_offset(table: Tensor, call: Mapping[str, Any]) -> tuple[tuple[int, int], float]:
    """Output size, and by how much an explicit scale factor misses it (DINO's 0.1)."""
    if call["size"] is not None:
        size = call["size"]
        h, w = (size, size) if isinstance(size, int | torch.SymInt) else tuple(size)
        return (h, w), 0.0
    factor = call["scale_factor"]
    factors = tuple(factor) if isinstance(factor, (tuple, list)) else (factor, factor)
    shape = tuple(table.shape[-2:])
    h, w = (math.floor(n * f) for n, f in zip(shape, factors, strict=True))
    if call["recompute_scale_factor"]:
        return (h, w), 0.0
    return (h, w), round(float(factors[0] * shape[0] - h), 6)


def torch_override(call: TableResample, override: ResampleOverride) -> Tensor:
    """Torch's own interpolation with the user's rule: the referee's answer to an override."""
    rule = call.rule.overridden(override)
    return F.interpolate(
        call.table,
        size=call.size,
        mode=rule.interpolation,
        antialias=rule.antialias,
        align_corners=rule.align_corners,
    )


def torch_unchanged(call: TableResample) -> Tensor:
    """What the library would have computed."""
    return F.interpolate(**dict(call.arguments))


def concrete(call: TableResample) -> TableResample:
    """The same call without its tensor's data, for reports."""
    return replace(call, table=call.table.to("meta"))
