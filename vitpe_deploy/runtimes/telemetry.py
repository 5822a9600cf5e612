"""Engines that report home unless they are told not to, told so while they are imported.

Measured in a network namespace without interfaces: importing OpenVINO looks for its collector at
once, unless ``CI=true``; ONNX Runtime from 1.32 on looks for its own some seconds after it was
imported, unless ``ORT_DISABLE_TELEMETRY=1`` was set by then. Its function
``disable_telemetry_events`` comes too late for what it has collected while it was imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_SILENT = {"CI": "true", "ORT_DISABLE_TELEMETRY": "1"}


@contextmanager
def without_telemetry() -> Iterator[None]:
    """Inside, an engine that is imported stays silent for good; the environment then comes back."""
    before = {name: os.environ.get(name) for name in _SILENT}
    os.environ.update(_SILENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
