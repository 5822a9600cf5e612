"""Many exports in one process: ``benchmarks/long_run.py`` in a reduced form, and two threads."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import vitpe_deploy

ROOT = Path(__file__).resolve().parents[2]

DRIVER = """
import json, sys
sys.path.insert(0, "benchmarks")
from long_run import long_run

run = long_run(10, 5, say=False)
print(json.dumps([run.resident, run.open_files, run.failures, run.refused, run.spread(5)]))
"""


def test_nothing_grows_and_nothing_is_left_behind() -> None:
    """In a process of its own, whose memory is of these exports alone."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    resident, open_files, failures, refused, spread = json.loads(done.stdout.splitlines()[-1])
    assert failures == []
    assert refused == 2
    assert len(resident) == 10
    assert spread < 0.05
    assert open_files[-1] <= open_files[0]


SURROUNDINGS = """
import sys
sys.path.insert(0, "benchmarks")
import warnings
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from long_run import Surroundings

module = nn.Linear(1, 1)
before = Surroundings.now(module)
assert Surroundings.now(module).changed(before) == []

class Left(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))

with Left():
    assert Surroundings.now(module).changed(before) == ["function modes"]
handle = module.register_forward_hook(lambda *a: None)
assert Surroundings.now(module).changed(before) == ["module"]
handle.remove()
real = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda *a: None
assert Surroundings.now(module).changed(before) == ["patched functions"]
torch.nn.functional.softmax = real
torch.rand(1)
assert Surroundings.now(module).changed(before) == ["random state"]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert "warnings" in Surroundings.now(module).changed(before)
"""


def test_what_is_left_behind_would_be_seen() -> None:
    subprocess.run([sys.executable, "-c", SURROUNDINGS], cwd=ROOT, check=True, timeout=120)


TINY = {"depth": 1, "embed_dim": 16, "num_heads": 2, "image_size": 32, "num_classes": 5}


@pytest.mark.parametrize("dynamic", ["none", "all"])
def test_two_threads_export_what_one_does(tmp_path: Path, dynamic: str) -> None:
    def export(name: str, seed: int) -> dict[str, bytes]:
        folder = tmp_path / name
        report = vitpe_deploy.export(
            "vit_tiny_patch16_224",
            model_kwargs=TINY,
            seed=seed,
            dynamic=dynamic,
            output_dir=folder,
            threads=1,
        )
        assert report.verdict == "passed"
        return {p.name: p.read_bytes() for p in folder.iterdir()}

    with ThreadPoolExecutor(max_workers=2) as pool:
        together = list(pool.map(export, ("a", "b"), (0, 1)))
    assert together == [export("c", 0), export("d", 1)]
