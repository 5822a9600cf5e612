"""``--tower both``: what is written once both towers are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.files import StagedFiles, refuse_existing
from vitpe_deploy.request import ExportRequest
from vitpe_deploy.towers import BOTH, VISION

if TYPE_CHECKING:
    from vitpe_deploy.results import ExportReport
    from vitpe_deploy.sources.base import Source


def refuse_existing_pair(request: ExportRequest, vision: Source) -> None:
    """Refuse to write over the index or the tokenizer of a pair, before anything is exported.

    Raises:
        UsageError: names the first file that is there.
    """
    if request.model.tower != BOTH:
        return
    from vitpe_deploy.pair_index import SUFFIX, TOKENIZER_SUFFIX

    stem = _stem(request, vision)
    paths = [
        request.output_dir / f"{stem}{kind.suffix}{suffix}"
        for kind in request.formats
        for suffix in (SUFFIX, TOKENIZER_SUFFIX)
    ]
    refuse_existing(paths, force=request.force)


def write_pairs(
    request: ExportRequest,
    vision: Source,
    reports: Sequence[ExportReport],
    staging: StagedFiles,
) -> tuple[str, ...]:
    """Stage the index of each format in which both towers have one file. Gives the paths.

    A tower in several sizes makes no pair: nothing says which file it would be.

    Args:
        request: of both towers.
        vision: where the tower of pictures comes from.
        reports: of the two towers.
        staging: holds their files, which it does not commit.

    Raises:
        SourceError: the tokenizer of the source cannot be read.
    """
    from vitpe_deploy.manifest import read_manifest
    from vitpe_deploy.pair_index import write_pair

    tokenizer = vision.tokenizer()
    written = []
    for kind in request.formats:
        files = [[Path(a.path) for a in r.artifacts if a.format == kind.value] for r in reports]
        if any(len(found) != 1 for found in files):
            continue
        pictures, text = (read_manifest(staging.path(found[0].name)) for found in files)
        written.append(write_pair(staging, _stem(request, vision), pictures, text, tokenizer))
    return tuple(map(str, written))


def _stem(request: ExportRequest, vision: Source) -> str:
    return f"{vision.facts().name.removesuffix(f'-{VISION}')}-pair-{request.precision}"
