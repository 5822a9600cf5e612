"""Floors of benchmarks/peers.py: each is missed by the figure that misses it, and by no other."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def floors() -> ModuleType:
    path = ROOT / "benchmarks" / "peer_floors.py"
    spec = importlib.util.spec_from_file_location("benchmarks_peer_floors", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ratio(median: float) -> dict[str, Any]:
    return {"median": median, "low": median - 0.01, "high": median + 0.01, "peer": "opset20"}


GOOD: dict[str, Any] = {
    "model": "vit",
    "pooled_by_cls": True,
    "bias": False,
    "size": 518,
    "plain_over_ours": {w: ratio(1.12) for w in ("onnxruntime", "openvino")},
    "peer_over_ours": {w: ratio(1.08) for w in ("onnxruntime", "openvino", "across")},
    "dynamic_over_static": {"onnxruntime": ratio(1.0)},
    "memory": {"ratio": 0.5},
    "file": {"ratio": 1.01},
    "max_rel": {"onnx in onnxruntime": 2e-6},
}
MEANS = {
    "plain_over_ours": {"onnxruntime": 1.11, "openvino": 1.06},
    "peer_over_ours": {"onnxruntime": 1.03, "openvino": 1.02, "across": 1.08},
}


def test_good_figures_miss_nothing(floors: ModuleType) -> None:
    assert floors.misses([GOOD], MEANS, whole_suite=True) == []


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("plain_over_ours", "openvino"), ratio(1.05), "floor 1.06"),
        (("peer_over_ours", "onnxruntime"), ratio(0.96), "all below 0.98"),
        (("dynamic_over_static", "onnxruntime"), ratio(1.04), "dynamic over static 1.040"),
        (("memory", "ratio"), 0.71, "peak memory 0.71"),
        (("memory", "ratio"), None, "peak memory None"),
        (("file", "ratio"), 1.03, "file over weights 1.030"),
        (("max_rel", "onnx in onnxruntime"), 2e-5, "max_rel 2e-05"),
        (("max_rel", "onnx in onnxruntime"), None, "max_rel None"),
    ],
)
def test_each_floor(floors: ModuleType, path: tuple[str, str], value: object, says: str) -> None:
    bad = copy.deepcopy(GOOD)
    bad[path[0]][path[1]] = value
    found = floors.misses([bad], MEANS, whole_suite=False)
    assert any(says in text for text in found), found
    assert all(text.startswith("vit: ") for text in found)


@pytest.mark.parametrize(
    ("kind", "where", "mean", "floor"),
    [
        ("plain_over_ours", "onnxruntime", 1.09, "1.10"),
        ("plain_over_ours", "openvino", 1.04, "1.05"),
        ("peer_over_ours", "across", 1.06, "1.07"),
    ],
)
def test_means_are_judged_over_the_whole_suite(
    floors: ModuleType, kind: str, where: str, mean: float, floor: str
) -> None:
    low = MEANS | {kind: MEANS[kind] | {where: mean}}
    assert floors.misses([GOOD], low, whole_suite=False) == []
    assert floors.misses([GOOD], low, whole_suite=True) == [
        f"geometric mean {where}: {mean:.3f}, floor {floor}"
    ]
    assert floors.misses([GOOD | {"problem": "x"}], MEANS, whole_suite=False)
