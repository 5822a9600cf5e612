"""What parent and child say to each other: one JSON document per line, over the child's pipes.

The parent writes a request, ``{"do": "sample", "runs": 5}``, and reads one reply. A reply with
``error`` carries a ``vitpe.error/1`` document. Arrays never pass through the pipe: inputs and
expected outputs lie in ``.npz`` files that the :class:`ChildSpec` names.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

OPEN, WARM_UP, SAMPLE, WINDOW = "open", "warm-up", "sample", "window"
AGREE, CLASSIFY = "agree", "classify"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Everything a child needs to know, as plain JSON.

    Attributes:
        path: the model file; for torch, the artifact whose manifest says how to build the model.
        runtime: canonical name: onnxruntime, openvino, torch.
        device: in the engine's own words.
        threads: threads of the engine.
        inputs: ``.npz`` with ``in0``, ``in1``... in the model's layout.
        expected: ``.npz`` with ``out0:NAME``, or empty where nothing is compared.
        shape: size in pixels, height first, that torch builds its model for.
        precision: what is asked of an engine that can compute in another than the file's.
        streams: requests at a time; more than 1 is for throughput alone.
        throughput: whether samples are windows of many requests instead of single runs.
        pictures: ``.npy`` [n, ...] of single inputs to classify, or empty.
    """

    path: str
    runtime: str
    device: str
    threads: int
    inputs: str
    expected: str = ""
    shape: tuple[int, int] = (0, 0)
    precision: str = "f32"
    streams: int = 1
    throughput: bool = False
    pictures: str = ""

    def as_document(self) -> dict[str, Any]:
        """For the command line of the child."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> ChildSpec:
        """The inverse; unknown keys are a defect of the caller."""
        known = {field.name for field in fields(cls)}
        if set(document) - known:
            raise ValueError(f"unknown keys: {sorted(set(document) - known)}")
        values = {**document, "shape": tuple(document.get("shape", (0, 0)))}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the child says once its model is loaded and has run once.

    Attributes:
        load_ms: from the file to a runtime that can be asked, import of the engine excluded.
        compile_ms: the engine's own part of it; None where it does not say.
        first_ms: the first inference.
        rss_bytes: resident memory of the loaded child before its first inference.
        load_peak_bytes: the most it held until then: loading can take more than running.
        first_peak_bytes: what the first inference needed on top at its peak; None where the
            system does not tell.
    """

    version: str
    device_name: str
    precision_executed: str
    threads: int
    load_ms: float
    compile_ms: float | None
    first_ms: float
    rss_bytes: int | None
    load_peak_bytes: int | None
    first_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Warmed:
    """How the warm-up ended: ``stable`` says whether latency had settled."""

    runs: int
    stable: bool
    median_ms: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """Outputs of this child against the reference, worst over the outputs.

    ``problem`` says why nothing could be compared; the numbers are None then. ``limit`` is what
    ``criterion`` was held against.
    """

    max_rel: float | None
    cosine: float | None
    top1: float | None
    passed: bool
    limit: float
    criterion: Literal["max_rel", "top1", "cosine"] = "max_rel"
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """When outputs agree: inside a tolerance, or where ``floor`` is given by agreement.

    ``floor`` is the least share of equal top-1, or the least cosine where too few inputs can be
    counted; int8 files are judged by it, as they are when they are exported.
    """

    rtol: float = 1e-4
    atol: float = 0.0
    floor: float | None = None

    @property
    def limit(self) -> float:
        """The number that reports show: the most relative error, or the least agreement."""
        return self.rtol if self.floor is None else self.floor
