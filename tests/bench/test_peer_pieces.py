"""peers.py in pieces: what is kept line by line is read back as one suite."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("peers")


def test_the_last_line_of_each_model_counts(peers: ModuleType, tmp_path: Path) -> None:
    def line(model: str, kind: str, value: int) -> str:
        return json.dumps({"schema": f"vitpe.{kind}.model/1", "model": model, "value": value})

    file = tmp_path / "results.jsonl"
    lines = [
        line("swin-t-224", "peers", 1),
        line("vit-s16-224", "peers", 2),
        line("swin-t-224", "ablation", 3),
        line("swin-t-224", "peers", 4),
    ]
    file.write_text("\n".join(lines) + "\n")
    names = ["vit-s16-224", "swin-t-224", "beit-b16-224"]
    kept = peers.kept_results(file, "peers", names)
    assert [(r["model"], r["value"]) for r in kept] == [("vit-s16-224", 2), ("swin-t-224", 4)]
    kept = peers.kept_results(file, "ablation", names)
    assert [(r["model"], r["value"]) for r in kept] == [("swin-t-224", 3)]
