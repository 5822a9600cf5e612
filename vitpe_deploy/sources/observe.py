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
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitpe_deploy.encodings.resample import ResampleRule, interpolate_grid
from vitpe_deploy.errors import UnsupportedError
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
        one_axis: whether the library's table is [1, D, w], read here as one row of a grid.
    """

    table: Tensor
    size: tuple[int, int]
    rule: ResampleRule
    arguments: Mapping[str, Any]
    one_axis: bool = False

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
                grid = self._on_table(call)
                return grid[:, :, 0] if call.one_axis else _laid_out_as_torch_does(grid, call.table)
        result = self.call(func, args, kwargs)
        if marked:
            self.mark(result)
            if func is Tensor.__setitem__:  # writes into its first argument and returns nothing
                self.mark(args[0])
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


def _laid_out_as_torch_does(result: Tensor, table: Tensor) -> Tensor:
    """The memory format of torch's own interpolation, which is that of its input.

    Libraries ``view`` the result without asking; on another layout of the same values that fails.
    """
    _, dim, _, w = table.stride()
    channels_last = dim == 1 and w >= table.shape[1] and table.shape[1] > 1
    return result.contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )


def read_interpolate(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TableResample | None:
    """What a call of ``F.interpolate`` asks for; None when it is not one table in two dimensions.

    Raises:
        UnsupportedError: the scale factors of the two axes miss their sizes by different amounts.
    """
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    call = bound.arguments
    table = call["input"]
    if call["mode"] == "linear" and table.dim() == 3 and table.shape[0] == 1:
        return _one_axis(call)
    if call["mode"] not in _RULES or table.dim() != 4 or table.shape[0] != 1:
        return None
    size, offset = _size_and_offset(table, call)
    rule = ResampleRule(
        interpolation=call["mode"],
        antialias=bool(call["antialias"]),
        align_corners=bool(call["align_corners"]),
        offset=offset,
    )
    return TableResample(table, size, rule, dict(call))


def _one_axis(call: Mapping[str, Any]) -> TableResample | None:
    """A table of one axis (SAM's rows of relative distances), when a size is asked for."""
    size = call["size"]
    if size is None:
        return None
    n: Any = size if isinstance(size, int | torch.SymInt) else size[0]
    rule = ResampleRule("bilinear", antialias=False, align_corners=bool(call["align_corners"]))
    return TableResample(call["input"].unsqueeze(2), (1, n), rule, dict(call), one_axis=True)


def _size_and_offset(table: Tensor, call: Mapping[str, Any]) -> tuple[tuple[int, int], float]:
    """Output size, and by how much an explicit scale factor misses it (DINO's 0.1).

    The size is floored in Python's double, as torch does it, and never again by an engine.
    """
    if call["size"] is not None:
        size = call["size"]
        h, w = (size, size) if isinstance(size, int | torch.SymInt) else tuple(size)
        return (h, w), 0.0
    factor = call["scale_factor"]
    factors = tuple(factor) if isinstance(factor, (tuple, list)) else (factor, factor)
    asked = [n * f for n, f in zip(table.shape[-2:], factors, strict=True)]
    h, w = (math.floor(n) for n in asked)
    if call["recompute_scale_factor"]:
        return (h, w), 0.0
    over_h, over_w = (float(n - whole) for n, whole in zip(asked, (h, w), strict=True))
    if not math.isclose(over_h, over_w, abs_tol=1e-6):
        raise UnsupportedError(
            f"the model resamples its positions by scale factors {factors}, which ask for "
            f"{asked[0]:g}x{asked[1]:g} rows and columns",
            hint="Pass size= to F.interpolate in the model.",
        )
    # Without the noise of the division; but 14 * (61 / 14) is 60 and a remainder just below 1.
    return (h, w), round(over_h, 6) if over_h < 1 - 1e-6 else over_h


def torch_override(call: TableResample, override: ResampleOverride) -> Tensor:
    """Torch's own interpolation with the user's rule: the referee's answer to an override."""
    table = call.table[0].permute(1, 2, 0)  # [h, w, D]
    grid = interpolate_grid(table, call.size, call.rule.overridden(override))
    return grid.permute(2, 0, 1).unsqueeze(0)


def torch_unchanged(call: TableResample) -> Tensor:
    """What the library would have computed."""
    result = F.interpolate(**dict(call.arguments))
    return result.unsqueeze(2) if call.one_axis else result
