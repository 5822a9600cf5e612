"""The document of ``vitpe-bench --json``: names are a contract, units are in them.

``bench.schema.json`` beside this file is its JSON Schema; a test keeps the two equal.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import ConfigDict, Field

from vitpe_deploy.bench.statistics import RatioVerdict
from vitpe_deploy.results import JudgedOn, LayerVerdict, Value

Mode: TypeAlias = Literal["latency", "throughput"]


class HostRecord(Value):
    """The machine that the results belong to; null where the system does not tell."""

    cpu: str
    cores_used: int
    cpu_quota: float | None
    isa: tuple[str, ...]
    memory_bytes: int | None
    os: str
    versions: dict[str, str]
    gemm_peak_gflops: float | None


class LatencyRecord(Value):
    """Milliseconds; ``cv`` is standard deviation over mean."""

    min: float
    median: float
    mean: float
    p90: float
    p95: float
    p99: float
    max: float
    cv: float


class AgreementRecord(Value):
    """Outputs on the same inputs against PyTorch, the worst over outputs and inputs.

    Attributes:
        limit: what ``criterion`` is held against: the most for ``max_rel``, else the least.
        criterion: tolerance, or for int8 files the share of equal top-1 or the cosine.
        problem: why nothing could be compared.
        judged_on: for int8 files what the inputs were: ``calibration`` data that calibrated
            nothing, or ``noise``.
    """

    reference: Literal["pytorch", "stored"]
    max_rel: float | None
    cosine: float | None
    top1: float | None
    limit: float
    passed: bool
    criterion: Literal["max_rel", "top1", "cosine"] = "max_rel"
    problem: str | None = None
    judged_on: JudgedOn | None = None


class AccuracyRecord(Value):
    """Right answers on pictures with labels (``--images`` with ``--labels``), as shares.

    ``reference_top1`` is PyTorch's own share on the same pictures; null without it.
    """

    top1: float
    images: int
    reference_top1: float | None


class ResultRow(Value):
    """One artifact in one engine, device, precision, thread count, batch and size.

    Attributes:
        id: how comparisons name the row: what was asked for, unlike other fields, which say what
            the engine made of it. Rows of a baseline are found by it.
        samples_ms: every sample in the order taken. In throughput mode a sample is the time per
            image of one window, and ``latency_ms`` is null: latency under load is another number.
        samples_per_round: how ``samples_ms`` falls into rounds.
        rounds_per_start: how those fall into starts of the process.
        outliers: places in ``samples_ms`` that lie far off; they are in all statistics.
        throughput_ips: images per second; one request at a time in latency mode.
        gflops_per_image: matrix products, convolutions and attention of the graph.
        share_of_peak: of the fp32 GEMM peak at these threads; null in another precision.
        compile_ms: the engine's share of ``load_ms``.
        streams: requests at a time.
        rss_loaded_bytes: resident memory of the child when its model is loaded, before it runs.
        peak_rss_bytes: the most it ever held, loading included.
        first_peak_bytes: what the first inference needed on top of ``rss_loaded_bytes``.
        precision_stored: number format of the file, as ``vitpe-export --precision`` calls it.
    """

    id: str
    artifact: str
    sha256: str
    model: str = ""
    encoding: str | None = None
    precision_stored: str = "fp32"
    runtime: str
    device: str
    device_name: str
    precision_asked: str
    precision_executed: str
    mode: Mode
    streams: int
    threads: int
    batch: int
    resolution: tuple[int, int]
    samples_ms: tuple[float, ...]
    samples_per_round: tuple[int, ...]
    rounds_per_start: tuple[int, ...] = ()
    outliers: tuple[int, ...]
    latency_ms: LatencyRecord | None
    throughput_ips: float
    gflops_per_image: float | None
    share_of_peak: float | None
    compile_ms: float | None
    load_ms: float
    first_ms: float
    rss_loaded_bytes: int | None = None
    peak_rss_bytes: int | None
    first_peak_bytes: int | None
    size_bytes: int
    warmup_runs: int
    agreement: AgreementRecord | None
    accuracy: AccuracyRecord | None = None
    warnings: tuple[str, ...]

    def rounds(self) -> list[tuple[float, ...]]:
        """The samples by round."""
        found, start = [], 0
        for count in self.samples_per_round:
            found.append(self.samples_ms[start : start + count])
            start += count
        return found

    def starts(self) -> tuple[int, ...]:
        """Rounds of each start of the process; one of all in documents that do not say."""
        return self.rounds_per_start or (len(self.samples_per_round),)


class ComparisonRow(Value):
    """Two rows of one group, paired by round: time of b over time of a."""

    a: str
    b: str
    ratio_median: float
    ci95: tuple[float, float]
    verdict: RatioVerdict


class BaselineRow(Value):
    """A row against the row of an earlier run that asked for the same.

    Attributes:
        ratio_median: above 1 is slower than then.
        changes: what the engine made of the request then and now, where that differs, such as the
            precision that is executed.
    """

    id: str
    baseline_ms: float
    ratio_median: float
    ci95: tuple[float, float]
    verdict: RatioVerdict
    regressed: bool
    changes: tuple[str, ...] = ()


class UnjudgedRow(Value):
    """A row that the baseline has alone, or that was measured now alone."""

    id: str
    only_in: Literal["baseline", "now"]


class FailedRow(Value):
    """A planned row that did not load or run."""

    id: str
    kind: str
    message: str
    hint: str


class HarnessRecord(Value):
    """What measuring itself costs.

    Attributes:
        sample_overhead_ms: median of a sample that runs nothing.
        parent_rss_bytes: resident memory of the process that asks.
        child_rss_bytes: of a process that is asked, before it loads an engine or a model.
    """

    sample_overhead_ms: float
    parent_rss_bytes: int | None
    child_rss_bytes: int | None


class BenchReport(Value):
    """The whole document."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=()
    )

    schema_: Literal["vitpe.bench/1"] = Field(default="vitpe.bench/1", alias="schema")
    host: HostRecord
    results: tuple[ResultRow, ...]
    comparisons: tuple[ComparisonRow, ...]
    failed: tuple[FailedRow, ...] = ()
    baseline: tuple[BaselineRow, ...] = ()
    unjudged: tuple[UnjudgedRow, ...] = ()
    layers: tuple[LayerVerdict, ...] = ()
    harness: HarnessRecord | None = None
    warnings: tuple[str, ...] = ()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a report, as it is shipped."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **BenchReport.model_json_schema(by_alias=True, mode="serialization"),
    }
