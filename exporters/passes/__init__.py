"""Graph passes, one per file, in the order in which they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from exporters.passes.attention import SpellAttention
from exporters.passes.base import GraphPass, PassContext, PassOutcome
from exporters.passes.end_token import EndToken
from exporters.passes.few_queries import FewQueries
from exporters.passes.flat_tokens import FlatTokens
from exporters.passes.fold_constants import FoldConstants
from exporters.passes.gathered_moves import GatheredMoves
from exporters.passes.hand_attention import HandAttention
from exporters.passes.layer_scale import FoldLayerScale
from exporters.passes.masked_attention import MaskedAttention
from exporters.passes.pooled_mean import PooledMean
from exporters.passes.resize import UnfoldResize
from exporters.passes.rotary import FuseRotary
from exporters.passes.rotary_halves import RotaryHalves
from exporters.passes.rotary_layout import HalfSplitRotary
from exporters.passes.separate_projections import SeparateProjections
from exporters.passes.standard_attention import StandardAttention
from exporters.passes.tidy import Tidy
from exporters.passes.token_order import TokenOrder
from exporters.passes.unit_norm import UnitNorm
from exporters.passes.unread_tokens import UnreadTokens
from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import closest

PASSES: tuple[type[GraphPass], ...] = (
    HandAttention,
    SpellAttention,
    UnfoldResize,
    FoldConstants,
    FuseRotary,
    SeparateProjections,
    HalfSplitRotary,
    FoldLayerScale,
    PooledMean,
    UnreadTokens,
    EndToken,
    FewQueries,
    TokenOrder,
    GatheredMoves,
    RotaryHalves,
    UnitNorm,
    FlatTokens,
    MaskedAttention,
    StandardAttention,
    Tidy,
)


@dataclass(frozen=True, slots=True)
class PassRun:
    """What one pass did to a model, and how long it took."""

    name: str
    outcome: PassOutcome
    seconds: float


def run_passes(
    model: ir.Model,
    context: PassContext,
    *,
    skip: Sequence[str] = (),
    after_each: Callable[[str, ir.Model], None] | None = None,
) -> tuple[PassRun, ...]:
    """Run all passes but those skipped, in place.

    ``after_each`` is called with the name of a pass that has just changed the model.
    """
    check_skips(skip)
    runs = []
    for kind in PASSES:
        if kind.name in skip:
            continue
        start = time.perf_counter()
        outcome = kind().run(model, context)
        runs.append(PassRun(kind.name, outcome, time.perf_counter() - start))
        if after_each is not None and outcome.changed:
            after_each(kind.name, model)
    return tuple(runs)


def check_skips(skip: Sequence[str]) -> None:
    """Refuse names of passes that do not exist or that the file cannot do without.

    Raises:
        UsageError: with the closest name, or the reason.
    """
    optional = [kind.name for kind in PASSES if not kind.required]
    for name in skip:
        if name in [kind.name for kind in PASSES if kind.required]:
            raise UsageError(
                f"--skip-pass {name!r}: a file without it would be wrong",
                hint=f"These can be skipped: {', '.join(optional)}.",
            )
        if name not in optional:
            raise UsageError(
                f"--skip-pass {name!r} is not a pass",
                hint=f"{closest(name, optional)}Choose from: {', '.join(optional)}.",
            )
