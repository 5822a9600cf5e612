"""A browser for the whole session: starting one takes a second."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _module() -> ModuleType:
    name = "browser_chromium"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("chromium.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def chromium_module() -> ModuleType:
    """``chromium.py``: ``Chromium`` and ``serving``."""
    return _module()


@pytest.fixture
def browser(chromium_module: ModuleType) -> Iterator[Any]:
    """A fresh browser, its console and requests empty."""
    with chromium_module.Chromium() as chromium:
        yield chromium
