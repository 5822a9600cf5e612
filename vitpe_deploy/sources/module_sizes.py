"""Which sizes a module takes that was not written here, by itself or with its tables resampled.

Found by running it without data: at the size asked for, and at one that is neither square nor a
multiple of anything but the step. The step is the patch, then small multiples of it (windows of
patches), until the module runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitpe_deploy.errors import SourceError, UnsupportedError
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import SizeRule
from vitpe_deploy.sources.inspection import detached, patch_convolution
from vitpe_deploy.sources.observe import TableResample, TableWatcher, torch_unchanged
from vitpe_deploy.sources.table_search import Search, Trial
from vitpe_deploy.sources.tables import Grid, PositionTable, readings

_LARGEST_STEP = 8
"""Patches per step that are tried without a hint from the module."""

_SIZE_NAMES = ("img_size", "image_size", "input_size")
_WINDOW_NAMES = ("num_windows", "window_size", "partition_size")


@dataclass(frozen=True)
class ModuleSizes:
    """What was found.

    Attributes:
        patch: height and width of a patch.
        channels: colour channels of the input.
        native: the size its own positions were made for; None when nothing says so.
        rule: the sizes it takes.
        tables: tensors that have to be made for each size; empty when it runs by itself.
        trial: the run at the size asked for.
        size: the size it was run at.
        no_dynamic: why no other size is possible; empty when some are.
    """

    patch: Grid
    channels: int
    native: Resolution | None
    rule: SizeRule
    tables: tuple[PositionTable, ...]
    trial: Trial
    size: Resolution
    no_dynamic: str = ""


def find_sizes(module: nn.Module, asked: Resolution | None, pos_embed: str | None) -> ModuleSizes:
    """Inspect a module.

    Args:
        module: in eval mode; copies of it are run.
        asked: the size to export; its native one for None.
        pos_embed: path of its position table, where the user said so.

    Raises:
        UnsupportedError: it is no ViT, or the table is ambiguous.
        SizeError: the size does not fit, with the nearest that do.
        SourceError: it does not run at the size.
    """
    name = type(module).__name__
    convolution = patch_convolution(module)
    if convolution is None:
        raise UnsupportedError(
            f"{name} has no patch embedding (a convolution whose stride is its kernel size)",
            hint="Export a Vision Transformer, or one of the named sources.",
        )
    patch = (int(convolution.kernel_size[0]), int(convolution.kernel_size[1]))
    stated = stated_size(module)
    search = Search(lambda: detached(module), int(convolution.in_channels), patch, stated)
    start = asked or stated or Resolution(14 * patch[0], 14 * patch[1])
    step, tables, reason = _find_step(module, search, start, pos_embed)
    native = _native(module, search, stated, tables, step)
    size = asked or native
    if step is None:
        size = size or _runs_at(module, search) or start
        trial = search.run(size)
        rule = SizeRule.for_patches(patch, "floors")
        if not trial.ran:
            if native is None or size != native:
                rule.check(size)  # names sizes that fit, when that is why it failed
            raise SourceError(
                f"{name} does not run at {size}: {trial.reason}",
                hint="Its own code takes no other size. Build it for this one"
                + ("." if pos_embed else ", or name its table with --pos-embed."),
            )
        why = f"{name} runs at no other: {reason}"
        fixed = SizeRule.for_patches(patch, "floors", fixed=size, fixed_reason=why)
        return ModuleSizes(
            patch, search.channels, native or size, fixed, (), trial, size, no_dynamic=why
        )
    times = step[0] // patch[0]
    if times == 1:
        rule = SizeRule.for_patches(patch, "floors")
    else:
        named = str(patch[0]) if patch[0] == patch[1] else f"{patch[0]}x{patch[1]}"
        rule = SizeRule(step, f"{times}x{times} windows of patch size {named}")
    if asked is not None:
        rule.check(asked, allow_floor=True)
    size = size or unlike(step, Resolution(*step))
    trial = search.run(size, tables)
    if not trial.ran:
        rule.check(size)
        raise SourceError(f"{name} does not run at {size}: {trial.reason}")
    return ModuleSizes(patch, search.channels, native, rule, tables, trial, size)


def _find_step(
    module: nn.Module, search: Search, start: Resolution, pos_embed: str | None
) -> tuple[Grid | None, tuple[PositionTable, ...], str]:
    """The smallest step at which the module runs, the tables it needs, and else the reason."""
    reason = ""
    for times in multiples(module):
        step = (search.patch[0] * times, search.patch[1] * times)
        other = unlike(step, start)
        if pos_embed is None:
            trial = search.run(other)
            if trial.ran:
                return step, (), ""
            reason = reason or trial.reason
            tables = search.find(other)
        else:
            try:
                tables = search.find(other, named=pos_embed)
            except UnsupportedError:
                if times == max(multiples(module)):
                    return _refuse_named(search, start, pos_embed)
                continue
        if tables:
            return step, tables, ""
    return None, (), reason


def _refuse_named(
    search: Search, start: Resolution, pos_embed: str
) -> tuple[Grid | None, tuple[PositionTable, ...], str]:
    """Say of the smallest step why the table that was named does not fit."""
    search.find(unlike(search.patch, start), named=pos_embed)
    return None, (), ""


def multiples(module: nn.Module) -> tuple[int, ...]:
    """Patches per step to try, smallest first."""
    hints = {
        n
        for child in module.modules()
        for name in _WINDOW_NAMES
        for n in _whole_numbers(getattr(child, name, None))
    }
    return tuple(sorted({*range(1, _LARGEST_STEP + 1), *(n for n in hints if 1 < n <= 64)}))


def _whole_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _whole_numbers(item)


def unlike(step: Grid, start: Resolution) -> Resolution:
    """A size of different prime numbers of steps, both above those of ``start``."""
    least = max(start.height // step[0], start.width // step[1], 4) + 1
    first = next(n for n in range(least, 4 * least) if _is_prime(n))
    second = next(n for n in range(first + 1, 8 * least) if _is_prime(n))
    return Resolution(first * step[0], second * step[1])


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, math.isqrt(n) + 1))


def stated_size(module: nn.Module) -> Resolution | None:
    """The size that an attribute of the module or its patch embedding names."""
    holders = [module, getattr(module, "config", None), *module.children()]
    for holder in holders:
        for name in _SIZE_NAMES:
            value = getattr(holder, name, None)
            numbers = list(_whole_numbers(value))
            if len(numbers) in (1, 2) and min(numbers) > 1:
                return Resolution(numbers[0], numbers[-1])
    return None


def _native(
    module: nn.Module,
    search: Search,
    stated: Resolution | None,
    tables: tuple[PositionTable, ...],
    step: Grid | None,
) -> Resolution | None:
    """The size of its own positions: of its tables, or of those that it resamples itself."""
    if tables:
        rows, columns = tables[0].grid
        return Resolution(rows * search.patch[0], columns * search.patch[1])
    if step is not None:
        grids = _resampled_grids(module, search, unlike(step, Resolution(*step)))
        if len(grids) == 1:
            rows, columns = next(iter(grids))
            return Resolution(rows * search.patch[0], columns * search.patch[1])
    return stated


def _runs_at(module: nn.Module, search: Search) -> Resolution | None:
    """A size at which the module runs as it is, guessed from the shapes of its tensors."""
    for table in readings(module, search.patch, search.native):
        size = Resolution(table.grid[0] * search.patch[0], table.grid[1] * search.patch[1])
        if search.run(size).ran:
            return size
    return None


def _resampled_grids(module: nn.Module, search: Search, size: Resolution) -> set[Grid]:
    """Grids of the tables that a module interpolates itself on the way to a size."""
    import torch

    from vitpe_deploy.sources.inspection import without_data

    seen: set[Grid] = set()

    def note(call: TableResample) -> Tensor:
        if not call.one_axis:
            seen.add(call.old_grid)
        return torch_unchanged(call)

    network = search.copy()
    try:
        with without_data():
            pixels = torch.empty(1, search.channels, size.height, size.width)
            with TableWatcher(pixels, note):
                network(pixels)
    except Exception:  # then nothing is known of it
        return set()
    return seen
