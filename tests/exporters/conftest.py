"""Exports that several tests look at, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitpe_deploy

TINY = {"image_size": 96, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
"""The tiny ViT of the field cases: image 96, patch 16, width 32, depth 2, 2 heads."""

MODEL = "vit_tiny_patch16_224"

Export = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="session")
def export_tiny(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Export the tiny ViT; equal arguments give the first result. Gives (path, report)."""
    known: dict[str, tuple[Path, Any]] = {}

    def export(resolution: Any = None, **options: Any) -> tuple[Path, Any]:
        key = repr((resolution, sorted(options.items())))
        if key not in known:
            model_kwargs = {**TINY, **options.pop("model_kwargs", {})}
            report = vitpe_deploy.export(
                MODEL,
                resolution,
                model_kwargs=model_kwargs,
                output_dir=tmp_path_factory.mktemp("out"),
                **options,
            )
            known[key] = (Path(report.artifacts[0].path), report)
        return known[key]

    return export
