"""The work behind ``vitpe-bench``: a plan measured group by group, into one report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

from vitpe_deploy.bench import host, statistics
from vitpe_deploy.bench.documents import (
    AgreementRecord,
    BenchReport,
    ComparisonRow,
    FailedRow,
    HostRecord,
    LatencyRecord,
    ResultRow,
)
from vitpe_deploy.bench.flops import gflops
from vitpe_deploy.bench.gemm import gemm_peak_gflops
from vitpe_deploy.bench.plan import Artifact, BenchOptions, Group, PlannedRow
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.bench.reference import Prepared, prepare
from vitpe_deploy.bench.resume import Journal
from vitpe_deploy.bench.rounds import Candidate, Measured, measure
from vitpe_deploy.bench.throughput import default_streams
from vitpe_deploy.errors import VitpeError
from vitpe_deploy.files import sha256_of
from vitpe_deploy.progress import Progress, Silent
from vitpe_deploy.request import Resolution

FP32 = "f32"


def run_bench(
    options: BenchOptions,
    plan: Sequence[Group],
    *,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> BenchReport:
    """Measure a plan.

    Args:
        options: how.
        plan: groups of :func:`~vitpe_deploy.bench.plan.make_plan`.
        journal: keeps finished rows, and gives back those of an interrupted run.
        progress: told what happens.

    Raises:
        VitpeError: nothing at all could be measured: the error of the first row.
    """
    shown = progress or Silent()
    run = _Run(options, journal, shown)
    with tempfile.TemporaryDirectory(prefix="vitpe-bench-") as folder:
        run.prepare(plan, Path(folder))
        for number, group in enumerate(plan, 1):
            run.group(number, len(plan), group)
    if not run.rows and run.errors:
        raise run.errors[0]
    return BenchReport(
        host=run.host_record(),
        results=tuple(run.rows),
        comparisons=comparisons(run.rows),
        failed=tuple(run.failed),
        warnings=host.warnings(max(options.threads)),
    )


def comparisons(rows: Sequence[ResultRow]) -> tuple[ComparisonRow, ...]:
    """Every pair of rows that was timed in the same rounds."""
    found = []
    for a, b in combinations(rows, 2):
        same = (a.mode, a.threads, a.batch, a.resolution) == (
            b.mode, b.threads, b.batch, b.resolution
        )  # fmt: skip
        if not same or len(a.samples_per_round) != len(b.samples_per_round):
            continue
        ratio = statistics.ratio(a.rounds(), b.rounds())
        found.append(
            ComparisonRow(
                a=a.id,
                b=b.id,
                ratio_median=ratio.median,
                ci95=(ratio.low, ratio.high),
                verdict=ratio.verdict,
            )
        )
    return tuple(found)


class _Run:
    """What is known while a plan is measured."""

    def __init__(self, options: BenchOptions, journal: Journal | None, shown: Progress) -> None:
        self.options = options
        self.journal = journal
        self.shown = shown
        self.rows: list[ResultRow] = []
        self.failed: list[FailedRow] = []
        self.errors: list[VitpeError] = []
        self.inputs: dict[tuple[Path, Resolution, int], Prepared] = {}
        self.no_reference: dict[Path, str] = {}
        self.sha256: dict[Path, str] = {}
        self.counted: dict[tuple[Path, Resolution, int], float | None] = {}
        self.peaks: dict[int, float | None] = {}

    def prepare(self, plan: Sequence[Group], folder: Path) -> None:
        """Inputs and PyTorch's outputs of every artifact, before anything is timed."""
        self.shown.begin(1, len(plan) + 1, "Reference")
        start = time.monotonic()
        rows = [row for group in plan for row in group]
        artifacts: dict[Path, Artifact] = {row.artifact.path: row.artifact for row in rows}
        for number, (path, artifact) in enumerate(artifacts.items()):
            self.shown.tick(f"PyTorch's outputs for {path.name}")
            self.sha256[path] = sha256_of(path)
            place = folder / str(number)
            place.mkdir()
            cases = [(row.size, row.batch) for row in rows if row.artifact.path == path]
            found, problem = prepare(
                artifact,
                cases,
                place,
                images=self.options.images,
                threads=max(self.options.threads),
            )
            self.inputs |= {(path, *case): files for case, files in found.items()}
            if problem is not None:
                self.no_reference[path] = problem
                self.shown.line(f"{path.name}: no reference: {problem}")
            for size, batch in dict.fromkeys(cases):
                shape = artifact.manifest.layout().shape(size, batch)
                self.counted[path, size, batch] = gflops(path, shape)
        for threads in self.options.threads:
            self.shown.tick(f"GEMM peak with {threads} threads")
            try:
                self.peaks[threads] = gemm_peak_gflops(threads)
            except VitpeError as error:
                self.peaks[threads] = None
                self.shown.line(error.message)
        peak = self.peaks[self.options.threads[0]]
        said = "" if peak is None else f"fp32 GEMM peak {peak:.0f} GFLOP/s"
        self.shown.end(said, time.monotonic() - start)

    def group(self, number: int, total: int, group: Group) -> None:
        """Measure the rows of one group against each other, or take them from the journal."""
        first = group[0]
        title = f"{first.size} b{first.batch} t{first.threads} {first.mode}"
        self.shown.begin(number + 1, total + 1, title)
        kept = None if self.journal is None else self.journal.rows(group, self.sha256)
        if kept is not None:
            self.rows += kept
            self.shown.end(f"{len(kept)} rows kept from the interrupted run")
            return
        start = time.monotonic()
        by_label = {row.id: row for row in group}
        found = measure(
            [self._candidate(row) for row in group],
            self.options.schedule,
            on_error=lambda candidate, error: self._lost(by_label[candidate.label], error),
            on_round=lambda done, rounds: self.shown.tick(f"round {done + 1} of {rounds}"),
        )
        rows = [self._row(by_label[m.candidate.label], m) for m in found]
        for row in rows:
            self._show(row)
        self.rows += rows
        if self.journal is not None and len(rows) == len(group):
            self.journal.keep(rows)
        self.shown.end("", time.monotonic() - start)

    def host_record(self) -> HostRecord:
        """This machine, with the peak at the largest thread count."""
        found = asdict(host.read_host())
        return HostRecord(**found, gemm_peak_gflops=self.peaks[max(self.options.threads)])

    def _candidate(self, row: PlannedRow) -> Candidate:
        files = self.inputs[row.artifact.path, row.size, row.batch]
        throughput = row.mode == "throughput"
        spec = ChildSpec(
            path=str(row.artifact.path),
            runtime=row.runtime,
            device=row.device,
            threads=row.threads,
            inputs=str(files.inputs),
            expected="" if files.expected is None else str(files.expected),
            shape=(row.size.height, row.size.width),
            precision=row.precision,
            streams=default_streams(row.threads) if throughput else 1,
            throughput=throughput,
        )
        return Candidate(row.id, spec, rtol=self._limit(row))

    def _limit(self, row: PlannedRow) -> float:
        return row.artifact.manifest.tolerance.get("rtol", 1e-4)

    def _lost(self, row: PlannedRow, error: VitpeError) -> None:
        self.errors.append(error)
        self.failed.append(
            FailedRow(id=row.id, kind=error.kind, message=error.message, hint=error.hint)
        )
        self.shown.line(f"{row.runtime}: {error.message}", good=False)

    def _row(self, row: PlannedRow, found: Measured) -> ResultRow:
        summary, loaded = found.summary, found.loaded
        spec = found.candidate.spec
        throughput = row.mode == "throughput"
        per_image = summary.median if throughput else summary.median / row.batch
        total = self.counted[row.artifact.path, row.size, row.batch]
        per_image_gflops = None if total is None else total / row.batch
        peak = self.peaks[row.threads]
        share = None
        if per_image_gflops is not None and peak and loaded.precision_executed == FP32:
            share = per_image_gflops / (per_image / 1e3) / peak
        return ResultRow(
            id=row.id,
            artifact=str(row.artifact.path),
            sha256=self.sha256[row.artifact.path],
            runtime=row.runtime,
            device=row.device,
            device_name=loaded.device_name,
            precision_asked=row.precision,
            precision_executed=loaded.precision_executed,
            mode=row.mode,
            streams=spec.streams,
            threads=loaded.threads if not throughput else row.threads,
            batch=row.batch,
            resolution=(row.size.height, row.size.width),
            samples_ms=tuple(found.samples_ms),
            samples_per_round=tuple(len(samples) for samples in found.rounds),
            outliers=statistics.outliers(found.samples_ms),
            latency_ms=None if throughput else LatencyRecord(**asdict(summary)),
            throughput_ips=1e3 / per_image,
            gflops_per_image=per_image_gflops,
            share_of_peak=share,
            compile_ms=loaded.compile_ms,
            load_ms=loaded.load_ms,
            first_ms=loaded.first_ms,
            peak_rss_bytes=found.peak_rss_bytes,
            first_peak_bytes=loaded.first_peak_bytes,
            size_bytes=row.artifact.size_bytes,
            warmup_runs=found.warmed.runs,
            agreement=self._agreement(row, found),
            warnings=self._warnings(row, found),
        )

    def _agreement(self, row: PlannedRow, found: Measured) -> AgreementRecord | None:
        if found.agreement is None:
            return None
        files = self.inputs[row.artifact.path, row.size, row.batch]
        told = asdict(found.agreement) | {
            "reference": files.reference,
            "limit": self._limit(row),
        }
        return AgreementRecord(**told)

    def _warnings(self, row: PlannedRow, found: Measured) -> tuple[str, ...]:
        said = []
        if found.agreement is None:
            reason = self.no_reference.get(row.artifact.path, "not compared")
            said.append(f"agreement with PyTorch is not known: {reason}")
        if self.sha256[row.artifact.path] != row.artifact.manifest.sha256:
            said.append("the file is not the one its manifest was written for (sha256)")
        if found.loaded.precision_executed != row.precision and row.runtime != "torch":
            said.append(
                f"{row.precision} was asked for, {found.loaded.precision_executed} is executed"
            )
        if not found.warmed.stable:
            said.append(
                f"latency had not settled after {found.warmed.runs} warm-up runs: "
                "end other work, or measure with more --warmup."
            )
        far = len(statistics.outliers(found.samples_ms))
        if far > 0.05 * len(found.samples_ms):
            said.append(
                f"{far} of {len(found.samples_ms)} samples are outliers: the machine is noisy; "
                "end other work, or measure more --rounds."
            )
        early, late = _halves(found.rounds)
        if late > 1.1 * early:
            said.append(
                f"latency rose by {late / early - 1:.0%} during the run: the CPU may be "
                "throttling; let it cool, or lower --threads."
            )
        if not found.idle:
            said.append("threads of this candidate kept spinning between its rounds")
        return tuple(said)

    def _show(self, row: ResultRow) -> None:
        if row.latency_ms is not None:
            text = f"{row.latency_ms.median:.2f} ms  p95 {row.latency_ms.p95:.2f}"
        else:
            text = f"{row.throughput_ips:.1f} images/s with {row.streams} requests at a time"
        share = "" if row.share_of_peak is None else f"  {row.share_of_peak:.0%} of peak"
        good = None if row.agreement is None else row.agreement.passed
        label = f"{row.runtime} {row.precision_executed} {Path(row.artifact).name}"
        self.shown.line(f"{text}{share}", label=label, good=good)


def _halves(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Typical latency of the first and of the last third of the rounds, in milliseconds."""
    medians = statistics.round_medians(rounds)
    third = max(1, len(medians) // 3)
    return float(medians[:third].min()), float(medians[-third:].min())
