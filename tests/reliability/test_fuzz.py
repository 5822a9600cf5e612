"""Damaged and hostile files: ``benchmarks/fuzz.py`` in a reduced form."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    """The script as a module; its children find it by this name too."""
    name = "benchmarks_fuzz"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / "fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_every_kind_of_file_ends_in_a_documented_way(
    fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("fuzz")  # importable by name in the children
    counts, failures = module.fuzz(13 * len(module.KINDS), 20261130, say=False)
    assert failures == []
    assert set(counts) == {kind.name for kind in module.KINDS}
    for found in counts.values():
        assert sum(found.values()) == 13
    refused = sum(found["ok:1"] + found["ok:2"] for found in counts.values())
    accepted = sum(found["ok:0"] + found["ok:3"] for found in counts.values())
    assert refused > 60  # the inputs do hurt,
    assert accepted > 20  # and are not all rubbish


@pytest.mark.parametrize("name", ["x.onnx", "x.json", "x.bin"])
def test_mutations_are_reproducible_and_change_something(fuzz: ModuleType, name: str) -> None:
    data = json.dumps({"a": [1, 2], "b": {"c": "d"}}).encode()
    if name == "x.onnx":
        import onnx
        from onnx import TensorProto, helper

        tensor = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
        value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 1, 2])
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 1, 2])
        node = helper.make_node("Add", ["x", "w"], ["y"])
        graph = helper.make_graph([node], "g", [value], [out], [tensor])
        data = helper.make_model(graph).SerializeToString()
        assert onnx.load_from_string(data).graph.name == "g"
    made = [fuzz.mutate(data, random.Random(k), name) for k in range(60)]
    assert made == [fuzz.mutate(data, random.Random(k), name) for k in range(60)]
    assert sum(m != data for m in made) > 45


def test_what_goes_wrong_is_noticed(fuzz: ModuleType) -> None:
    """A worker reports a crash, a traceback, a wrong exit code and silence on errors."""

    class Pipe:
        def __init__(self, answer: object) -> None:
            self.answer = answer

        def send(self, _arguments: object) -> None: ...

        def poll(self, _seconds: float) -> bool:
            return True

        def recv(self) -> object:
            return self.answer

    def verdict(answer: object) -> str:
        worker = object.__new__(fuzz.Worker)
        worker._pipe = Pipe(answer)
        return str(worker.verdict([])[0])

    assert verdict((0, "", 0.1, 0)) == "ok:0"
    assert verdict((2, "error: no\n", 0.1, 0)) == "ok:2"
    assert verdict((None, "raised X", 0.1, 0)) == "raised"
    assert verdict((7, "", 0.1, 0)) == "exit code"
    assert verdict((1, "error: a\nhint: This is a defect", 0.1, 0)) == "traceback"
    assert verdict((1, "", 0.1, 0)) == "not one error"
    assert verdict((1, "error: a\nerror: b", 0.1, 0)) == "not one error"
    assert verdict((0, "", 11.0, 0)) == "slow"
