"""The coverage table in small: a few families of each library, and what its exit code means."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import coverage
from benchmarks.families import LIBRARIES, open_library
from benchmarks.families.base import ENGINES, MODES, Cell, Library, run_cell
from benchmarks.families.children import run_cells
from benchmarks.families.verdicts import (
    Refusal,
    explained,
    read_refusals,
    report,
    summary,
    unknown_sources,
    verdict,
)

REDUCED = [
    ("timm", "deit_tiny_distilled_patch16_224", "static"),
    ("timm", "cait_xxs24_224", "dynamic"),
    ("transformers", "swin", "static"),
    ("transformers", "dinov3_vit", "dynamic"),
    ("transformers", "vit_mae", "dynamic"),
    ("transformers", "data2vec-vision", "static"),
    ("transformers", "beit", "dynamic"),
    ("transformers", "clip-text", "static"),
    ("transformers", "levit", "static"),
    ("torchvision", "small_vit", "static"),
    ("torchvision", "small_swin", "native"),
]


@pytest.fixture(scope="module")
def libraries() -> Callable[[str], Library]:
    known: dict[str, Library] = {}
    return lambda name: known.setdefault(name, open_library(name))


@pytest.mark.parametrize(("library", "name", "mode"), REDUCED)
@pytest.mark.filterwarnings("default")
def test_right_or_refused_as_listed(
    library: str, name: str, mode: str, libraries: Callable[[str], Library]
) -> None:
    """Equal to the library in both engines; a refusal that is not on the list fails."""
    cell = run_cell(libraries(library), name, mode)
    listed = read_refusals()
    patterns = [p for e in listed if e.library == library and mode in e.modes for p in e.names]
    expected = "refused" if any(fnmatch(name, pattern) for pattern in patterns) else "right"
    for engine in ENGINES:
        assert verdict(cell, engine, listed) == expected, (engine, cell)


@pytest.mark.filterwarnings("default")
def test_cells_notice_positions_of_another_grid(
    libraries: Callable[[str], Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are drawn so that a table of the wrong rows is far outside the limit."""
    import torch
    from torch.nn.functional import interpolate

    from vitpe_deploy.sources import timm_model

    def nearest(call: Any) -> torch.Tensor:
        return interpolate(call.table, size=call.size, mode="nearest")

    monkeypatch.setattr(timm_model, "torch_unchanged", nearest)
    cell = run_cell(libraries("timm"), "vit_tiny_patch16_224", "static")
    assert cell.problem is None
    assert min(cell.worst(engine) or 0.0 for engine in ENGINES) > 1e-2
    assert verdict(cell, "openvino", ()) == "wrong"


RIGHT = Cell("timm", "a", "static", {e: {"96x160": 1e-6} for e in ENGINES}, 1.0)
WRONG = Cell("timm", "b", "static", {"onnxruntime": {"8x8": 1e-6}, "openvino": {"8x8": 3e-2}}, 1.0)
REFUSED = Cell("timm", "c_224", "static", refusal="no rule: pos_embed is small")
CRASHED = Cell("timm", "d", "native", problem="exit -11: no output")
SQUARE = Cell("timm", "c_5", "static", {e: {"8x8": 1e-6} for e in ENGINES}, 1.0, "pos_embed is")
ENTRY = Refusal("timm", ("c_*",), ("static",), "pos_embed is", "timm/a.py:1", "x", "Why.")


def test_verdicts_and_percentage() -> None:
    cells = [RIGHT, WRONG, REFUSED, CRASHED, SQUARE]
    counts = summary(cells, [ENTRY])
    assert counts == {
        "right": 3, "wrong": 1, "refused": 4, "unlisted": 0, "crashed": 2, "percent": 50.0,
    }  # fmt: skip
    gap = Refusal(**{**asdict(ENTRY), "library_runs": True})
    assert summary(cells, [gap])["percent"] == 30.0
    assert summary(cells, [])["unlisted"] == 4
    nan = Cell("timm", "e", "native", {e: {"8x8": float("nan")} for e in ENGINES}, 1.0)
    assert verdict(nan, "openvino", []) == "wrong"
    wrong_square = Cell(**{**asdict(SQUARE), "max_rel": {e: {"8x8": 1e-3} for e in ENGINES}})
    assert verdict(wrong_square, "openvino", [ENTRY]) == "wrong"
    text = report(cells, [ENTRY])
    assert "| b |  | 1e-06 / 3e-02 WRONG (1.0 s) |  |" in text
    assert "| c_5 |  | refused; square 1e-06 / 1e-06 (1.0 s) |  |" in text
    assert "CRASH exit -11" in text
    assert "| c_224, c_5 | static | Why. | `timm/a.py:1` |" in text


