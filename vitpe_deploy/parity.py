"""Is the file equal to PyTorch, at this size, in this engine, at this batch?

The reference is whatever :class:`Reference` gives: the untouched eager model, or outputs that were
stored beside the artifact. A row passes when ``max_abs <= atol + rtol * max|reference|`` and never
on NaN, on an empty or wrongly shaped output, or on an output that does not depend on its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from vitpe_deploy.errors import UsageError
from vitpe_deploy.inputs import SEEDS, ImageInput, InputLayout
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.progress import Progress
from vitpe_deploy.request import Resolution, Tolerance
from vitpe_deploy.results import JudgedOn, ParityRow
from vitpe_deploy.runtimes import Runtime, open_runtime

Array: TypeAlias = npt.NDArray[Any]
Outputs: TypeAlias = dict[str, Array]

LOGITS = "logits"
NOT_FINITE = "the reference itself holds NaN or inf"


class Reference(Protocol):
    """Gives the right outputs for inputs of one size."""

    def outputs(
        self, size: Resolution, inputs: Sequence[Array], names: Sequence[str]
    ) -> list[Outputs]:
        """One dict of named outputs per input batch."""
        ...


@dataclass(frozen=True, slots=True)
class ParityCase:
    """Inputs of one size and batch, in the layout of the model.

    Attributes:
        data: what the inputs are; None where a bundle does not say.
        no_data: why they are not the calibration data, where those were to be had at export.
    """

    size: Resolution
    batch: int
    inputs: tuple[Array, ...]
    data: JudgedOn | None = "noise"
    no_data: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One artifact in one engine."""

    path: Path
    runtime: str
    device: str = "CPU"
    threads: int | None = None


def make_case(
    size: Resolution,
    batch: int,
    *,
    layout: InputLayout = ImageInput(),
    preprocess: Preprocess = Preprocess(),
    images: Path | None = None,
    seeds: int = SEEDS,
) -> ParityCase:
    """Random inputs from ``seeds`` seeds, a structured one, and the images of a folder.

    Every input is a full batch; the items of a batch differ, so that a file that mixes them up
    cannot pass.
    """
    arrays = layout.arrays(size, batch, preprocess=preprocess, images=images, seeds=seeds)
    return ParityCase(size, batch, arrays)


def agreement_cases(
    cases: Sequence[ParityCase],
    calibration: str | None,
    *,
    layout: InputLayout,
    preprocess: Preprocess,
    images: Path | None,
) -> list[ParityCase]:
    """The same sizes and batches on the calibration data, where those are to be had.

    Agreement is a share of inputs, so they have to be inputs of the kind that the file will see. A
    case that stays noise although there was calibration data says why.
    """
    from vitpe_deploy.calibration import RANDOM, agreement_inputs

    if calibration is None:
        return list(cases)
    data: JudgedOn = "noise" if calibration == RANDOM else "calibration"
    chosen = []
    for case in cases:
        found = agreement_inputs(
            calibration, layout, case.size, case.batch, preprocess=preprocess, images=images
        )
        if isinstance(found, str):
            chosen.append(replace(case, no_data=found))
        else:
            chosen.append(ParityCase(case.size, case.batch, found, data))
    return chosen


def warn_of_noise(cases: Iterable[ParityCase], progress: Progress) -> None:
    """Say once for each reason that agreement is not judged on the calibration data."""
    for reason in dict.fromkeys(case.no_data for case in cases if case.no_data is not None):
        progress.note(f"warning: agreement is judged on noise: {reason}")


def row_words(row: ParityRow) -> str:
    """What a row found and what was asked, in words."""
    if row.criterion == "max_rel":
        return f"max rel {row.max_rel:.1e} (limit {row.limit:.0e})"
    value = row.top1_agreement if row.criterion == "top1" else row.cosine
    name = "top-1" if row.criterion == "top1" else "cosine"
    shown = f"{name} {value:.4f} (at least {row.limit:g})"
    return shown if row.max_rel is None else f"{shown}, max rel {row.max_rel:.1e}"


