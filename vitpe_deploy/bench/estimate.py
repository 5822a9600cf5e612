"""About how long a plan takes, before anything is timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitpe_deploy.bench.flops import gflops
from vitpe_deploy.bench.plan import BenchOptions, Group
from vitpe_deploy.bench.rounds import estimate_s
from vitpe_deploy.request import Resolution

GFLOPS_PER_THREAD = 40.0
"""What one core of a present x86 CPU with AVX2 gives a ViT: a guess, for the order of time."""

_OTHERWISE_MS = 100.0
_BEFORE_S = 12.0
"""Model and reference of one artifact, and the GEMM peak."""


def estimate(options: BenchOptions, plan: Sequence[Group]) -> dict[str, Any]:
    """A ``vitpe.bench-plan/1`` document: rows by group, and seconds."""
    counted: dict[tuple[Path, Resolution, int], float | None] = {}
    groups = []
    for group in plan:
        latencies = []
        for row in group:
            key = (row.artifact.path, row.size, row.batch)
            if key not in counted:
                shape = row.artifact.manifest.layout().shape(row.size, row.batch)
                counted[key] = gflops(row.artifact.path, shape)
            work = counted[key]
            latencies.append(
                _OTHERWISE_MS if not work else work / (GFLOPS_PER_THREAD * row.threads) * 1e3
            )
        groups.append(
            {
                "rows": [row.id for row in group],
                "estimate_s": estimate_s(latencies, options.schedule),
            }
        )
    artifacts = {row.artifact.path for group in plan for row in group}
    before = _BEFORE_S * len(artifacts)
    total = before + sum(float(str(group["estimate_s"])) for group in groups)
    return {"schema": "vitpe.bench-plan/1", "groups": groups, "estimate_s": total}
