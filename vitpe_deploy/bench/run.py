"""The work behind ``vitpe-bench``: a plan measured group by group, into one report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

from vitpe_deploy.bench import host
from vitpe_deploy.bench.documents import (
    BenchReport,
    ComparisonRow,
    FailedRow,
    HarnessRecord,
    HostRecord,
    ResultRow,
)
from vitpe_deploy.bench.estimate import Estimate, duration, estimate
from vitpe_deploy.bench.flops import gflops
from vitpe_deploy.bench.gemm import gemm_peak_gflops
from vitpe_deploy.bench.layers import compare_layers
from vitpe_deploy.bench.overhead import measure_harness
from vitpe_deploy.bench.plan import Artifact, BenchOptions, Group, PlannedRow
from vitpe_deploy.bench.protocol import ChildSpec
from vitpe_deploy.bench.reference import Reference, prepare
from vitpe_deploy.bench.resume import Journal
from vitpe_deploy.bench.rounds import Candidate, measure, ratio_of_rounds
from vitpe_deploy.bench.rows import Known, result_row
from vitpe_deploy.bench.throughput import default_streams
from vitpe_deploy.errors import VitpeError
from vitpe_deploy.files import sha256_of
from vitpe_deploy.manifest import read_manifest
from vitpe_deploy.progress import Progress, Silent
from vitpe_deploy.results import LayerVerdict


def run_bench(
    options: BenchOptions,
    plan: Sequence[Group],
    *,
    expected: Estimate | None = None,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> BenchReport:
    """Measure a plan.

    Args:
        options: how.
        plan: groups of :func:`~vitpe_deploy.bench.plan.make_plan`.
        expected: how long it takes, where that is known already.
        journal: keeps finished rows, and gives back those of an interrupted run.
        progress: told what happens.

    Raises:
        VitpeError: nothing at all could be measured: the error of the first row.
    """
    shown = progress or Silent()
    before = host.read_throttle()
    run = _Run(options, expected or estimate(options, plan), journal, shown)
    with tempfile.TemporaryDirectory(prefix="vitpe-bench-") as folder:
        ready = run.prepare(plan, Path(folder))
        for number, group in enumerate(ready, 1):
            run.group(number, len(ready), group)
        layers = run.layers(ready) if options.layers else ()
    if not run.rows and run.errors:
        raise run.errors[0]
    return BenchReport(
        host=run.host_record(),
        results=tuple(run.rows),
        comparisons=comparisons(run.rows),
        failed=tuple(run.failed),
        layers=layers,
        harness=run.harness,
        warnings=(
            *host.warnings(max(options.threads)),
            *host.read_throttle().since(before),
            *run.warnings,
        ),
    )


def comparisons(rows: Sequence[ResultRow]) -> tuple[ComparisonRow, ...]:
    """Every pair of rows that was timed in the same rounds."""
    found = []
    for a, b in combinations(rows, 2):
        same = (a.mode, a.threads, a.batch, a.resolution) == (
            b.mode, b.threads, b.batch, b.resolution
        )  # fmt: skip
        if not same:
            continue
        ratio = ratio_of_rounds((a.rounds(), a.starts()), (b.rounds(), b.starts()))
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

    def __init__(
        self, options: BenchOptions, expected: Estimate, journal: Journal | None, shown: Progress
    ) -> None:
        self.options = options
        self.expected = expected
        self.journal = journal
        self.shown = shown
        self.rows: list[ResultRow] = []
        self.failed: list[FailedRow] = []
        self.errors: list[VitpeError] = []
        self.warnings: list[str] = []
        self.harness: HarnessRecord | None = None
        self._references: dict[Path, Reference] = {}
        self._sha256: dict[Path, str] = {}
        self._counted = dict(expected.counted)
        self._peaks: dict[int, float | None] = {}
        self._spent_s: list[float] = []
        self._kept: list[list[ResultRow] | None] = []

    def prepare(self, plan: Sequence[Group], folder: Path) -> list[Group]:
        """Files that are not there yet, inputs and PyTorch's outputs, before anything is timed.

        Gives the groups with what was exported; rows of an export that failed are left out.
        """
        self.shown.begin(1, len(plan) + 1, "Reference")
        start = time.monotonic()
        groups = self._export(plan)
        self._kept = [self._from_journal(group) for group in groups]
        fresh = [
            row for g, kept in zip(groups, self._kept, strict=True) if kept is None for row in g
        ]
        artifacts = {row.artifact.path: row.artifact for row in fresh}
        for number, (path, artifact) in enumerate(artifacts.items()):
            own = [row for row in fresh if row.artifact.path == path]
            try:
                self._refer(artifact, own, folder / str(number))
            except VitpeError as error:
                for row in own:
                    self._lost(row, error)
        for threads in self.options.threads:
            self.shown.tick(f"GEMM peak with {threads} threads")
            try:
                self._peaks[threads] = gemm_peak_gflops(threads)
            except VitpeError as error:
                self._peaks[threads] = None
                self.shown.line(error.message)
                self.warnings.append(
                    f"the GEMM peak with {threads} threads is not known: {error.message}"
                )
        self.harness = measure_harness()
        peak = self._peaks[self.options.threads[0]]
        said = "" if peak is None else f"fp32 GEMM peak {peak:.0f} GFLOP/s"
        self.shown.end(said, time.monotonic() - start)
        return [self._able(group) for group in groups]

    def _export(self, plan: Sequence[Group]) -> list[Group]:
        """The groups with the files of a sweep written; rows of a failed export are left out."""
        rows = [row for group in plan for row in group]
        ready: dict[Path, Artifact] = {}
        for path, artifact in {row.artifact.path: row.artifact for row in rows}.items():
            try:
                if artifact.export is not None:
                    self.shown.tick(f"exporting {path.name}")
                    artifact.export.carry_out()
                    stored = read_manifest(path)
                    ready[path] = replace(artifact, stored=stored, export=None)
                else:
                    ready[path] = artifact
                self._sha256[path] = sha256_of(path)
            except VitpeError as error:
                for row in (row for row in rows if row.artifact.path == path):
                    self._lost(row, error)
        return [
            tuple(replace(row, artifact=ready[row.artifact.path]) for row in self._able(group))
            for group in plan
        ]

    def _able(self, group: Group) -> Group:
        """The rows that have not failed yet."""
        lost = {row.id for row in self.failed}
        return tuple(row for row in group if row.id not in lost)

    def _from_journal(self, group: Group) -> list[ResultRow] | None:
        return None if self.journal is None else self.journal.rows(group, self._sha256)

    def _refer(self, artifact: Artifact, rows: Sequence[PlannedRow], folder: Path) -> None:
        path = artifact.path
        self.shown.tick(f"PyTorch's outputs for {path.name}")
        folder.mkdir()
        cases = list(dict.fromkeys((row.size, row.batch) for row in rows))
        found = prepare(
            artifact,
            cases,
            folder,
            images=self.options.images,
            labels=self.options.labels,
            threads=max(self.options.threads),
        )
        self._references[path] = found
        if found.problem is not None:
            self.shown.line(f"{path.name}: no reference: {found.problem}")
        for size, batch in cases:
            if artifact.swept or (path, size, batch) not in self._counted:
                shape = artifact.manifest.layout().shape(size, batch)
                self._counted[path, size, batch] = gflops(path, shape)

    def group(self, number: int, total: int, group: Group) -> None:
        """Measure the rows of one group against each other, or take them from the journal."""
        if not group:  # all of its exports failed
            self._spent_s.append(0.0)
            return
        first = group[0]
        title = f"{first.size} b{first.batch} t{first.threads} {first.mode}"
        self.shown.begin(number + 1, total + 1, title)
        kept = self._kept[number - 1]
        if kept is not None:
            self.rows += kept
            self._spent_s.append(0.0)
            self.shown.end(f"{len(kept)} rows kept from the interrupted run")
            return
        start = time.monotonic()
        by_label = {row.id: row for row in group}
        left = duration(self.expected.left_s(self._spent_s))
        found = measure(
            [self._candidate(row) for row in group],
            self.options.schedule,
            on_error=lambda candidate, error: self._lost(by_label[candidate.label], error),
            on_round=lambda done, rounds: self.shown.tick(
                f"round {done + 1} of {rounds}, about {left} to go when this group began"
            ),
        )
        measured = [(by_label[m.candidate.label], m) for m in found]
        rows = [result_row(row, m, self._known(row)) for row, m in measured]
        for row in rows:
            self._show(row)
        self.rows += rows
        if self.journal is not None and len(rows) == len(group):
            self.journal.keep(rows)
        self._spent_s.append(time.monotonic() - start)
        rest = self.expected.left_s(self._spent_s)
        self.shown.end("" if number == total else f"about {duration(rest)} left")

    def layers(self, groups: Sequence[Group]) -> tuple[LayerVerdict, ...]:
        """Error per layer of every artifact at its first size."""
        found: list[LayerVerdict] = []
        rows = [row for group in groups for row in group if row.runtime != "torch"]
        for path in dict.fromkeys(row.artifact.path for row in rows):
            own = [row for row in rows if row.artifact.path == path]
            self.shown.tick(f"layers of {path.name}")
            engines = tuple(dict.fromkeys(row.runtime for row in own))
            first = own[0]
            verdicts, problem = compare_layers(
                path, first.size, engines, first.device, max(self.options.threads)
            )
            found += verdicts
            if problem is not None:
                self.warnings.append(f"{path.name}: layers not compared: {problem}")
                self.shown.note(self.warnings[-1])
        return tuple(found)

    def host_record(self) -> HostRecord:
        """This machine, with the peak at the largest thread count."""
        found = asdict(host.read_host())
        return HostRecord(**found, gemm_peak_gflops=self._peaks[max(self.options.threads)])

    def _known(self, row: PlannedRow) -> Known:
        path = row.artifact.path
        reference = self._references[path]
        return Known(
            manifest=row.artifact.manifest,
            sha256=self._sha256[path],
            prepared=reference.cases[row.size, row.batch],
            classified=reference.classified.get(row.size),
            problem=reference.problem,
            gflops=self._counted[path, row.size, row.batch],
            peak_gflops=self._peaks[row.threads],
        )

    def _candidate(self, row: PlannedRow) -> Candidate:
        known = self._known(row)
        throughput = row.mode == "throughput"
        files, classified = known.prepared, known.classified
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
            pictures="" if classified is None else str(classified.inputs),
        )
        return Candidate(row.id, spec, judge=known.judge)

    def _lost(self, row: PlannedRow, error: VitpeError) -> None:
        self.errors.append(error)
        self.failed.append(
            FailedRow(id=row.id, kind=error.kind, message=error.message, hint=error.hint)
        )
        self.shown.line(f"{row.runtime}: {error.message}", good=False)

    def _show(self, row: ResultRow) -> None:
        if row.latency_ms is not None:
            text = f"{row.latency_ms.median:.2f} ms  p95 {row.latency_ms.p95:.2f}"
        else:
            text = f"{row.throughput_ips:.1f} images/s with {row.streams} requests at a time"
        share = "" if row.share_of_peak is None else f"  {row.share_of_peak:.0%} of peak"
        top1 = "" if row.accuracy is None else f"  top-1 {row.accuracy.top1:.1%}"
        good = None if row.agreement is None else row.agreement.passed
        label = f"{row.runtime} {row.precision_executed} {Path(row.artifact).name}"
        self.shown.line(f"{text}{share}{top1}", label=label, good=good)
