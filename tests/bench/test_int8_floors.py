"""Floors of benchmarks/int8.py: each is missed by the figure that misses it; tables are whole."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def int8() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("int8")
    finally:
        sys.path.remove(str(BENCHMARKS))


def ratio(median: float) -> dict[str, Any]:
    return {"file": "a", "ms": 9.0, "median": median, "low": median - 0.1, "high": median + 0.1}


GOOD: dict[str, Any] = {
    "host": {"cpu": "a CPU", "isa": ["avx2"]},
    "speed": [
        {
            "model": "vit",
            "int8_ms": 5.0,
            "candidates": [
                {
                    "method": "dynamic-reduced", "runtime": "onnxruntime", "latency_ms": 5.0,
                    "size_bytes": 2_000_000, "agreement": 0.99, "chosen": True,
                }
            ],
            "ratios": {
                "ours fp32": ratio(1.6),
                "best fp32 peer": ratio(1.8),
                "best quantize_dynamic": ratio(1.15),
            },
        }
    ],
    "openvino": {},
    "digits": [
        {
            "model": "digits-none", "runtime": "onnxruntime", "method": "dynamic", "top1": 0.995,
            "accuracy": 0.97, "torch_accuracy": 0.97,
        }
    ],
    "photographs": [
        {
            "file": "dynamic", "runtime": "onnxruntime", "cls_cosine": 0.993,
            "patch_cosine": 0.985, "least_patch_cosine": 0.9,
        }
    ],
}  # fmt: skip


def test_good_figures_miss_nothing(int8: ModuleType) -> None:
    assert int8.missed(GOOD) == []
    table = int8.markdown(GOOD)
    assert "| vit | 5.0 | ours fp32: a | 9.0 | **1.600** | 1.500 to 1.700 | 1.50 |" in table
    assert "| vit | dynamic-reduced | onnxruntime | 5.0 | 2.0 | 0.9900 | * |" in table
    assert "| digits-none | onnxruntime | dynamic | 0.9950 | 0.9700 | 0.9700 |" in table


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("speed", 0, "ratios", "ours fp32"), ratio(1.49), "over ours fp32: 1.490"),
        (("speed", 0, "ratios", "best fp32 peer"), ratio(1.74), "over best fp32 peer: 1.740"),
        (("speed", 0, "ratios", "best quantize_dynamic"), ratio(1.11), "quantize_dynamic: 1.110"),
        (("digits", 0, "top1"), 0.98, "top-1 0.9800"),
        (("photographs", 0, "cls_cosine"), 0.98, "cls 0.9800"),
        (("photographs", 0, "patch_cosine"), 0.97, "patch tokens 0.9700"),
    ],
)
def test_each_floor(int8: ModuleType, path: tuple[Any, ...], value: Any, says: str) -> None:
    document = copy.deepcopy(GOOD)
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (found,) = int8.missed(document)
    assert says in found
