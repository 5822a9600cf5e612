"""The steps from a complete request to its files: open, plan, run.

Command line and Python API share them; planning refuses what can be refused before any file or
network is touched.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitpe_deploy.errors import UsageError
from vitpe_deploy.own_exporters import require_exporters, require_own_exporters
from vitpe_deploy.pair_export import refuse_existing_pair, write_pairs
from vitpe_deploy.request import ExportRequest, ModelRequest, Resolution
from vitpe_deploy.towers import merged, split
from vitpe_deploy.versions import BOUNDS, untested

if TYPE_CHECKING:
    from torch import nn

    from exporters.plan import Plan
    from vitpe_deploy.files import StagedFiles
    from vitpe_deploy.progress import Progress
    from vitpe_deploy.results import ExportReport
    from vitpe_deploy.sources.base import Source


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One model on its way to its files, which is one of two under ``--tower both``."""

    request: ExportRequest
    source: Source
    plan: Plan


def plan_exports(
    request: ExportRequest, module: nn.Module | None = None
) -> tuple[PlannedRequest, ...]:
    """The exports that a request means, all of them planned before any is carried out.

    Raises:
        VitpeError: as :func:`plan_request`.
    """
    opened = [(one, open_model(one, module)) for one in split(request)]
    planned = tuple(PlannedRequest(one, src, plan_request(one, src)) for one, src in opened)
    refuse_existing_pair(request, planned[0].source)
    return planned


def run_exports(
    request: ExportRequest,
    exports: Sequence[PlannedRequest],
    *,
    progress: Progress | None = None,
    before_each: Callable[[PlannedRequest], None] | None = None,
) -> ExportReport:
    """Carry out what :func:`plan_exports` gave; the files of all appear at once.

    Args:
        request: what was planned.
        exports: its exports.
        progress: told what happens.
        before_each: called with each export before it begins.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`; nothing was written, unless it is
            ``layout`` that failed: then the files lie as ``layout="files"`` writes them.
    """
    from vitpe_deploy.files import StagedFiles
    from vitpe_deploy.layouts.repository import lay_out

    def run(export: PlannedRequest, staging: StagedFiles | None) -> ExportReport:
        if before_each is not None:
            before_each(export)
        return run_request(export.request, export.source, progress=progress, staging=staging)

    if len(exports) == 1:
        return lay_out(request, run(exports[0], None))
    with StagedFiles(request.output_dir) as staging:
        reports = [run(export, staging) for export in exports]
        pairs = write_pairs(request, exports[0].source, reports, staging)
        staging.commit(replace=request.force)
    return lay_out(request, merged(reports, pairs))


def open_model(request: ExportRequest, module: nn.Module | None = None) -> Source:
    """The source of a request. Loads nothing, and imports no torch for a reference model."""
    if module is None and request.model.model.endswith(".onnx"):
        from vitpe_deploy.sources.own_file import own_file

        found = own_file(request)
        if found is not None:
            return found
    return source_of(request.model, module, request.resolutions)


def plan_request(request: ExportRequest, source: Source) -> Plan:
    """What the request will write and prove. Everything that can be refused cheaply is, here.

    Raises:
        UsageError: flags that contradict, files in the way, or no pictures where told.
        SizeError: a size that the model cannot take.
        ArtifactError: another package shadows ours.
    """
    require_own_exporters()
    from vitpe_deploy.files import refuse_existing
    from vitpe_deploy.layouts.repository import check_layout

    plan = _plan(request, source)
    folder = request.output_dir
    if os.path.exists(folder) and not os.path.isdir(folder):  # pathlib's raise without permission
        raise UsageError(f"--output {folder} is a file", hint="Give a folder.")
    refuse_existing(plan.paths(request), force=request.force)
    check_layout(request, plan.paths(request))
    if request.verify.images is not None:
        from vitpe_deploy.images import list_images

        list_images(request.verify.images)
    return plan


def run_request(
    request: ExportRequest,
    source: Source,
    *,
    progress: Progress | None = None,
    staging: StagedFiles | None = None,
) -> ExportReport:
    """Carry out a planned request of one model.

    Args:
        request: what is asked for.
        source: where the model comes from.
        progress: told what happens.
        staging: where the files stay until whoever opened it commits it; without one they appear
            in the end.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`; nothing was written.
    """
    run = require_exporters()
    if progress is not None:
        for line in untested(BOUNDS):
            progress.note(f"note: {line}")
    if _is_respelled(request, source):
        respell = importlib.import_module("exporters.respell.run").run_respelling
        respelled: ExportReport = respell(request, source, progress=progress)
        return respelled
    report: ExportReport = run(request, source, progress=progress, staging=staging)
    return report


def _plan(request: ExportRequest, source: Source) -> Plan:
    if _is_respelled(request, source):
        require_exporters()
        planned: Plan = importlib.import_module("exporters.respell.run").plan_respelling(
            request, source
        )
        return planned
    from exporters.plan import make_plan

    return make_plan(request, source.facts())


def _is_respelled(request: ExportRequest, source: Source) -> bool:
    """Whether the source is a file of ours that is respelled, not traced."""
    if not request.model.model.endswith(".onnx"):
        return False
    from vitpe_deploy.sources.own_file import OwnFile

    return isinstance(source, OwnFile)


def source_of(
    request: ModelRequest, module: nn.Module | None, sizes: Sequence[Resolution]
) -> Source:
    """The source of a MODEL string, or of a module that stands in its place.

    Args:
        request: the model.
        module: takes pixel values [B, C, H, W].
        sizes: a module of unknown kind is looked at with the first of them.

    Raises:
        VitpeError: see :func:`vitpe_deploy.sources.open_source`.
    """
    if module is None:
        from vitpe_deploy.sources import open_source

        return open_source(request)
    from vitpe_deploy.sources.module import open_module

    return open_module(module, request, sizes[0] if sizes else None)
