"""The libraries of the coverage table: names, small networks, and what the library itself answers.

Each file declares the networks of one library and makes their references through that library
alone, without a line of this package.
"""

from __future__ import annotations

import importlib

from benchmarks.families.base import Library

LIBRARIES = ("timm", "transformers", "torchvision", "open_clip")


def open_library(name: str) -> Library:
    """The library of a name; imports it."""
    library: type[Library] = importlib.import_module(f"{__name__}.{name}_networks").LIBRARY
    return library()
