"""Export Vision Transformers with any positional encoding, at any resolution, verified.

    import vitpe_deploy

    report = vitpe_deploy.export("vit_small_patch16_224", resolution=384, output_dir="out")
    report.verdict                                   # "passed"
    report = vitpe_deploy.verify("out/vit_small_patch16_224-384x384-fp32.onnx")

The public names are those of ``__all__``; importing this package imports no engine and no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitpe_deploy.api import export, inspect, verify
    from vitpe_deploy.bench.documents import BenchReport
    from vitpe_deploy.bench.entry import benchmark
    from vitpe_deploy.deploy import (
        LoadedArtifact,
        LoadedBuckets,
        LoadedPair,
        load,
        load_pair,
    )
    from vitpe_deploy.errors import VitpeError
    from vitpe_deploy.inspection.report import InspectReport
    from vitpe_deploy.request import Resolution
    from vitpe_deploy.results import ExportReport, VerifyReport

__version__ = "0.1.0"

__all__ = [
    "BenchReport",
    "ExportReport",
    "InspectReport",
    "LoadedArtifact",
    "LoadedBuckets",
    "LoadedPair",
    "Resolution",
    "VerifyReport",
    "VitpeError",
    "__version__",
    "benchmark",
    "export",
    "inspect",
    "load",
    "load_pair",
    "verify",
]

_HOMES = {
    "BenchReport": "bench.documents",
    "benchmark": "bench.entry",
    "ExportReport": "results",
    "InspectReport": "inspection.report",
    "Resolution": "request",
    "VerifyReport": "results",
    "VitpeError": "errors",
    "LoadedArtifact": "deploy",
    "LoadedBuckets": "deploy",
    "LoadedPair": "deploy",
    "export": "api",
    "inspect": "api",
    "load": "deploy",
    "load_pair": "deploy",
    "verify": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
