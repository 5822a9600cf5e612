"""What the text of ``--model-kwarg`` means to the constructor of a library."""

from __future__ import annotations

import ast
import re
from typing import Any

_SIZE = re.compile(r"(\d+)[xX](\d+)")


def python_value(name: str, given: Any) -> Any:
    """``12``, ``0.1``, ``true``, ``(2,2)``; ``160x288`` where ``name`` is a size; else the text."""
    if not isinstance(given, str):
        return given
    size = _SIZE.fullmatch(given)
    if size is not None and "size" in name:
        return int(size[1]), int(size[2])
    if given.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[given.lower()]
    try:
        return ast.literal_eval(given)
    except (ValueError, SyntaxError):
        return given