def test_an_entry_explains_its_own_message_alone() -> None:
    assert explained(REFUSED, [ENTRY]) is ENTRY
    other = {**asdict(REFUSED), "refusal": "the weights are damaged"}
    assert explained(Cell(**other), [ENTRY]) is None
    assert explained(Cell(**{**asdict(REFUSED), "mode": "native"}), [ENTRY]) is None
    assert explained(Cell(**{**asdict(REFUSED), "library": "transformers"}), [ENTRY]) is None


@pytest.mark.parametrize(
    ("change", "code"),
    [({}, 0), ({"refusal": "no reason"}, 1), ({"max_rel": {e: {"8x8": 1.0} for e in ENGINES}}, 1)],
)  # fmt: skip
def test_exit_code(
    change: dict[str, Any], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells of the file are not run again; the last line of a cell counts."""
    path = tmp_path / "cells.jsonl"
    name = "vit_tiny_patch16_224"
    good = {**asdict(RIGHT), "name": name}
    cells = [{**good, "mode": m, **(change if m == "dynamic" else {})} for m in MODES]
    path.write_text("".join(json.dumps(c) + "\n" for c in [{**good, "problem": "old"}, *cells]))
    arguments = ["--library", "timm", "--only", name, "--results", str(path)]
    assert coverage.main(arguments) == code
    assert f"| {name} | 1e-06 / 1e-06 (1.0 s) |" in capsys.readouterr().out


_CHILD = """
import json, sys, time
for line in sys.stdin:
    library, name, mode = json.loads(line)
    if name == "dies":
        sys.exit("killed by a test")
    if name == "sleeps":
        time.sleep(60)
    print(json.dumps({"library": library, "name": name, "mode": mode, "export_s": 1.0}), flush=True)
"""


def test_a_cell_that_crashed_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cells.jsonl"
    name = "vit_tiny_patch16_224"
    crashed = {**asdict(RIGHT), "name": name, "problem": "exit 1"}
    path.write_text(json.dumps(crashed) + "\n")
    asked: list[tuple[str, str, str]] = []

    def again(_command: object, keys: list[tuple[str, str, str]], limit_s: float) -> list[Cell]:
        asked.extend(keys)
        return [Cell(*key, problem="exit 2") for key in keys]

    monkeypatch.setattr(coverage, "run_cells", again)
    arguments = ["--library", "timm", "--only", name, "--modes", "static", "--results", str(path)]
    assert coverage.main(arguments) == 1
    assert asked == [("timm", name, "static")]
    assert "CRASH exit 2" in capsys.readouterr().out
    assert len(path.read_text().splitlines()) == 2


def test_a_crash_costs_one_cell() -> None:
    names = ["a", "dies", "b", "sleeps", "c"]
    keys = [("timm", name, "native") for name in names]
    cells = list(run_cells([sys.executable, "-c", _CHILD], keys, limit_s=3.0))
    assert [c.name for c in cells] == names
    assert [c.problem for c in cells] == [
        None, "exit 1: killed by a test", None, "over 3 s", None,
    ]  # fmt: skip


def test_the_list_names_lines_of_the_libraries() -> None:
    packages: dict[str, Path] = {}
    for library in LIBRARIES:
        spec = find_spec(library)
        assert spec is not None
        assert spec.origin is not None
        packages[library] = Path(spec.origin).parents[1]
    listed = read_refusals()
    assert unknown_sources(listed, packages) == []
    assert all(len(entry.reason) > 40 for entry in listed)
    moved = Refusal(**{**asdict(listed[0]), "source": "timm/__init__.py:1"})
    assert unknown_sources([moved], packages)


def test_every_entry_is_about_a_family_of_the_table(libraries: Callable[[str], Library]) -> None:
    for entry in read_refusals():
        library = libraries(entry.library)
        names = {*library.names(), *library.names(others=True)}
        known = [Cell(entry.library, n, entry.modes[0], refusal=entry.says) for n in names]
        assert any(map(entry.explains, known)), entry
