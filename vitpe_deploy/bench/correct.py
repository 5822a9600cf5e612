"""Is a candidate right? Its outputs against expected ones, and the classes that it finds.

Runs in the child, on the runtime that is timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitpe_deploy.bench.protocol import Agreement, Judge
from vitpe_deploy.errors import UsageError
from vitpe_deploy.parity import LOGITS, Comparison, compare, least_agreement
from vitpe_deploy.request import Tolerance
from vitpe_deploy.runtimes import Runtime
from vitpe_deploy.runtimes.base import Array


def agreement(
    runtime: Runtime,
    inputs: Sequence[Array],
    expected: Sequence[Mapping[str, Array]],
    judge: Judge,
) -> Agreement:
    """Outputs of the runtime against expected ones: the worst output counts."""
    name = runtime.inputs[0].name
    given = [runtime.run({name: x}) for x in inputs]
    count = sum(len(x) for x in inputs)
    found = []
    for output in expected[0]:
        if output not in given[0]:
            return _incomparable(f"no output {output!r}", judge)
        result = compare(
            [e[output] for e in expected], [g[output] for g in given], classes=output == LOGITS
        )
        if result.max_rel is None or result.cosine is None or result.problem is not None:
            return _incomparable(result.problem or "the reference is all zeros", judge)
        found.append(_judged(result, judge, count))
    top1 = [a.top1 for a in found if a.top1 is not None]
    worst = min(found, key=lambda a: (a.passed, -(a.max_rel or 0.0)))
    return Agreement(
        max_rel=max(a.max_rel or 0.0 for a in found),
        cosine=min(1.0 if a.cosine is None else a.cosine for a in found),
        top1=min(top1) if top1 else None,
        passed=all(a.passed for a in found),
        limit=worst.limit,
        criterion=worst.criterion,
    )


def _judged(result: Comparison, judge: Judge, inputs: int) -> Agreement:
    if judge.floor is None:
        passed, limit = result.passes(Tolerance(judge.rtol, judge.atol)), judge.rtol
        return Agreement(result.max_rel, result.cosine, result.top1, passed, limit)
    value, criterion = least_agreement(result, inputs, judge.floor)
    return Agreement(
        result.max_rel, result.cosine, result.top1, value >= judge.floor, judge.floor, criterion
    )


def _incomparable(problem: str, judge: Judge) -> Agreement:
    return Agreement(None, None, None, passed=False, limit=judge.limit, problem=problem)


def classify(runtime: Runtime, pictures: Path, batch: int) -> list[int]:
    """The class of every picture.

    Args:
        runtime: open, with an output of class scores.
        pictures: ``.npy`` [n, ...] of single inputs; read as they are needed.
        batch: inputs of one run; the last one is filled up with its last picture.

    Raises:
        UsageError: the file gives no class scores.
    """
    if LOGITS not in [output.name for output in runtime.outputs]:
        raise UsageError("--labels needs class scores, the file has no output 'logits'")
    inputs = np.load(pictures, mmap_mode="r", allow_pickle=False)
    found: list[int] = []
    for start in range(0, len(inputs), batch):
        chunk = np.asarray(inputs[start : start + batch])
        filled = np.concatenate([chunk, np.repeat(chunk[-1:], batch - len(chunk), axis=0)])
        scores = runtime.run({runtime.inputs[0].name: filled})[LOGITS]
        found += [int(k) for k in scores.argmax(-1)[: len(chunk)]]
    return found
