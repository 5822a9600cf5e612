"""``vitpe-verify`` on buckets: every bucket by itself, one report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.bucket_index import bucket_files, find_indexes
from vitpe_deploy.buckets import is_index
from vitpe_deploy.errors import UsageError
from vitpe_deploy.manifest import read_manifest
from vitpe_deploy.request import Resolution
from vitpe_deploy.results import VerifyReport
from vitpe_deploy.verification import VerifyOptions, run_verify

if TYPE_CHECKING:
    from vitpe_deploy.progress import Progress
    from vitpe_deploy.sources.base import Source


def find_index(path: Path) -> Path | None:
    """The index of buckets that a path means: itself, or the one of a folder; None if neither.

    Raises:
        UsageError: a folder with several, or with none.
    """
    if is_index(path):
        return path
    if not path.is_dir():
        return None
    found = find_indexes(path)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(index.name for index in found)
        raise UsageError(f"{path} holds several exports: {listed}", hint="Name one of them.")
    raise UsageError(f"{path} is a folder without buckets", hint="Name one of the files in it.")


def verify_buckets(
    index: Path,
    options: VerifyOptions,
    *,
    against: Source | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Prove every bucket, or those of the sizes asked for.

    Raises:
        ArtifactError: missing, damaged or incomplete files.
        UsageError: no bucket of a size that was asked for.
    """
    buckets = {Resolution(*(read_manifest(f).resolution or (1, 1))): f for f in bucket_files(index)}
    for size in options.resolutions:
        if size not in buckets:
            raise UsageError(
                f"--res {size}: {index.name} has no such bucket",
                hint=f"There are: {', '.join(map(str, buckets))}.",
            )
    wanted = options.resolutions or tuple(buckets)
    each = replace(options, resolutions=())
    reports = [
        run_verify(buckets[size], each, against=against, progress=progress) for size in wanted
    ]
    failed = any(report.verdict == "failed" for report in reports)
    return reports[0].model_copy(
        update={
            "artifact": str(index),
            "parity": tuple(row for report in reports for row in report.parity),
            "layers": tuple(verdict for report in reports for verdict in report.layers),
            "verdict": "failed" if failed else reports[0].verdict,
        }
    )
