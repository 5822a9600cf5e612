"""Position tables of networks that were not written here: reading, resampling and replacing them.

A module that adds a fixed table to its tokens runs at one size. The table is a parameter (or a
buffer) whose shape says what it is:

1. rows, one per token: ``[1, L + h*w, D]``, ``[L + h*w, D]``, ``[L + h*w, 1, D]``, the first L of
   them for prefix tokens; also the weight of an ``nn.Embedding``, together with the buffer of
   numbers 0, 1, 2, ... that it is read with;
2. a picture: ``[1, D, h, w]``, ``[D, h, w]``, ``[1, h, w, D]``, ``[h, w, D]``;
3. biases of all relative distances, ``[(2h-1)(2w-1) (+ 3), M]``, with the index
   ``[L + h*w, L + h*w]`` that reads them (Liu et al., "Swin Transformer", 2021; the last three rows
   are for a class token, Bao et al., "BEiT", 2021).

Which reading is right is decided by running, in :mod:`vitpe_deploy.sources.table_search`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from vitpe_deploy.encodings.resample import ResampleRule, resample_grid_in_graph
from vitpe_deploy.request import Resolution

Grid: TypeAlias = tuple[int, int]
Resample: TypeAlias = Callable[[Tensor, Grid, ResampleRule], Tensor]
"""[h, w, D], new grid, rule -> [h', w', D]."""

MOST_PREFIX_TOKENS = 8
"""Class, distillation and register tokens in front of the patches."""


class PositionTable(Protocol):
    """Tensors of a network that belong to one grid."""

    @property
    def path(self) -> str:
        """Of the parameter or buffer that holds the positions."""

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches it was made for."""

    @property
    def kind(self) -> str:
        """Name of the encoding."""

    @property
    def prefix(self) -> int:
        """Rows in front of the patches."""

    def fitted(
        self, network: nn.Module, grid: Grid, resample: Resample, rule: ResampleRule
    ) -> dict[str, Tensor]:
        """The tensors for another grid, by path."""


@dataclass(frozen=True, slots=True)
class LearnedTable:
    """Cases 1 and 2: one vector per patch, added to the tokens.

    Attributes:
        layout: of the patches: one after the other, or as a picture.
        numbers: path of the buffer 0, 1, 2, ... that reads the rows of an embedding.
    """

    path: str
    grid: Grid
    prefix: int
    layout: Literal["rows", "channels-first", "channels-last"] = "rows"
    numbers: str | None = None

    @property
    def kind(self) -> str:
        """A learned table."""
        return "learned-1d"

    def fitted(
        self, network: nn.Module, grid: Grid, resample: Resample, rule: ResampleRule
    ) -> dict[str, Tensor]:
        """The patches resampled as a picture; prefix rows keep theirs."""
        table = tensor_at(network, self.path)
        shape = list(table.shape)
        if self.layout != "rows":
            picture = table.reshape(shape[-3:])
            if self.layout == "channels-first":
                picture = picture.permute(1, 2, 0)
            out = resample(picture, grid, rule)
            if self.layout == "channels-first":
                out = out.permute(2, 0, 1)
            return {self.path: out.reshape(*shape[:-3], *out.shape)}
        dim = shape[-1]
        rows = table.reshape(-1, dim)
        patches = rows[self.prefix :].reshape(*self.grid, dim)
        out = resample(patches, grid, rule).reshape(-1, dim)
        out = torch.cat([rows[: self.prefix], out])
        count = self.prefix + grid[0] * grid[1]
        long = next(k for k, n in enumerate(shape) if n != 1)
        found = {self.path: out.reshape(*shape[:long], count, *shape[long + 1 :])}
        if self.numbers is not None:
            numbers = tensor_at(network, self.numbers)
            lead = [1] * (numbers.dim() - 1)
            found[self.numbers] = torch.arange(count, dtype=numbers.dtype).reshape(*lead, count)
        return found


