"""Where does a file leave its reference? Activations block by block, for ``--layers``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitpe_deploy.errors import UsageError
from vitpe_deploy.parity import (
    Array,
    Outputs,
    ParityCase,
    Target,
    compare,
    only_input,
    relative_limit,
)
from vitpe_deploy.request import Tolerance
from vitpe_deploy.results import LayerRow, LayerVerdict
from vitpe_deploy.runtimes import open_runtime


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a file and what the reference has there.

    Attributes:
        names: values of the graph in order, ``block:k``.
        expected: gives the reference activations by name, one dict per input of the case.
        kept_tokens: start and end of the tokens that a shortened block still computes.
        decide: whether a file fails by them; one that passes by agreement does not.
    """

    names: tuple[str, ...]
    expected: Callable[[], list[Outputs]]
    kept_tokens: tuple[int, int] | None = None
    decide: bool = True


def require_blocks(names: Sequence[str], file: str) -> None:
    """Refuse to compare the layers of a file that names none.

    Raises:
        UsageError: there is nothing to compare.
    """
    if not names:
        raise UsageError(
            f"{file} names no blocks, so --layers has nothing to compare",
            hint="Its source has no recognisable stack of blocks. Leave out --layers.",
        )


def check_layers(
    target: Target, case: ParityCase, blocks: Blocks, tolerance: Tolerance, *, artifact: str
) -> LayerVerdict:
    """Compare the activations after each block and name the first outside tolerance.

    A block of another shape is outside, unless it is one that computes ``kept_tokens`` alone.

    Args:
        target: file, engine and device.
        case: inputs.
        blocks: what is compared.
        tolerance: what is allowed.
        artifact: how rows name the file.

    Raises:
        UsageError: there are no blocks.
    """
    require_blocks(blocks.names, target.path.name)
    resolution = (case.size.height, case.size.width)
    expected = blocks.expected()
    with open_runtime(target.runtime, target.path, device="CPU", threads=target.threads) as plain:
        declared = {o.name for o in plain.outputs}
    runtime = open_runtime(
        target.runtime,
        target.path,
        device=target.device,
        threads=target.threads,
        extra_outputs=tuple(n for n in blocks.names if n not in declared),
    )
    with runtime:
        given = [runtime.run({only_input(runtime): x}) for x in case.inputs]
        engine = runtime.info.runtime
    rows: list[LayerRow] = []
    skipped: list[str] = []
    for name in blocks.names:
        right = [
            _kept(wanted[name], found[name], blocks.kept_tokens)
            for wanted, found in zip(expected, given, strict=True)
        ]
        result = compare(right, [o[name] for o in given], classes=False)
        if result.problem is not None and result.max_abs is None:
            skipped.append(f"{name}: {result.problem}")
        rows.append(
            LayerRow(
                artifact=artifact,
                runtime=engine,
                resolution=resolution,
                block=int(name.partition(":")[2]),
                max_abs=result.max_abs,
                max_rel=result.max_rel,
                limit=relative_limit(tolerance, result.largest),
                passed=result.passes(tolerance),
                problem=result.problem,
            )
        )
    return LayerVerdict(
        artifact=artifact,
        runtime=engine,
        resolution=resolution,
        first_failing_block=next((r.block for r in rows if not r.passed), None),
        not_comparable=tuple(skipped),
        rows=tuple(rows),
        decides=blocks.decide,
    )


def layer_words(verdict: LayerVerdict) -> str:
    """What was found over all blocks, in words."""
    failed = [row for row in verdict.rows if not row.passed]
    deciding = [row for row in failed if verdict.decides or row.problem is not None]
    if deciding:
        why = f": {deciding[0].problem}" if deciding[0].problem else ""
        return f"first outside tolerance is block {deciding[0].block}{why}"
    if not failed:
        return f"all {len(verdict.rows)} blocks inside tolerance"
    worst = max(verdict.rows, key=lambda row: row.max_rel or 0.0)
    return f"max rel {worst.max_rel:.1e} in block {worst.block}, agreement decides"


def _kept(right: Array, given: Array, kept_tokens: tuple[int, int] | None) -> Array:
    """The reference [B, N, D] at the tokens that a shortened block computes."""
    if kept_tokens is None or right.ndim != 3 or right.shape == given.shape:
        return right
    return right[:, kept_tokens[0] : kept_tokens[1]]
