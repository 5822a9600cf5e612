"""From what a child gave to a row of the report, with the warnings that belong to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from vitpe_deploy.bench import statistics
from vitpe_deploy.bench.documents import (
    AccuracyRecord,
    AgreementRecord,
    LatencyRecord,
    ResultRow,
)
from vitpe_deploy.bench.plan import PlannedRow
from vitpe_deploy.bench.protocol import Judge
from vitpe_deploy.bench.reference import Classified, Prepared
from vitpe_deploy.bench.rounds import Measured
from vitpe_deploy.manifest import Manifest

FP32 = "f32"

_MANY_OUTLIERS = 0.05
_RISE = 1.1


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a row before it is timed.

    Attributes:
        manifest: of the artifact.
        sha256: of its main file, now.
        prepared: inputs and expected outputs.
        classified: pictures with labels; None without.
        problem: why there is no reference.
        gflops: of one run of the whole batch.
        peak_gflops: fp32 matrix product peak at the row's threads.
    """

    manifest: Manifest
    sha256: str
    prepared: Prepared
    classified: Classified | None
    problem: str | None
    gflops: float | None
    peak_gflops: float | None

    @property
    def judge(self) -> Judge:
        """See :func:`judge_of`."""
        return judge_of(self.manifest)


def judge_of(manifest: Manifest) -> Judge:
    """When outputs agree: as at export."""
    given = manifest.tolerance
    return Judge(given.get("rtol", 1e-4), given.get("atol", 0.0), manifest.min_agreement)


def result_row(row: PlannedRow, found: Measured, known: Known) -> ResultRow:
    """The row of the report."""
    summary, loaded = found.summary, found.loaded
    throughput = row.mode == "throughput"
    per_image_ms = summary.median if throughput else summary.median / row.batch
    per_image_gflops = None if known.gflops is None else known.gflops / row.batch
    share = None
    if per_image_gflops is not None and known.peak_gflops and loaded.precision_executed == FP32:
        share = per_image_gflops / (per_image_ms / 1e3) / known.peak_gflops
    return ResultRow(
        id=row.id,
        artifact=str(row.artifact.path),
        sha256=known.sha256,
        model=known.manifest.model,
        encoding=known.manifest.encoding,
        precision_stored=known.manifest.precision,
        runtime=row.runtime,
        device=row.device,
        device_name=loaded.device_name,
        precision_asked=row.precision,
        precision_executed=loaded.precision_executed,
        mode=row.mode,
        streams=found.candidate.spec.streams,
        threads=row.threads if throughput else loaded.threads,
        batch=row.batch,
        resolution=(row.size.height, row.size.width),
        samples_ms=tuple(found.samples_ms),
        samples_per_round=tuple(len(samples) for samples in found.rounds),
        rounds_per_start=found.starts,
        outliers=statistics.outliers(found.samples_ms),
        latency_ms=None if throughput else LatencyRecord(**asdict(summary)),
        throughput_ips=1e3 / per_image_ms,
        gflops_per_image=per_image_gflops,
        share_of_peak=share,
        compile_ms=loaded.compile_ms,
        load_ms=loaded.load_ms,
        first_ms=loaded.first_ms,
        rss_loaded_bytes=loaded.rss_bytes,
        peak_rss_bytes=_largest(loaded.load_peak_bytes, found.peak_rss_bytes),
        first_peak_bytes=loaded.first_peak_bytes,
        size_bytes=row.artifact.size_bytes,
        warmup_runs=found.warmed.runs,
        agreement=_agreement(found, known),
        accuracy=_accuracy(found, known),
        warnings=tuple(_warnings(row, found, known, share)),
    )


def _agreement(found: Measured, known: Known) -> AgreementRecord | None:
    if found.agreement is None:
        return None
    by_agreement = known.manifest.min_agreement is not None
    return AgreementRecord(
        **asdict(found.agreement),
        reference=known.prepared.reference,
        judged_on=known.prepared.data if by_agreement else None,
    )


def _accuracy(found: Measured, known: Known) -> AccuracyRecord | None:
    if known.classified is None or not found.classes:
        return None
    right = known.classified.pictures.top1
    reference = known.classified.reference_classes
    return AccuracyRecord(
        top1=right(found.classes),
        images=len(found.classes),
        reference_top1=None if reference is None else right(reference),
    )


def _warnings(row: PlannedRow, found: Measured, known: Known, share: float | None) -> Iterator[str]:
    if found.agreement is None:
        yield f"agreement with PyTorch is not known: {known.problem or 'not compared'}"
    elif known.manifest.min_agreement is not None and known.prepared.data == "noise":
        yield "agreement is judged on noise, not on calibration data"
    if known.sha256 != known.manifest.sha256:
        yield "the file is not the one its manifest was written for (sha256)"
    executed = found.loaded.precision_executed
    if executed != row.precision and row.runtime != "torch":
        yield f"{row.precision} was asked for, {executed} is executed"
    if row.mode == "latency" and row.runtime != "torch" and found.loaded.threads != row.threads:
        yield f"{row.threads} threads were asked for, {found.loaded.threads} are used"
    if not found.warmed.stable:
        yield (
            f"latency had not settled after {found.warmed.runs} warm-up runs: "
            "end other work, or measure with more --warmup."
        )
    far, total = len(statistics.outliers(found.samples_ms)), len(found.samples_ms)
    if far > _MANY_OUTLIERS * total:
        yield (
            f"{far} of {total} samples are outliers: the machine is noisy; "
            "end other work, or measure more --rounds."
        )
    early, late = _ends(found.rounds)
    if late > _RISE * early:
        yield (
            f"latency rose by {late / early - 1:.0%} during the run: the CPU may be "
            "throttling; let it cool, or lower --threads."
        )
    if share is not None and share > 1.0:
        yield (
            f"{share:.0%} of the GEMM peak is not possible: the machine was busy when the peak "
            "was measured; measure again."
        )
    if not found.idle:
        yield "threads of this candidate kept spinning between its rounds"


def _largest(*sizes: int | None) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _ends(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Least latency of the first and of the last third of the rounds, in milliseconds."""
    medians = statistics.round_medians(rounds)
    third = max(1, len(medians) // 3)
    return float(medians[:third].min()), float(medians[-third:].min())