@dataclass(frozen=True, slots=True)
class RelativeTable:
    """Case 3: one bias per distance and head, and the index that reads it."""

    path: str
    grid: Grid
    prefix: int
    index: str

    @property
    def kind(self) -> str:
        """Biases of all distances of the grid."""
        return "relative-2d"

    def fitted(
        self, network: nn.Module, grid: Grid, resample: Resample, rule: ResampleRule
    ) -> dict[str, Tensor]:
        """The distances resampled as a picture of (2h-1) x (2w-1); rows of the class token kept."""
        table = tensor_at(network, self.path)
        h0, w0 = (2 * n - 1 for n in self.grid)
        rows, columns = 2 * grid[0] - 1, 2 * grid[1] - 1
        picture = table[: h0 * w0].reshape(h0, w0, -1)
        out = resample(picture, (rows, columns), rule).reshape(-1, table.shape[-1])
        index = relative_index(grid, self.prefix, tensor_at(network, self.index).dtype)
        shape = tensor_at(network, self.index).shape
        fitted = torch.cat([out, table[h0 * w0 :]])
        return {self.path: fitted, self.index: index.flatten() if len(shape) == 1 else index}


def relative_index(grid: Grid, prefix: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Row of the table for each pair of tokens, [L + h*w, L + h*w]; L is 0 or 1."""
    h, w = grid
    rows = torch.arange(h).unsqueeze(1).expand(h, w).reshape(-1)
    columns = torch.arange(w).unsqueeze(0).expand(h, w).reshape(-1)
    down = rows.unsqueeze(1) - rows.unsqueeze(0) + (h - 1)
    right = columns.unsqueeze(1) - columns.unsqueeze(0) + (w - 1)
    index = (down * (2 * w - 1) + right).to(dtype)
    if not prefix:
        return index
    first = (2 * h - 1) * (2 * w - 1)  # class to patch, patch to class, class to class
    index = torch.nn.functional.pad(index, (1, 0), value=first + 1)
    top = torch.full_like(index[:1], first)
    corner = torch.arange(index.shape[1]).unsqueeze(0) == 0
    return torch.cat([torch.where(corner, first + 2, top).to(dtype), index])


def readings(network: nn.Module, patch: Grid, native: Resolution | None) -> list[PositionTable]:
    """Everything in a network whose shape could be a table, in every way it can be read."""
    found: list[PositionTable] = []
    for path, tensor in _own_tensors(network):
        found += readings_of(network, path, tensor, patch, native)
    return found


def readings_of(
    network: nn.Module, path: str, tensor: Tensor, patch: Grid, native: Resolution | None
) -> list[PositionTable]:
    """The ways to read one tensor."""
    shape = tuple(tensor.shape)
    long = [n for n in shape if n != 1]
    found: list[PositionTable] = list(_relative_readings(network, path, tensor, native, patch))
    if found:
        return found
    if len(long) == 2 and shape[-1] == long[1]:
        numbers = _numbers(network, long[0])
        for prefix in range(min(MOST_PREFIX_TOKENS, long[0] - 4) + 1):
            grid = _grid_of(long[0] - prefix, patch, native)
            if grid is not None:
                found.append(LearnedTable(path, grid, prefix, "rows", numbers))
    elif len(long) == 3 and shape[-3:] == tuple(long):
        found.append(LearnedTable(path, (shape[-2], shape[-1]), 0, "channels-first"))
        found.append(LearnedTable(path, (shape[-3], shape[-2]), 0, "channels-last"))
    return found


def _own_tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Floating tensors that a class of the user holds itself, and weights of embeddings."""
    named = [*network.named_parameters(), *network.named_buffers()]
    for path, tensor in named:
        owner = network.get_submodule(path.rpartition(".")[0])
        home = type(owner).__module__
        layer = home.startswith("torch.nn.modules.") and not home.endswith(".container")
        if tensor.is_floating_point() and (not layer or isinstance(owner, nn.Embedding)):
            yield path, tensor


def _grid_of(count: int, patch: Grid, native: Resolution | None) -> Grid | None:
    """Rows and columns of so many patches: those of the native size, else of a square."""
    if native is not None:
        grid = native.height // patch[0], native.width // patch[1]
        return grid if grid[0] * grid[1] == count else None
    side = math.isqrt(count)
    return (side, side) if side > 1 and side * side == count else None


def _numbers(network: nn.Module, count: int) -> str | None:
    """The buffer 0, 1, ..., count-1, where there is one."""
    for path, buffer in network.named_buffers():
        if buffer.is_floating_point() or buffer.is_complex() or buffer.numel() != count:
            continue
        if torch.equal(buffer.flatten().long(), torch.arange(count)):
            return path
    return None


def _relative_readings(
    network: nn.Module, path: str, tensor: Tensor, native: Resolution | None, patch: Grid
) -> Iterator[RelativeTable]:
    owner = path.rpartition(".")[0]
    if tensor.dim() != 2 or "bias" not in path.rpartition(".")[2]:
        return
    for name, index in network.get_submodule(owner).named_buffers(recurse=False):
        side = math.isqrt(index.numel())
        if index.is_floating_point() or side * side != index.numel():
            continue
        for prefix in (0, 1):
            grid = _grid_of(side - prefix, patch, native)
            rows = tensor.shape[0] - 3 * prefix
            if grid is None or rows != (2 * grid[0] - 1) * (2 * grid[1] - 1):
                continue
            if torch.equal(index.reshape(side, side).long(), relative_index(grid, prefix)):
                where = f"{owner}.{name}" if owner else name
                yield RelativeTable(path, grid, prefix, where)


def tensor_at(network: nn.Module, path: str) -> Tensor:
    """A parameter or buffer."""
    owner, _, name = path.rpartition(".")
    found: Tensor = getattr(network.get_submodule(owner), name)
    return found


def install(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Replace parameters and buffers of a copy."""
    for path, value in values.items():
        owner_path, _, name = path.rpartition(".")
        owner = network.get_submodule(owner_path)
        if name in owner._parameters:
            owner._parameters[name] = nn.Parameter(value.detach(), requires_grad=False)
        else:
            owner._buffers[name] = value.detach()


def fitted(
    network: nn.Module,
    tables: Sequence[PositionTable],
    grid: Grid,
    resample: Resample,
    rule: ResampleRule,
) -> dict[str, Tensor]:
    """The tensors of all tables for another grid; nothing where the grid is their own."""
    found: dict[str, Tensor] = {}
    for table in tables:
        if table.grid != grid:
            found |= table.fitted(network, grid, resample, rule)
    return found


def _in_graph(table: Tensor, grid: Grid, rule: ResampleRule) -> Tensor:
    return resample_grid_in_graph(table, *grid, rule)


def write_in_graph(
    network: nn.Module, tables: Sequence[PositionTable], patch: Grid, rule: ResampleRule
) -> None:
    """Let a copy compute its tables from the height and width of each input.

    The tensors are taken off while the network runs and put back afterwards, so that the trace
    sees them depend on the input and nothing of it stays in the module.
    """
    kept: dict[str, Tensor] = {}

    def put(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        height, width = inputs[0].shape[-2:]
        grid = (height // patch[0], width // patch[1])
        values: dict[str, Tensor] = {}
        for table in tables:
            values |= table.fitted(network, grid, _in_graph, rule)
        for path, value in values.items():
            owner_path, _, name = path.rpartition(".")
            owner = network.get_submodule(owner_path)
            holder: Any = owner._parameters if name in owner._parameters else owner._buffers
            kept[path] = holder.pop(name)
            owner.__dict__[name] = value

    def restore(_module: nn.Module, _inputs: tuple[Any, ...], _outputs: object) -> None:
        for path, value in kept.items():
            owner_path, _, name = path.rpartition(".")
            owner = network.get_submodule(owner_path)
            owner.__dict__.pop(name, None)
            holder: Any = owner._parameters if isinstance(value, nn.Parameter) else owner._buffers
            holder[name] = value
        kept.clear()

    network.register_forward_pre_hook(put)
    network.register_forward_hook(restore, always_call=True)
