"""Where a torch module comes from, one file per source.

A MODEL string names its source by prefix; without one it is a reference network. The file of a
source names its class ``SOURCE`` and is imported only when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from vitpe_deploy import versions
from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import ModelRequest, closest
from vitpe_deploy.sources.base import Source

PREFIXES: Mapping[str, str] = {
    "hf": "transformers",
    "timm": "timm",
    "torchvision": "torchvision",
    "open_clip": "open_clip",
    "py": "python",
}
"""Prefix of the MODEL string -> file of the source."""


def open_source(request: ModelRequest) -> Source:
    """The source that a MODEL string names. Loads nothing yet.

    Raises:
        UsageError: unknown prefix.
        VersionError: the library behind it is installed and too old.
    """
    prefix, colon, _ = request.model.partition(":")
    if request.model.endswith(".onnx"):
        module = "onnx_graph"
    elif not colon:
        module = "reference"
    elif prefix in PREFIXES:
        module = PREFIXES[prefix]
        versions.require(versions.OF_SOURCE.get(prefix, ()))
    else:
        known = [f"{name}:" for name in PREFIXES]
        raise UsageError(
            f"MODEL {request.model!r}: no source is called {prefix!r}",
            hint=f"{closest(prefix + ':', known)}"
            f"Use a reference model's name, or a prefix of: {', '.join(known)}",
        )
    source: type[Source] = importlib.import_module(f"{__name__}.{module}").SOURCE
    return source(request)
