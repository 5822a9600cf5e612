"""What a model that is named to compare with takes over from the export.

``vitpe-verify ARTIFACT --against MODEL`` names a model, not an export: which tower of it, how long
its texts are and by which rule its tables are resampled is what the artifact was made with, and
its manifest says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.manifest import SourceRecord, read_manifest
from vitpe_deploy.request import ModelRequest, ResampleOverride
from vitpe_deploy.towers import TEXT

if TYPE_CHECKING:
    from vitpe_deploy.sources.base import ModelFacts

_WITH_TOWERS = ("hf:", "open_clip:")
_BLOCK = "block:"


def as_exported(
    request: ModelRequest, artifact: Path, *, has_towers: bool | None = None
) -> ModelRequest:
    """A request with what the manifest of an artifact says of the export.

    Args:
        request: of the model to compare with.
        artifact: file, index or folder of buckets; one without a manifest changes nothing.
        has_towers: whether the model has several; for None its name tells.
    """
    recorded = _recorded(artifact)
    if recorded is None:
        return request
    if has_towers is None:
        has_towers = request.model.startswith(_WITH_TOWERS)
    text = recorded.tower == TEXT
    rule = ResampleOverride(recorded.interpolation, recorded.antialias, recorded.align_corners)
    return replace(
        request,
        tower=recorded.tower if has_towers else request.tower,
        max_length=recorded.max_length if text and has_towers else request.max_length,
        resample=request.resample or rule,
    )


def check_outputs(wanted: Sequence[str], facts: ModelFacts) -> None:
    """Refuse a model that does not have the outputs of an artifact.

    Raises:
        UsageError: names what is missing and what there is.
    """
    blocks = {f"{_BLOCK}{k}" for k in range(facts.depth)}
    missing = [n for n in wanted if n not in facts.outputs and n not in blocks]
    if missing:
        raise UsageError(
            f"--against: {facts.spec} has no output {missing[0]!r}, which the artifact has",
            hint=f"It has: {', '.join(facts.outputs)}. Export the artifact with --outputs among "
            "them, or name the model that it was made from.",
        )


def _recorded(artifact: Path) -> SourceRecord | None:
    """The source that an artifact names; buckets are all of one export."""
    from vitpe_deploy.bucket_index import bucket_files
    from vitpe_deploy.verify_buckets import find_index

    try:
        index = find_index(artifact)
        path = artifact if index is None else next(iter(bucket_files(index)))
        return read_manifest(path).source
    except (ArtifactError, UsageError, StopIteration):
        return None  # whoever opens the artifact says what is wrong with it
