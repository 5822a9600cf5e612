"""Versions of other packages that this one works with, and one clear line for those outside.

pip keeps to the lower bounds of ``pyproject.toml``; environments that were put together by hand do
not, and an old tracer or engine fails with words that say nothing about versions. Newer releases
are not refused: nobody knows yet whether they work, so that they were not tested is all that is
said. A test holds this table against ``pyproject.toml``, ``.ci/constraints.txt`` and
``docs/dependencies.md``.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vitpe_deploy.errors import VersionError


@dataclass(frozen=True, slots=True)
class Bound:
    """The oldest version that works, and the newest that was tested.

    Attributes:
        extra: what brings the package, empty for the base install.
    """

    least: str
    tested: str
    extra: str = ""


BOUNDS: Mapping[str, Bound] = {
    "onnxruntime": Bound("1.20", "1.32"),
    "openvino": Bound("2026.3", "2026.4"),
    "torch": Bound("2.9", "2.14", "export"),
    "onnxscript": Bound("0.7", "0.7", "export"),
    "onnx": Bound("1.19", "1.23", "export"),
    "onnx-ir": Bound("0.2.1", "1.1", "export"),
    "onnxsim": Bound("0.8", "0.8", "export"),
    "safetensors": Bound("0.4.5", "0.8", "export"),
    "timm": Bound("1.0.24", "1.0.31", "timm"),
    "transformers": Bound("4.57", "5.24", "transformers"),
    "torchvision": Bound("0.24", "0.29", "torchvision"),
    "open_clip_torch": Bound("3.0", "3.3", "open-clip"),
}

EXPORT = tuple(name for name, bound in BOUNDS.items() if bound.extra == "export")
"""What every export needs."""

OF_SOURCE: Mapping[str, tuple[str, ...]] = {
    "timm": ("timm",),
    "hf": ("transformers",),
    "torchvision": ("torchvision",),
    "open_clip": ("open_clip_torch",),
}
"""The libraries behind each MODEL prefix."""


def require(names: Iterable[str]) -> None:
    """Refuse packages that are too old; those that are not installed are somebody else's error.

    Raises:
        VersionError: names the first, its version, and what works.
    """
    for name in names:
        found = installed(name)
        if found is not None:
            require_version(name, found)


def require_version(name: str, found: str) -> None:
    """Refuse one version that is too old.

    Raises:
        VersionError: see :func:`require`.
    """
    least = BOUNDS[name].least
    if parts(found) < parts(least):
        raise VersionError(
            f"{name} {found} is too old: {least} is the oldest version that works",
            hint=f"Run: pip install -U '{name}>={least}'",
        )


def untested(names: Iterable[str]) -> list[str]:
    """A line for each package that is newer than any that was tested."""
    lines = []
    for name in names:
        found = installed(name)
        tested = BOUNDS[name].tested
        if found is not None and parts(found)[: len(parts(tested))] > parts(tested):
            lines.append(f"{name} {found} is newer than any that was tested ({tested})")
    return lines


def installed(name: str) -> str | None:
    """The version of an installed package; None when there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def parts(version: str) -> tuple[int, ...]:
    """``2.9.1+cpu`` is (2, 9, 1); what follows the numbers does not count."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
