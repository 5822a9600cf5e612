"""One look at a network without data: sizes, outputs, tokens, blocks, kind of positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import SizeRule
from vitpe_deploy.sources.transformers_outputs import forward, own_outputs, patch_of
from vitpe_deploy.sources.transformers_sizes import Outcome, SizeSearch, run, table_that_differs


@dataclass(frozen=True)
class Seen:
    """What a look shows.

    Attributes:
        outcome: the run at the native size.
        rule: sizes that the library runs.
        grid_divisor: pixels per token of the tokens that come out.
        prefix_tokens: tokens in front of the patches.
    """

    outcome: Outcome
    rule: SizeRule
    grid_divisor: tuple[int, int]
    prefix_tokens: int
    outputs: tuple[str, ...]
    default_outputs: tuple[str, ...]
    depth: int
    encoding: str | None


def look(
    probe: nn.Module,
    native: Resolution,
    channels: int,
    another: Callable[[Resolution], nn.Module | None],
) -> Seen:
    """Run a network of the ``meta`` device at its own size and at others."""

    def attempt(size: Resolution) -> Outcome:
        return run(probe, size, channels, lambda m, x: forward(m, x, flag=True))

    outcome = attempt(native)
    flag_needed = outcome.reason != ""
    if flag_needed:  # a class whose resampling fails may run at its own size
        outcome = run(probe, native, channels, lambda m, x: forward(m, x, flag=False))
    patch = patch_of(probe)

    def owned() -> str | None:
        step = 8 * max(patch)
        other = another(Resolution(native.height + step, native.width + step))
        return None if other is None else table_that_differs(probe, other)

    rule = SizeSearch(attempt, native, patch, _windows(probe), owned).rule()
    divisor, prefix = _grid(probe, native, outcome.outputs, patch, rule, attempt)
    names = list(outcome.outputs)
    if "tokens" in names:
        names += ["cls"] if prefix > 0 and _is_prefix(probe, prefix) else []
        if "feature-map" not in names and divisor is not None and _is_prefix(probe, prefix):
            names.append("feature-map")
    return Seen(
        outcome,
        rule,
        divisor or patch,
        prefix if _is_prefix(probe, prefix) else 0,
        tuple(names),
        own_outputs(outcome.outputs),
        len(block_paths(probe)),
        _encoding(probe),
    )


def _is_prefix(probe: Any, count: int) -> bool:
    """Whether so many tokens can stand before the patches: cls, distillation, registers."""
    registers = getattr(probe.config, "num_register_tokens", 0) or 0
    heads = getattr(probe.config, "n_cls_tokens", 1) or 1
    return count in (0, 1, 2, 1 + registers, heads + registers, heads)


def _grid(
    probe: nn.Module,
    native: Resolution,
    found: Mapping[str, Tensor],
    patch: tuple[int, int],
    rule: SizeRule,
    attempt: Callable[[Resolution], Outcome],
) -> tuple[tuple[int, int] | None, int]:
    """Pixels per token and tokens that are no patches, from the counts at two sizes."""
    if "feature-map" in found:
        h, w = found["feature-map"].shape[-2:]
        return (max(native.height // h, 1), max(native.width // w, 1)), 0
    if "tokens" not in found or found["tokens"].dim() != 3:
        return None, 0
    counts = {native: int(found["tokens"].shape[1])}
    if rule.fixed is None:
        dh, dw = rule.divisor
        unit = (32 * patch[0] if dh == 1 else dh, 32 * patch[1] if dw == 1 else dw)
        other = Resolution(
            native.height + unit[0], native.width + (unit[1] if rule.square else 2 * unit[1])
        )
        tokens = attempt(other).outputs.get("tokens")
        if tokens is not None:
            counts[other] = int(tokens.shape[1])
    for factor in (1, 2, 4, 8, 16):
        h, w = patch[0] * factor, patch[1] * factor
        rest = {n - -(-s.height // h) * -(-s.width // w) for s, n in counts.items()}
        floors = {n - (s.height // h) * (s.width // w) for s, n in counts.items()}
        for left in (floors, rest):
            if len(left) == 1 and (extra := left.pop()) >= 0 and (len(counts) > 1 or extra < 8):
                return (h, w), extra
    return None, 0


def block_paths(module: nn.Module) -> tuple[str, ...]:
    """Blocks of all stages in order: the class of listed modules with attention that is in most."""
    listed = [
        (f"{path}.{name}", item)
        for path, child in module.named_modules()
        if isinstance(child, nn.ModuleList)
        for name, item in child.named_children()
        if any("att" in n for n, _ in item.named_children())
    ]
    if not listed:
        return ()
    kind, _ = Counter(type(item) for _, item in listed).most_common(1)[0]
    return tuple(path for path, item in listed if type(item) is kind)


def _windows(probe: Any) -> tuple[int, ...]:
    values: set[int] = set()
    for name in ("window_size", "masked_unit_size"):
        value = getattr(probe.config, name, None)
        values |= {value} if isinstance(value, int) else set(value or ())
    return tuple(sorted(v for v in values if isinstance(v, int) and v > 1))


_SIGNS = (
    ("relative_position_bias_table", "relative-2d"),
    ("continuous_position_bias", "log-cpb"),
    ("rel_pos_h", "decomposed"),
    ("attention_biases", "relative-2d"),
)


def _encoding(probe: Any) -> str | None:
    """The kind of positions, as names of parameters and modules tell it."""
    names = [n for n, _ in probe.named_parameters()]
    kinds = [kind for sign, kind in _SIGNS if any(sign in n for n in names)]
    if kinds == ["relative-2d"] and getattr(probe.config, "window_size", None):
        kinds = ["window-bias"]
    absolute = any(
        n.rpartition(".")[2]
        in ("position_embeddings", "pos_embed", "detection_position_embeddings")
        for n in names
    )
    if absolute:
        kinds.append("learned-1d")
    if any("rope" in n for n, _ in probe.named_modules()):
        kinds.append("rope-2d")
    if len(kinds) > 1:
        return "hybrid"
    if kinds:
        return kinds[0]
    depthwise = any(
        isinstance(m, nn.Conv2d) and m.groups == m.in_channels > 1 for m in probe.modules()
    )
    return "conditional" if depthwise else None
