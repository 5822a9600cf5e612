"""One run of a timm network without data, and the step between sizes that run.

The step is found by trying, smallest first: a network's patch, its maps reduced by two and two,
its windows. A size counts when the network runs at it and no pixel falls off the border.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import Remainder, SizeRule
from vitpe_deploy.sources.observe import TableResample, TableWatcher, torch_unchanged
from vitpe_deploy.sources.timm_library import first_line


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
    channels = channels_of(module)

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


def channels_of(module: nn.Module) -> int:
    """Colour channels that a network reads."""
    stated = getattr(module, "in_chans", None)
    first = next((m for m in module.modules() if isinstance(m, nn.Conv2d)), None)
    return stated if isinstance(stated, int) else (3 if first is None else first.in_channels)


def find_rule(
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
        reason, final = square.reason or found.reason or reason, found.final
    return SizeRule(patch, f"patch size {patch[0]}", "refuses", fixed=native, fixed_reason=reason)


def _odd(native: Resolution, patch: tuple[int, int]) -> Resolution:
    """A size that no patch divides, not square and well above the native one."""
    return Resolution(native.height + 2 * patch[0] + 1, native.width + 5 * patch[1] + 1)


def _steps(patch: tuple[int, int], probe: nn.Module) -> list[tuple[tuple[int, int], str]]:
    """Steps to try, smallest first, with what they come from."""
    named = str(patch[0]) if patch[0] == patch[1] else f"{patch[0]}x{patch[1]}"
    steps = [(patch, f"patch size {named}")]
    reduction = reduction_of(probe)
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


def reduction_of(probe: nn.Module) -> int:
    """Pixels per row of the smallest map, as timm's own feature table says."""
    info: Any = getattr(probe, "feature_info", None)
    entries = info if isinstance(info, list) else getattr(info, "info", None) or []
    found = [int(e["reduction"]) for e in entries if isinstance(e, dict) and "reduction" in e]
    return max(found, default=1)


def patch_size(probe: nn.Module) -> tuple[int, int]:
    """Height and width of a patch: of the patch embedding, else of the first convolution."""
    embed = getattr(probe, "patch_embed", None) or getattr(probe, "embeds", None)
    value = getattr(embed, "patch_size", None)
    if isinstance(value, int):
        return value, value
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return int(value[0]), int(value[1])
    first = next((m for m in probe.modules() if isinstance(m, nn.Conv2d)), None)
    return (1, 1) if first is None else (int(first.stride[0]), int(first.stride[1]))
