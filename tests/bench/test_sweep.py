"""What models are exported as before they are timed: where to, and what is kept of earlier runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitpe_deploy.bench import sweep
from vitpe_deploy.bench.sweep import PlannedExport, Sweep, plan_exports
from vitpe_deploy.files import sha256_of
from vitpe_deploy.manifest import Manifest, manifest_path
from vitpe_deploy.request import Resolution

SIZES = (Resolution(32, 32), Resolution(48, 48))


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """``vitpe-export`` as it answers to a dry run; gives what it was asked for."""
    found: list[list[str]] = []

    def ask(flags: Sequence[str]) -> dict[str, Any]:
        found.append(list(flags))
        folder = Path(flags[flags.index("-o") + 1])
        sizes = [word for flag, word in itertools.pairwise(flags) if flag == "--res"]
        return {
            "files": [
                {"paths": [str(folder / f"m-{s}-fp32.onnx")], "resolution": [int(s), int(s)]}
                for s in (size.partition("x")[0] for size in sizes or ["64"])
            ]
        }

    monkeypatch.setattr(sweep, "ask_export", ask)
    return found


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., list[PlannedExport]]:
    def plan(sizes: Sequence[Resolution] = SIZES, **changes: Any) -> list[PlannedExport]:
        whole = Sweep(models=("m",), precisions=("int8",), calibration="random", folder=tmp_path)
        return list(plan_exports(replace(whole, **changes), sizes, ()))

    return plan


def folder(planned: Sequence[PlannedExport]) -> Path:
    (found,) = {one.path.parent for one in planned}
    return found


def test_folder_stands_for_everything_the_file_is_made_from(
    planned: Callable[..., list[PlannedExport]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder(planned())
    assert first.parent == tmp_path / "bench-exports"
    assert folder(planned()) == first
    assert folder(planned(SIZES[:1])) == first  # sizes stand in the names
    pictures = tmp_path / "pictures"
    (pictures / "below").mkdir(parents=True)
    (pictures / "below" / "a.png").write_bytes(b"1")
    folders = [
        first,
        folder(planned(kwargs=("depth=2",))),
        folder(planned(precisions=("int8-weights",))),
        folder(planned(encodings=("rope-2d",))),
        folder(planned(calibration=str(pictures))),
    ]
    (pictures / "below" / "a.png").write_bytes(b"another")
    folders.append(folder(planned(calibration=str(pictures))))
    monkeypatch.setattr(sweep, "__version__", "0.0.0")
    folders.append(folder(planned()))
    monkeypatch.setattr(sweep, "installed", lambda name: "0.0.0")
    folders.append(folder(planned()))
    assert len(set(folders)) == len(folders)


def test_code_of_the_users_own_model_counts(
    planned: Callable[..., list[PlannedExport]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "mymodel.py"
    module.write_text("width = 1\n")
    before = folder(planned(models=("py:mymodel:build",)))
    module.write_text("width = 22\n")
    assert folder(planned(models=("py:mymodel:build",))) != before


def test_kept_are_whole_files_that_nobody_changed(
    planned: Callable[..., list[PlannedExport]],
    manifest: Callable[..., Manifest],
    asked: list[list[str]],
) -> None:
    small, large = planned()
    assert small.kept() is None
    small.path.parent.mkdir(parents=True)
    small.path.write_bytes(b"model")
    assert small.kept() is None  # no manifest
    written = manifest(files=(small.path.name,), sha256=sha256_of(small.path))
    manifest_path(small.path).write_text(written.as_json())
    assert small.kept() == written
    assert large.command()[-4:] == ["--res", "48x48", "-o", str(large.path.parent)]
    asked.clear()
    small.carry_out()
    assert asked == []
    large.carry_out()
    assert asked == [[*large.command(), "--force"]]
    assert "--no-verify" in asked[0]
    small.path.write_bytes(b"another")
    assert small.kept() is None
    manifest_path(small.path).write_text(json.dumps({}))
    assert small.kept() is None
