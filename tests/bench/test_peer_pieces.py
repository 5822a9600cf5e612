"""peers.py: results kept line by line are one suite, and the best peer is not a lucky one."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from vitpe_deploy.bench.protocol import ChildSpec, Loaded, Warmed
from vitpe_deploy.bench.rounds import Candidate, Measured

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


def measured(label: str, rounds: np.ndarray) -> Measured:
    return Measured(
        candidate=Candidate(label, ChildSpec("", "onnxruntime", "CPU", 1, "")),
        loaded=Loaded.__new__(Loaded),
        warmed=Warmed.__new__(Warmed),
        rounds=tuple((float(ms),) for ms in rounds),
        peak_rss_bytes=None,
        idle=True,
        starts=(len(rounds) // 2, len(rounds) // 2),
    )


def test_the_best_of_many_equal_peers_is_not_faster_than_they_are(peers: ModuleType) -> None:
    """Of 20 equal peers the luckiest seems several percent faster than all are."""
    seen = []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        mine = measured("ours in onnxruntime", np.full(20, 100.0))
        rivals = [measured(f"peer {k}", 110 * draw.lognormal(0, 0.1, 20)) for k in range(20)]
        seen.append(peers.against(mine, rivals)["median"])
    assert 1.08 < np.mean(seen) < 1.12


def test_the_peer_that_is_faster_is_the_rival(peers: ModuleType) -> None:
    draw = np.random.default_rng(0)
    mine = measured("ours in onnxruntime", 100 * draw.lognormal(0, 0.01, 20))
    levels = {"slow": 130.0, "fast": 105.0, "middling": 115.0}
    rivals = [measured(k, ms * draw.lognormal(0, 0.01, 20)) for k, ms in levels.items()]
    found = peers.against(mine, rivals)
    assert found["peer"] == "fast"
    assert found["median"] == pytest.approx(1.05, abs=0.02)


def test_plain_exports_and_others_are_kept_for_each_engine(peers: ModuleType) -> None:
    def ranked(label: str, runtime: str, ms: float) -> dict[str, object]:
        return {"label": label, "runtime": runtime, "latency_ms": {"min": ms}}

    rows = [
        ranked(f"opset{opset}{kind} in {engine}", engine, ms + 0.1 * opset)
        for engine in ("onnxruntime", "openvino")
        for opset in (18, 20, 23)
        for kind, ms in (("", 20.0), ("-sim", 10.0), ("-ortopt", 30.0))
    ]
    bench = importlib.import_module("peer_bench")
    far, near = ranked("torch eager", "torch", 90.0), ranked("torch.compile", "torch", 11.9)
    assert bench.best_peers([*rows, far, near]) == [
        *(f"opset{n} in onnxruntime" for n in (18, 20)),
        *(f"opset{n}-sim in onnxruntime" for n in (18, 20)),
        *(f"opset{n} in openvino" for n in (18, 20)),
        *(f"opset{n}-sim in openvino" for n in (18, 20)),
        "torch.compile",
    ]