def only_input(runtime: Runtime) -> str:
    """Name of the one input of an artifact."""
    if len(runtime.inputs) != 1:
        raise UsageError(f"the file takes {len(runtime.inputs)} inputs, parity knows one")
    return runtime.inputs[0].name


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output over all inputs of a case; numbers are None where nothing can be compared."""

    max_abs: float | None = None
    max_rel: float | None = None
    largest: float = 0.0
    cosine: float | None = None
    top1: float | None = None
    problem: str | None = None

    def passes(self, tolerance: Tolerance) -> bool:
        """Whether the difference is inside the tolerance."""
        if self.problem is not None or self.max_abs is None:
            return False
        return self.max_abs <= tolerance.limit(self.largest)


def compare(reference: Sequence[Array], candidate: Sequence[Array], *, classes: bool) -> Comparison:
    """Compare one output over several inputs.

    Args:
        reference: right arrays, one per input.
        candidate: the engine's arrays, in the same order.
        classes: whether the last axis holds class scores, so that top-1 means something.
    """
    problem = _not_comparable(reference, candidate)
    if problem is not None:
        return Comparison(problem=problem)
    right = np.stack([np.asarray(a, dtype=np.float64) for a in reference])
    given = np.stack([np.asarray(a, dtype=np.float64) for a in candidate])
    if len(right) > 1 and all(np.array_equal(right[0], other) for other in right[1:]):
        return Comparison(problem="the reference output does not depend on the input")
    max_abs = float(np.abs(right - given).max())
    largest = float(np.abs(right).max())
    rows = right.reshape(right.shape[0] * right.shape[1], -1)
    others = given.reshape(rows.shape)
    norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(others, axis=1)
    cosine = (rows * others).sum(axis=1) / np.where(norms > 0, norms, 1.0)
    top1 = float((right.argmax(-1) == given.argmax(-1)).mean()) if classes else None
    return Comparison(
        max_abs=max_abs,
        max_rel=max_abs / largest if largest > 0 else (0.0 if max_abs == 0 else None),
        largest=largest,
        cosine=float(np.clip(cosine, -1.0, 1.0).min()),
        top1=top1,
        problem=None if largest > 0 else "the reference output is all zeros",
    )


def least_agreement(
    result: Comparison, inputs: int, floor: float
) -> tuple[float, Literal["top1", "cosine"]]:
    """The number that an int8 output is judged by, and what it is.

    Top-1 where there are classes and enough inputs for one that differs to be allowed: of ten
    inputs no share but 1 is above 0.99. Else the smallest cosine similarity.
    """
    if result.problem is not None:
        return 0.0, "cosine"
    # As the share itself is computed, so that rounding cannot put the two on different sides.
    if result.top1 is not None and inputs > 0 and (inputs - 1) / inputs >= floor:
        return result.top1, "top1"
    return result.cosine or 0.0, "cosine"


def _not_comparable(reference: Sequence[Array], candidate: Sequence[Array]) -> str | None:
    if not reference or any(a.size == 0 for a in reference):
        return "the reference output is empty"
    for right, given in zip(reference, candidate, strict=True):
        if right.shape != given.shape:
            return f"shape {list(given.shape)} instead of {list(right.shape)}"
        if not np.isfinite(right).all():
            return NOT_FINITE
        if not np.isfinite(given).all():
            bad = int((~np.isfinite(given)).sum())
            return f"{bad} of {given.size} values are NaN or inf"
    return None


OnRow: TypeAlias = Callable[[ParityRow], None]


def check(
    target: Target,
    cases: Iterable[ParityCase],
    expected: Callable[[ParityCase], list[Outputs]],
    names: Sequence[str],
    tolerance: Tolerance,
    *,
    artifact: str,
    on_row: OnRow | None = None,
    min_agreement: float | None = None,
) -> tuple[ParityRow, ...]:
    """Run one artifact in one engine over all cases. One row per case and output.

    Args:
        target: file, engine and device.
        cases: inputs.
        expected: the reference outputs of a case; called once per case.
        names: outputs to compare.
        tolerance: what is allowed.
        artifact: how rows name the file.
        on_row: told of each row as it is found.
        min_agreement: rows pass by agreement instead of tolerance, see :func:`least_agreement`.
    """
    rows: list[ParityRow] = []
    runtime = open_runtime(
        target.runtime, target.path, device=target.device, threads=target.threads
    )
    with runtime:
        missing = [n for n in names if n not in [o.name for o in runtime.outputs]]
        if missing:
            raise UsageError(
                f"{target.path.name} has no output {missing[0]!r}",
                hint=f"It has: {', '.join(o.name for o in runtime.outputs)}.",
            )
        for case in cases:
            right = expected(case)
            given = [runtime.run({only_input(runtime): x}) for x in case.inputs]
            for name in names:
                pair = _apart(case, [o[name] for o in right], [o[name] for o in given])
                result = compare(*pair, classes=name == LOGITS)
                row = ParityRow(
                    artifact=artifact,
                    runtime=runtime.info.runtime,
                    device=runtime.info.device,
                    precision_executed=runtime.info.precision_executed,
                    resolution=(case.size.height, case.size.width),
                    batch=case.batch,
                    output=name,
                    max_abs=result.max_abs,
                    max_rel=result.max_rel,
                    cosine=result.cosine,
                    top1_agreement=result.top1,
                    limit=relative_limit(tolerance, result.largest),
                    limit_needed=_limit_needed(tolerance, result),
                    passed=result.passes(tolerance),
                    inputs=len(case.inputs) * case.batch,
                    problem=result.problem,
                )
                if min_agreement is not None:
                    row = _by_agreement(row, result, min_agreement, case.data)
                rows.append(row)
                if on_row is not None:
                    on_row(row)
    return tuple(rows)


def _apart(
    case: ParityCase, right: list[Array], given: list[Array]
) -> tuple[list[Array], list[Array]]:
    """The items of a case that is one batch as inputs of their own.

    Of one input nobody can tell whether the output depends on it. Outputs stay as they are where
    all items are alike, and where the first axis is not the batch.
    """
    if len(case.inputs) != 1:
        return right, given
    (items,) = case.inputs
    alike = all(np.array_equal(items[0], item) for item in items[1:])
    if alike or any(a.ndim == 0 or len(a) != case.batch for a in (*right, *given)):
        return right, given
    return np.split(right[0], case.batch), np.split(given[0], case.batch)


def unable_rows(
    target: Target,
    cases: Iterable[ParityCase],
    names: Sequence[str],
    *,
    artifact: str,
    floor: float,
    problem: str,
) -> tuple[ParityRow, ...]:
    """Failed rows of an int8 file that an engine cannot load or run, in place of :func:`check`."""
    return tuple(
        ParityRow(
            artifact=artifact,
            runtime=target.runtime,
            device=target.device,
            precision_executed="none",
            resolution=(case.size.height, case.size.width),
            batch=case.batch,
            output=name,
            max_abs=None,
            max_rel=None,
            cosine=None,
            top1_agreement=None,
            limit=floor,
            limit_needed=None,
            passed=False,
            inputs=0,
            problem=problem,
            criterion="cosine",
            judged_on=case.data,
        )
        for case in cases
        for name in names
    )


def _by_agreement(
    row: ParityRow, result: Comparison, floor: float, data: JudgedOn | None
) -> ParityRow:
    value, criterion = least_agreement(result, row.inputs, floor)
    good = result.problem is None and value >= floor
    return row.model_copy(
        update={
            "passed": good,
            "limit": floor,
            "limit_needed": None,
            "criterion": criterion,
            "judged_on": data,
        }
    )


def relative_limit(tolerance: Tolerance, largest: float) -> float:
    """The allowed difference, relative to the largest value of the reference."""
    return tolerance.limit(largest) / largest if largest > 0 else tolerance.rtol


def _limit_needed(tolerance: Tolerance, result: Comparison) -> float | None:
    """The smallest rtol that would have passed, at the given atol."""
    if result.max_abs is None or result.largest <= 0:
        return None
    return max(0.0, result.max_abs - tolerance.atol) / result.largest
