"""Modules that resample their table by scale factors, as Meta's DINO and DINOv2 do.

``scale_factor = (n + 0.1) / sqrt(N)`` is computed in Python floats: ``float(n)`` and ``int(n)``
freeze a symbolic size at the size of the trace. The method that does it gives one thing, the table
of a grid, and that can be said without it: the table resampled under the same rule, prefix rows
kept. So the method of a copy is replaced for the trace, after it has been compared with the
module's own at sizes of either orientation.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.encodings.resample import (
    ResampleRule,
    interpolate_grid,
    resample_grid_in_graph,
)
from vitpe_deploy.request import ResampleOverride, Resolution
from vitpe_deploy.sources.observe import TableResample, TableWatcher, torch_unchanged
from vitpe_deploy.sources.tables import Grid


@dataclass(frozen=True, slots=True)
class OffsetMethod:
    """A method of a module that gives the table of a grid.

    Attributes:
        owner: path of the module it belongs to.
        name: of the method.
        table: path of the parameter that it resamples.
        grid: rows and columns of that table.
        prefix: rows in front of them.
        rule: how, offset included.
    """

    owner: str
    name: str
    table: str
    grid: Grid
    prefix: int
    rule: ResampleRule

    def value(self, network: nn.Module, size: Grid, rule: ResampleRule, *, graph: bool) -> Tensor:
        """The table [1, L + h*w, D] of a grid."""
        rows: Tensor = network.get_parameter(self.table)
        rows = rows.reshape(-1, rows.shape[-1])
        patches = rows[self.prefix :].reshape(*self.grid, -1)
        if graph:
            fitted = resample_grid_in_graph(patches, *size, rule)
        else:
            fitted = interpolate_grid(patches, size, rule)
        fitted = fitted.reshape(-1, rows.shape[-1])
        return torch.cat([rows[: self.prefix], fitted]).unsqueeze(0)


def find_offset_method(
    network: nn.Module, patch: Grid, sizes: tuple[Resolution, ...], channels: int
) -> OffsetMethod | None:
    """The method of a network that resamples its table by scale factors with an offset.

    None when there is none, or when it gives anything else than that table: then the tracer or
    parity says so.

    Args:
        network: a copy; it is run with data.
        patch: height and width of a patch.
        sizes: to compare at, none of them native.
        channels: of the pictures.
    """
    found: OffsetMethod | None = None
    for size in sizes:
        seen: list[tuple[TableResample, str, str]] = []

        def note(call: TableResample, seen: list[Any] = seen) -> Tensor:
            if call.rule.offset:
                place = _caller(network, sys._getframe())
                if place is not None:
                    seen.append((call, *place))
            return torch_unchanged(call)

        pixels = torch.zeros(1, channels, size.height, size.width)
        try:
            with torch.no_grad(), TableWatcher(pixels, note):
                network(pixels)
        except Exception:  # the tracer meets the same, and says it
            return None
        if len(seen) != 1:
            return None
        call, owner, name = seen[0]
        here = _described(network, call, owner, name)
        if here is None or (found is not None and here != found):
            return None
        if not _agrees(network, here, pixels, (size.height // patch[0], size.width // patch[1])):
            return None
        found = here
    return found


def _caller(network: nn.Module, frame: FrameType | None) -> tuple[str, str] | None:
    """Path and method of the module whose code asked for the interpolation."""
    paths = {id(m): path for path, m in network.named_modules()}
    while frame is not None:
        code = frame.f_code
        holder = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        name = code.co_name
        if isinstance(holder, nn.Module) and id(holder) in paths:
            own = hasattr(type(holder), name) and name != "forward" and not name.startswith("__")
            return (paths[id(holder)], name) if own else None
        frame = frame.f_back
    return None


def _described(
    network: nn.Module, call: TableResample, owner: str, name: str
) -> OffsetMethod | None:
    """Which parameter the table is a part of."""
    h, w = call.old_grid
    for path, tensor in network.named_parameters():
        prefix = tensor.numel() // tensor.shape[-1] - h * w
        if tensor.shape[-1] != call.table.shape[1] or not 0 <= prefix <= 8:
            continue
        rows = tensor.reshape(-1, tensor.shape[-1])[prefix:]
        if torch.equal(rows.reshape(h, w, -1), call.table[0].permute(1, 2, 0)):
            return OffsetMethod(owner, name, path, (h, w), prefix, call.rule)
    return None


def _agrees(network: nn.Module, method: OffsetMethod, pixels: Tensor, grid: Grid) -> bool:
    """Whether the method gives what :meth:`OffsetMethod.value` says, and nothing else."""
    given: list[Any] = []
    owner: Any = network.get_submodule(method.owner)
    own = getattr(owner, method.name)

    def listen(_self: Any, *args: Any, **kwargs: Any) -> Any:
        given.append(own(*args, **kwargs))
        return given[-1]

    setattr(owner, method.name, MethodType(listen, owner))
    try:
        with torch.no_grad():
            network(pixels)
    finally:
        delattr(owner, method.name)
    if len(given) != 1 or not isinstance(given[0], Tensor):
        return False
    right = method.value(network, grid, method.rule, graph=False)
    return given[0].shape == right.shape and torch.allclose(given[0], right, atol=1e-6)


def write_offset_in_graph(
    network: nn.Module, method: OffsetMethod, patch: Grid, override: ResampleOverride
) -> None:
    """Let the method of a copy compute its table from the height and width of each input."""
    rule = method.rule.overridden(override)
    grid: list[Any] = [0, 0]

    def look(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        height, width = inputs[0].shape[-2:]
        grid[:] = height // patch[0], width // patch[1]

    def value(_self: Any, *_args: Any, **_kwargs: Any) -> Tensor:
        return method.value(network, (grid[0], grid[1]), rule, graph=True)

    network.register_forward_pre_hook(look)
    owner: Any = network.get_submodule(method.owner)
    setattr(owner, method.name, MethodType(value, owner))
