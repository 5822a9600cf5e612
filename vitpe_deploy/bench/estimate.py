"""About how long a plan takes, before anything is timed, and how much of that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitpe_deploy.bench.flops import gflops
from vitpe_deploy.bench.plan import BenchOptions, Group, PlannedRow
from vitpe_deploy.bench.rounds import estimate_s
from vitpe_deploy.request import Resolution

GFLOPS_PER_THREAD = 40.0
"""What one core of a present x86 CPU with AVX2 gives a ViT: a guess, for the order of time."""

_OTHERWISE_MS = 100.0
_REFERENCE_S = 12.0
"""Model and reference of one artifact, and a share of the GEMM peak."""

_EXPORT_S = 8.0
"""Tracing and the passes of one file that is not there yet."""

Counted = Mapping[tuple[Path, Resolution, int], float | None]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a plan.

    Attributes:
        before_s: exports, references and the peak.
        groups_s: one number per group.
        counted: GFLOP of one run by artifact, size and batch, of the files that are there.
    """

    before_s: float
    groups_s: tuple[float, ...]
    counted: Counted

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.before_s + sum(self.groups_s)

    def left_s(self, spent_s: Sequence[float]) -> float:
        """What the groups after the finished ones take, by what those took.

        Args:
            spent_s: seconds of the finished groups, in their order.
        """
        planned = sum(self.groups_s[: len(spent_s)])
        pace = sum(spent_s) / planned if planned and spent_s else 1.0
        return pace * sum(self.groups_s[len(spent_s) :])


def estimate(options: BenchOptions, plan: Sequence[Group]) -> Estimate:
    """Seconds of a plan, from the operations of its files or of its reference models."""
    counted: dict[tuple[Path, Resolution, int], float | None] = {}
    for row in (row for group in plan for row in group):
        key = (row.artifact.path, row.size, row.batch)
        if key not in counted:
            counted[key] = _operations(row)
    groups = tuple(
        estimate_s(
            [_latency_ms(row, counted[row.artifact.path, row.size, row.batch]) for row in group],
            options.schedule,
        )
        for group in plan
    )
    artifacts = {row.artifact.path: row.artifact for group in plan for row in group}
    missing = sum(artifact.export is not None for artifact in artifacts.values())
    return Estimate(_REFERENCE_S * len(artifacts) + _EXPORT_S * missing, groups, counted)


def _operations(row: PlannedRow) -> float | None:
    artifact = row.artifact
    if artifact.export is not None:
        return artifact.export.gflops(row.size, row.batch)
    return gflops(artifact.path, artifact.manifest.layout().shape(row.size, row.batch))


def _latency_ms(row: PlannedRow, work: float | None) -> float:
    return _OTHERWISE_MS if not work else work / (GFLOPS_PER_THREAD * row.threads) * 1e3


def plan_document(plan: Sequence[Group], found: Estimate) -> dict[str, Any]:
    """A ``vitpe.bench-plan/1`` document: exports, rows by group, and seconds."""
    exports = {
        str(row.artifact.path): row.artifact.export.command()
        for group in plan
        for row in group
        if row.artifact.export is not None
    }
    return {
        "schema": "vitpe.bench-plan/1",
        "exports": [{"path": path, "command": command} for path, command in exports.items()],
        "groups": [
            {"rows": [row.id for row in group], "estimate_s": seconds}
            for group, seconds in zip(plan, found.groups_s, strict=True)
        ],
        "estimate_s": found.total_s,
    }


def duration(seconds: float) -> str:
    """``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
