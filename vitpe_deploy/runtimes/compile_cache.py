"""Where OpenVINO keeps what it compiled, so that the next start takes it from there.

OpenVINO's own key is a guess at what a model is. Ours is exact: one folder per content of the
model's files, version of the engine, device with its hardware, and settings. What changes any of
them gets another folder, and a folder never holds two of them. Off by default: a cache is bytes on
somebody's disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitpe_deploy.errors import UsageError

_CHUNK = 8 << 20


def cache_root(cache: str | Path | bool | None) -> Path | None:
    """The folder that a ``cache`` argument means; None keeps nothing.

    Args:
        cache: a folder, True for the user's own cache folder, None or False for none.

    Raises:
        UsageError: a file is in the way.
    """
    if cache is None or cache is False:
        return None
    root = user_cache() if cache is True else Path(cache)
    if root.exists() and not root.is_dir():
        raise UsageError(f"cache {root} is a file", hint="Give a folder.")
    return root


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/vitpe-deploy``, or what the platform has in its place."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "vitpe-deploy"


def entry_folder(
    root: Path,
    files: Sequence[Path],
    *,
    version: str,
    device: str,
    device_names: Sequence[str],
    settings: Mapping[str, Any],
) -> Path:
    """The folder of one compiled model.

    Args:
        root: as :func:`cache_root` gives it.
        files: everything that the model is read from.
        version: of the engine.
        device: as it was asked for.
        device_names: full names of the hardware.
        settings: what the engine is told.
    """
    digest = hashlib.sha256()
    for file in files:
        _add_file(digest, file)
    told = {key: str(value) for key, value in settings.items()}
    rest = json.dumps([version, device.upper(), list(device_names), told], sort_keys=True)
    digest.update(rest.encode())
    return root / "openvino" / digest.hexdigest()[:32]


def _add_file(digest: Any, file: Path) -> None:
    """Length and content; lengths keep two files from reading as one."""
    digest.update(file.stat().st_size.to_bytes(8, "little"))
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
