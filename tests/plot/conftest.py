"""A tiny ViT and files exported from it, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitpe_deploy
from vitpe_deploy.plot import PositionPlot, positions

MODEL = "vit_tiny_patch16_224"
TINY = {"image_size": 96, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}

Seen = Callable[..., PositionPlot]


@pytest.fixture
def seen() -> Seen:
    """Positions of the tiny ViT."""

    def see(encoding: str | None = None, *sizes: Any, **options: Any) -> PositionPlot:
        kwargs = {**TINY, **options.pop("model_kwargs", {})}
        return positions(
            MODEL, encoding=encoding, model_kwargs=kwargs, resolutions=sizes, **options
        )

    return see


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """An unverified export of the tiny ViT; equal arguments give the first file."""
    known: dict[str, Path] = {}

    def export(encoding: str | None = None, resolution: Any = None, **options: Any) -> Path:
        key = repr((encoding, resolution, sorted(options.items())))
        if key not in known:
            report = vitpe_deploy.export(
                MODEL, resolution, encoding=encoding, model_kwargs=TINY, verify=False, threads=2,
                output_dir=tmp_path_factory.mktemp("out"), **options,
            )  # fmt: skip
            known[key] = Path(report.artifacts[0].path)
        return known[key]

    return export
