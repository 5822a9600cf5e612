"""From the files of a finished export to a model repository.

The export is complete and proved before anything is moved. Files are linked, not copied, where the
disk can, so that buckets go on sharing one weights file on it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitpe_deploy.errors import UsageError
from vitpe_deploy.files import StagedFiles, refuse_existing
from vitpe_deploy.layouts import layout_of
from vitpe_deploy.layouts.base import VERSION, ServedModel
from vitpe_deploy.manifest import SUFFIX, Manifest, manifest_path, read_manifest
from vitpe_deploy.request import ExportRequest
from vitpe_deploy.results import ExportReport


def check_layout(request: ExportRequest, paths: Iterable[Path]) -> None:
    """Refuse what cannot be laid out, before anything is exported.

    Args:
        request: what is asked for.
        paths: the files that the export will write.

    Raises:
        UsageError: flags that contradict, or files in the way.
    """
    if request.layout == "files":
        return
    layout = layout_of(request.layout)
    if request.model.tower == "both":
        raise UsageError(
            f"--layout {layout.name} serves single models, --tower both writes a pair",
            hint="Export --tower vision and --tower text one after the other into one folder.",
        )
    if any(kind.value not in ("onnx", "openvino") for kind in request.formats):
        raise UsageError(
            f"--layout {layout.name} takes --format onnx and openvino alone",
            hint="No server loads .ort files.",
        )
    final = (request.output_dir / layout.place(path.name) for path in paths)
    refuse_existing(final, force=request.force)


def lay_out(request: ExportRequest, report: ExportReport) -> ExportReport:
    """Move the files of an export to where the layout wants them. Gives the report of that.

    Models of earlier exports in the same folder stay, in the server's configuration too.

    Raises:
        ArtifactError: the disk refused; the files lie where the export wrote them.
    """
    if request.layout == "files":
        return report
    layout, folder = layout_of(request.layout), request.output_dir
    artifacts = [Path(artifact.path) for artifact in report.artifacts]
    manifests = {path: read_manifest(path) for path in artifacts}
    moved: set[str] = set()
    with StagedFiles(folder) as staging:
        for path, manifest in manifests.items():
            for name in (*manifest.files, manifest_path(path).name):
                # A data file that several models share lies in the folder of each.
                home = layout.place(manifest.files[0]).parent / name
                _link(folder / name, staging.path(str(home)))
                moved.add(name)
        models = {m.name: m for m in map(ServedModel.of, manifests.values())}
        known = _served(folder) | models
        for place, text in layout.texts([known[name] for name in sorted(known)]).items():
            if place.parts[0] in models or len(place.parts) == 1:
                staging.path(str(place)).write_text(text, encoding="utf-8")
        staging.commit()
    for name in {*moved, *report.indexes}:
        (folder / Path(name).name).unlink()
    return _renamed(report, {str(p): str(folder / layout.place(p.name)) for p in artifacts})


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _served(folder: Path) -> dict[str, ServedModel]:
    """Models that the repository holds already; what is no manifest is not one of ours."""
    found = {}
    for path in sorted(folder.glob(f"*/{VERSION}/*{SUFFIX}")):
        try:
            model = ServedModel.of(Manifest.model_validate_json(path.read_bytes()))
        except (ValueError, OSError):
            continue
        if model.name == path.parents[1].name:
            found[model.name] = model
    return found


def _renamed(report: ExportReport, places: dict[str, str]) -> ExportReport:
    """The report with the final path of each artifact."""

    def renamed(value: str) -> str:
        return places.get(value, value)

    def moved(rows: Iterable[Any], key: str = "artifact") -> tuple[Any, ...]:
        return tuple(row.model_copy(update={key: renamed(getattr(row, key))}) for row in rows)

    return report.model_copy(
        update={
            "artifacts": moved(report.artifacts, "path"),
            "parity": moved(report.parity),
            "layers": moved(report.layers),
            "passes": moved(report.passes),
            "candidates": moved(report.candidates),
            "indexes": (),
        }
    )
