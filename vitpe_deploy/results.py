"""What comes out: frozen values that the JSON documents are made from, and nothing else.

Field names are a contract (other people's scripts read them). Units are in the names; a pair of
numbers called ``resolution`` is ``[height, width]`` in pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Verdict: TypeAlias = Literal["passed", "failed", "unverified"]
ValueT = TypeVar("ValueT", bound="Value")

JudgedOn: TypeAlias = Literal["calibration", "noise"]

PYTORCH = "pytorch"
"""The reference wherever the source is a model."""

STORED = "stored"
"""The reference of a bundle: outputs that it brings along."""


def reference_words(reference: str) -> str:
    """How progress and summaries call a reference."""
    return {PYTORCH: "PyTorch", STORED: "stored outputs"}.get(reference, f"the {reference}")


class Value(BaseModel):
    """Base of all results: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def renamed(value: ValueT, names: Mapping[str, str]) -> ValueT:
    """A copy of a result in which every text that is a key of ``names``, however deep, is changed.

    For paths of files that were moved: whatever field of whatever record names one, it follows.
    """

    def changed(found: Any) -> Any:
        if isinstance(found, str):
            return names.get(found, found)
        if isinstance(found, tuple):
            return tuple(map(changed, found))
        return renamed(found, names) if isinstance(found, Value) else found

    fields = type(value).model_fields
    return value.model_copy(update={name: changed(getattr(value, name)) for name in fields})


class Refusal(Value):
    """A candidate that a pass left alone, and why."""

    node: str
    reason: str


class PassRecord(Value):
    """What one graph pass did to one artifact."""

    artifact: str
    name: str
    changed: int
    refused: tuple[Refusal, ...] = ()


class ArtifactRecord(Value):
    """One file that was written. ``resolution`` is null when height and width are symbolic."""

    path: str
    format: Literal["onnx", "openvino", "ort"]
    precision: str
    resolution: tuple[int, int] | None
    dynamic: str
    target: str
    opset: int
    size_bytes: int
    sha256: str
    nodes: int


class CandidateRecord(Value):
    """One way of making an int8 file, measured on this machine; the float32 file is among them.

    Attributes:
        latency_ms: median over interleaved rounds, each candidate in a process of its own; null
            when there was nothing to choose from.
        agreement: with the fp32 file of the same graph, on data that calibrated nothing.
        criterion: what ``agreement`` is.
        calibrated_on: samples that calibrated it.
        judged_on: other samples, that ``agreement`` is counted on.
        problem: why the engine cannot run it.
    """

    artifact: str
    method: str
    runtime: str
    latency_ms: float | None
    size_bytes: int
    agreement: float | None
    criterion: str | None
    chosen: bool
    calibrated_on: int = 0
    judged_on: int = 0
    problem: str | None = None


class ParityRow(Value):
    """One output of one artifact in one engine at one size and batch, against PyTorch.

    Attributes:
        max_abs: largest absolute difference; null when the output is not comparable.
        max_rel: ``max_abs`` over the largest absolute value of the reference; null when there is
            none, or the reference is zero and the output is not.
        cosine: smallest cosine similarity over the batch items of all inputs.
        top1_agreement: share of inputs with the same argmax; null for outputs without classes.
        limit: the relative difference that was allowed.
        limit_needed: the smallest ``--rtol`` that would have passed.
        inputs: how many images were compared.
        problem: why the row failed when it is not a matter of tolerance.
        criterion: what ``passed`` was decided by: ``max_rel`` against ``limit``, or for int8
            ``top1`` or ``cosine``, which ``limit`` is then the least of.
        judged_on: what agreement was counted on: ``calibration`` data that calibrated nothing, or
            ``noise``, a structured picture, and the pictures of ``--images``; null where parity is
            by tolerance, and where a bundle does not say.
    """

    artifact: str
    runtime: str
    device: str
    precision_executed: str
    resolution: tuple[int, int] | None
    batch: int
    output: str
    max_abs: float | None
    max_rel: float | None
    cosine: float | None
    top1_agreement: float | None
    limit: float
    limit_needed: float | None
    passed: bool
    inputs: int
    problem: str | None = None
    criterion: Literal["max_rel", "top1", "cosine"] = "max_rel"
    judged_on: JudgedOn | None = None


class LayerRow(Value):
    """Activations after one block, compared with PyTorch.

    Attributes:
        passed: whether they are inside tolerance.
        problem: why they failed when it is not a matter of tolerance.
    """

    artifact: str
    runtime: str
    resolution: tuple[int, int]
    block: int
    max_abs: float | None
    max_rel: float | None
    limit: float
    passed: bool
    problem: str | None = None


class LayerVerdict(Value):
    """Per-layer parity of one artifact in one runtime at one size.

    Attributes:
        first_failing_block: the first outside tolerance.
        not_comparable: blocks without a difference, and why: another shape, values not finite.
        decides: whether a block outside tolerance fails the artifact. Not where that passes by
            agreement: rounding to int8 moves single activations further than any tolerance.
    """

    artifact: str
    runtime: str
    resolution: tuple[int, int]
    first_failing_block: int | None
    not_comparable: tuple[str, ...] = ()
    rows: tuple[LayerRow, ...] = ()
    decides: bool = True

    @property
    def fails(self) -> bool:
        """Whether the artifact fails by its layers; it always does by one not comparable."""
        failed = [row for row in self.rows if not row.passed]
        return not self.rows or any(self.decides or row.problem is not None for row in failed)


class Steps(Value):
    """Seconds spent in each step of an export."""

    load: float = 0.0
    fit: float = 0.0
    trace: float = 0.0
    optimise: float = 0.0
    simplify: float = 0.0
    quantize: float = 0.0
    write: float = 0.0
    parity: float = 0.0


class ExportReport(Value):
    """The document of ``vitpe-export --json``.

    Attributes:
        indexes: files that list what belongs together: buckets of one model, or two towers.
    """

    schema_: Literal["vitpe.export/1"] = Field(default="vitpe.export/1", alias="schema")
    model: str
    encoding: str | None
    resample_rule: str | None
    weights: str
    reference: str = "pytorch"
    artifacts: tuple[ArtifactRecord, ...]
    indexes: tuple[str, ...] = ()
    parity: tuple[ParityRow, ...]
    layers: tuple[LayerVerdict, ...] = ()
    passes: tuple[PassRecord, ...]
    candidates: tuple[CandidateRecord, ...] = ()
    steps_s: Steps
    verdict: Verdict

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=()
    )


class VerifyReport(Value):
    """The document of ``vitpe-verify --json``.

    Attributes:
        reference: what the file was compared with: ``pytorch``, what stands in for it where the
            source is a file, or ``stored`` for the outputs that a bundle brings along.
        stored_reference: what gave those outputs; null when nothing is stored.
    """

    schema_: Literal["vitpe.verify/1"] = Field(default="vitpe.verify/1", alias="schema")
    artifact: str
    model: str
    reference: str
    stored_reference: str | None = None
    parity: tuple[ParityRow, ...]
    layers: tuple[LayerVerdict, ...] = ()
    verdict: Verdict

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=()
    )
