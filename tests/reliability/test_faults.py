"""Faults while an export writes: ``benchmarks/faults.py`` in a reduced form."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vitpe_deploy.files import StagedFiles


@pytest.fixture(scope="module")
def workshop(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("fault_workshop")


@pytest.fixture(scope="module")
def shop(workshop: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return workshop.Workshop(tmp_path_factory.mktemp("faults"))


def test_every_file_differs_between_the_sets(shop: Any) -> None:
    """Otherwise a mixture could not be told from a whole set."""
    assert len(shop.old) == 5
    assert shop.old.keys() == shop.new.keys()
    differing = [name for name in shop.old if shop.old[name] != shop.new[name]]
    assert {".bin", ".json", ".onnx"} <= {Path(name).suffix for name in differing}
    assert shop.operations > 10


def test_kills_leave_the_old_set_or_the_new(script: Callable[[str], ModuleType], shop: Any) -> None:
    """Two of each signal, one by the clock and one at an operation on the folder."""
    counts, failures = script("faults").kills(shop, 6, seed=3)
    assert failures == []
    assert sum(counts.values()) == 6


def test_other_faults_leave_the_old_set_or_the_new(
    script: Callable[[str], ModuleType], shop: Any
) -> None:
    kinds = script("fault_kinds")
    tried = {
        "full disk": kinds.full_disk(shop, 2),
        "limit": kinds.full_by_limit(shop, 1),
        "read-only": kinds.read_only(shop),
        "no permission": kinds.no_permission(shop),
        "another file system": kinds.other_file_system(shop),
        "two at once": kinds.two_at_once(shop, 1),
        "folder removed": kinds.folder_removed(shop, 1, seed=0),
    }
    assert {name: found for name, found in tried.items() if found} == {}
    assert tried["no permission"] == []  # None would mean that it was not tried


def test_mixtures_and_strays_are_noticed(workshop: ModuleType, shop: Any) -> None:
    folder = shop.fresh(shop.old)
    assert shop.left(folder) == "old"
    name = next(n for n in shop.old if n.endswith(".onnx"))
    (folder / name).write_bytes(shop.new[name])
    assert shop.left(folder).startswith("a mixture: ")
    (folder / name).write_bytes(shop.old[name][:-1])
    assert f"{name} half" in shop.left(folder)
    workshop.fill(folder, shop.old)
    with StagedFiles(folder):  # a writer that is still at work: its folder stays
        assert shop.left(folder).startswith("left over: .vitpe-tmp-")
    assert shop.left(folder) == "old"


def test_unclear_ends_are_noticed(workshop: ModuleType, tmp_path: Path) -> None:
    export = workshop.Export(None, None, tmp_path / "log")

    def problem(code: int | None, said: str) -> str:
        export.log.write_text(said)
        found = export.problem(code, (0, 1, -signal.SIGTERM))
        assert isinstance(found, str)
        return found

    assert problem(0, "") == ""
    assert problem(1, "error: no room\n  hint: make some\n") == ""
    assert problem(None, "").startswith("did not end")
    assert problem(3, "").startswith("exit code 3")
    assert problem(1, "error: x\n  hint: This is a defect").startswith("not a clear error")
    assert problem(1, "Traceback (most recent call last)").startswith("not a clear error")
    assert problem(1, "").startswith("not one error")
