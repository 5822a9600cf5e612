"""A reduced form of benchmarks/coverage_transformers.py: mechanisms, static and dynamic."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("family", "mode"),
    [("swin", "static"), ("dinov3_vit", "dynamic"), ("vit_mae", "dynamic")],
)
def test_equal_to_the_library(family: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from coverage_transformers import LIMIT, run_cell

    cell = run_cell(family, mode)
    assert cell.refusal is None, cell.refusal
    assert cell.problem is None, cell.problem
    for engine in ("onnxruntime", "openvino"):
        worst = cell.worst(engine)
        assert worst is not None
        assert worst <= LIMIT, (engine, cell.max_rel)
    assert "coverage_transformers" in sys.modules
