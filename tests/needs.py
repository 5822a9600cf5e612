"""What older supported versions of a library do otherwise, for tests that would ask it of them."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version


def older(package: str, than: str) -> bool:
    """Whether the installed version of a package is below one."""
    return Version(version(package)) < Version(than)


def needs(package: str, at_least: str, because: str) -> pytest.MarkDecorator:
    """Leave a test out with older versions of a package, and say why."""
    return pytest.mark.skipif(older(package, at_least), reason=f"{package} {at_least}: {because}")
