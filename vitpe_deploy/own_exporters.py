"""The exporters of this distribution, and nobody else's package of the same name."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from vitpe_deploy.errors import ArtifactError, MissingExtraError
from vitpe_deploy.versions import EXPORT, require


def require_exporters() -> Any:
    """The pipeline's entry, after making sure that ``exporters`` is ours.

    Raises:
        ArtifactError: another package of that name is first on the path.
        MissingExtraError: an exporter's dependency is not installed.
        VersionError: one is installed and too old.
    """
    require_own_exporters()
    require(EXPORT)
    try:
        return importlib.import_module("exporters.pipeline").run_export
    except ModuleNotFoundError as problem:
        package = (problem.name or "torch").partition(".")[0]
        if package in ("exporters", "vitpe_deploy"):
            raise
        raise MissingExtraError(package, "export") from problem


def require_own_exporters() -> None:
    """Make sure that ``exporters`` is ours, without importing what it needs.

    Raises:
        ArtifactError: another package of that name is first on the path.
    """
    spec = importlib.util.find_spec("exporters")
    try:
        mark = getattr(importlib.import_module("exporters"), "DISTRIBUTION", None)
    except Exception:  # whatever somebody else's package does when it is imported
        mark = None
    if mark == "vitpe-deploy":
        return
    where = "nowhere"
    if spec is not None:
        where = spec.origin or next(iter(spec.submodule_search_locations or ["?"]))
    raise ArtifactError(
        f"another package called 'exporters' shadows ours: {where}",
        hint="Uninstall it, then reinstall: pip install --force-reinstall --no-deps vitpe-deploy.",
    )
