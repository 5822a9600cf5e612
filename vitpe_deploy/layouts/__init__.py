"""How the files of an export lie: as they are, or as a server's model repository; one file each."""

from __future__ import annotations

from vitpe_deploy.errors import UsageError
from vitpe_deploy.layouts.base import Layout, PlainFiles, ServedModel
from vitpe_deploy.layouts.ovms import ModelServerRepository
from vitpe_deploy.layouts.triton import TritonRepository
from vitpe_deploy.request import closest

__all__ = ["LAYOUTS", "Layout", "ServedModel", "layout_of"]

LAYOUTS: dict[str, Layout] = {
    kind.name: kind() for kind in (PlainFiles, TritonRepository, ModelServerRepository)
}


def layout_of(name: str) -> Layout:
    """The layout that ``--layout`` names.

    Raises:
        UsageError: there is no such layout.
    """
    if name not in LAYOUTS:
        raise UsageError(
            f"--layout {name!r} is not known",
            hint=f"{closest(name, LAYOUTS)}Choose from: {', '.join(LAYOUTS)}.",
        )
    return LAYOUTS[name]
