"""What comes out: frozen values that the JSON documents are made from, and nothing else.

Field names are a contract (other people's scripts read them). Units are in the names; a pair of
numbers called ``resolution`` is ``[height, width]`` in pixels.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Verdict: TypeAlias = Literal["passed", "failed", "unverified"]


class Value(BaseModel):
    """Base of all results: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


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


class LayerRow(Value):
    """Activations after one block, compared with PyTorch."""

    artifact: str
    runtime: str
    resolution: tuple[int, int]
    block: int
    max_abs: float | None
    max_rel: float | None
    limit: float
    passed: bool


class LayerVerdict(Value):
    """Per-layer parity of one artifact in one runtime at one size."""

    artifact: str
    runtime: str
    resolution: tuple[int, int]
    first_failing_block: int | None
    not_comparable: tuple[str, ...] = ()
    rows: tuple[LayerRow, ...] = ()


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
    """The document of ``vitpe-verify --json``."""

    schema_: Literal["vitpe.verify/1"] = Field(default="vitpe.verify/1", alias="schema")
    artifact: str
    model: str
    reference: Literal["pytorch", "stored"]
    parity: tuple[ParityRow, ...]
    layers: tuple[LayerVerdict, ...] = ()
    verdict: Verdict

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=()
    )
