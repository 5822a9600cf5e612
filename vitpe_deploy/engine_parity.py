"""One file in one engine, as every command proves it: all its outputs, then its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitpe_deploy.errors import ArtifactError
from vitpe_deploy.layer_parity import Blocks, check_layers
from vitpe_deploy.parity import Outputs, ParityCase, Reference, Target, check, unable_rows
from vitpe_deploy.progress import Progress, Silent
from vitpe_deploy.request import Tolerance
from vitpe_deploy.results import LayerVerdict, ParityRow, Verdict


class References:
    """Reference outputs of each case, computed once however many engines are checked."""

    def __init__(
        self,
        reference: Reference,
        names: Sequence[str],
        progress: Progress | None = None,
        *,
        called: str = "PyTorch",
    ) -> None:
        """``called`` is how progress names the reference."""
        self._reference = reference
        self._names = tuple(names)
        self._progress = progress or Silent()
        self._called = called
        self._known: dict[int, list[Outputs]] = {}

    def __call__(self, case: ParityCase) -> list[Outputs]:
        """The reference outputs of a case."""
        if id(case) not in self._known:
            self._progress.tick(f"{self._called} at {case.size}, batch {case.batch}")
            self._known[id(case)] = self._reference.outputs(case.size, case.inputs, self._names)
        return self._known[id(case)]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a file, whichever the engine.

    Attributes:
        artifact: how rows name the file.
        cases: inputs; layers are compared on those of the first.
        expected: gives the reference outputs of a case.
        names: outputs to compare.
        tolerance: what is allowed.
        min_agreement: least agreement of a file that passes by it; None for tolerance.
        intact: whether the file is the one that its manifest describes. Only then is an engine
            that cannot run it one that lacks an operator.
        blocks: what layers are compared with; None where they are not asked for.
    """

    artifact: str
    cases: Sequence[ParityCase]
    expected: Callable[[ParityCase], list[Outputs]]
    names: Sequence[str]
    tolerance: Tolerance
    min_agreement: float | None = None
    intact: bool = True
    blocks: Blocks | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found in one engine; ``layers`` is None where they were not compared."""

    rows: tuple[ParityRow, ...]
    layers: LayerVerdict | None = None


def in_engine(target: Target, question: Question) -> Answer:
    """Compare a file in one engine with its reference.

    Not every engine has every integer operator: one that cannot load or run an intact int8 file
    gives failed rows that say so, and the other engines are still asked.

    Raises:
        ArtifactError: the engine cannot load or run the file.
        UsageError: the file lacks an output, or has no blocks to compare.
    """
    asked = question
    try:
        rows = check(
            target,
            asked.cases,
            asked.expected,
            asked.names,
            asked.tolerance,
            artifact=asked.artifact,
            min_agreement=asked.min_agreement,
        )
    except ArtifactError as problem:
        if asked.min_agreement is None or not asked.intact:
            raise
        return Answer(
            unable_rows(
                target,
                asked.cases,
                asked.names,
                artifact=asked.artifact,
                floor=asked.min_agreement,
                problem=problem.message,
            )
        )
    if asked.blocks is None:
        return Answer(rows)
    layers = check_layers(
        target, asked.cases[0], asked.blocks, asked.tolerance, artifact=asked.artifact
    )
    return Answer(rows, layers)


def verdict_of(rows: Sequence[ParityRow], layers: Sequence[LayerVerdict]) -> Verdict:
    """Passed when every row passed and no layers speak against it."""
    if not rows:
        return "unverified"
    good = all(r.passed for r in rows) and not any(v.fails for v in layers)
    return "passed" if good else "failed"
