"""Exports are written whole or not at all: killed at every step, disk full, folders that vanish."""
# ruff: noqa: PT012  what happens inside the block is what these tests are about

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.files import StagedFiles, finish_interrupted

SETS = {"old": "old " * 50, "new": "new " * 70}
NAMES = ("model.onnx", "model.onnx.data", "model.onnx.manifest.json")

WRITER = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from vitpe_deploy.files import StagedFiles

    folder, text, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    last = int(sys.argv[4])
    seen = 0

    def kill_at_the_last(event, arguments):
        # Everything that a process does to the file system raises one of these events.
        global seen
        if event == "open" or event.startswith(("os.", "shutil.", "tempfile.")):
            if any(str(folder) in str(a) for a in arguments):
                seen += 1
                if seen == last:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill_at_the_last)
    with StagedFiles(folder) as staging:
        for name in names:
            staging.path(name).write_text(text)
        staging.commit()
    print(seen)
    """
)


def _write(folder: Path, text: str, *, killed_at: int = 0) -> subprocess.CompletedProcess[str]:
    """Write the set in a process of its own, killed at a step of the file system."""
    return subprocess.run(
        [sys.executable, "-c", WRITER, str(folder), text, ",".join(NAMES), str(killed_at)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent.parent,
    )


def _contents(folder: Path) -> set[str]:
    return {(folder / name).read_text() for name in NAMES if (folder / name).exists()}


def test_killed_at_every_step_leaves_the_old_set_or_the_new(tmp_path: Path) -> None:
    _write(tmp_path / "count", SETS["old"])
    steps = int(_write(tmp_path / "count", SETS["new"]).stdout)
    assert steps > 12  # folder, lock, three files, journal, three moves, clean-up
    after = []
    for step in range(1, steps + 1):
        folder = tmp_path / f"step{step}"
        assert _write(folder, SETS["old"]).returncode == 0
        assert _write(folder, SETS["new"], killed_at=step).returncode == -signal.SIGKILL
        finish_interrupted(folder)  # what every reader does first
        found = _contents(folder)
        assert found in ({SETS["old"]}, {SETS["new"]}), f"half an export after step {step}"
        assert sum((folder / name).exists() for name in NAMES) == len(NAMES)
        after.append(found.pop())
        with StagedFiles(folder):  # what every writer does
            pass
        assert sorted(p.name for p in folder.iterdir()) == sorted(NAMES)
    # Both happen, and once the new set is there it stays.
    assert after == sorted(after, reverse=True)
    assert set(after) == set(SETS.values())


INTERRUPTED = textwrap.dedent(
    """
    import json, os, signal, sys
    from pathlib import Path
    from vitpe_deploy.files import StagedFiles

    root, old, new, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].split(",")
    seen, last, folder, results = 0, 0, root, []

    def interrupt_at_the_last(event, arguments):
        global seen
        if event == "open" or event.startswith(("os.", "shutil.", "tempfile.")):
            if any(str(folder) in str(a) for a in arguments):
                seen += 1
                if seen == last:
                    os.kill(os.getpid(), signal.SIGINT)

    def write(text):
        with StagedFiles(folder) as staging:
            for name in names:
                staging.path(name).write_text(text)
            staging.commit()

    # Jobs in the background ignore Ctrl-C, and so does what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.addaudithook(interrupt_at_the_last)
    for step in range(1, 100):
        folder, last = root / f"step{step}", 0
        write(old)
        seen, last = 0, step
        try:
            write(new)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        if seen < step:
            break
        last = 0
        found = {p.name: p.read_text() if p.is_file() else None for p in folder.iterdir()}
        results.append([interrupted, found])
    print(json.dumps(results))
    """
)


def test_interrupted_at_every_step_leaves_the_old_set_or_the_new(tmp_path: Path) -> None:
    """Ctrl-C, and SIGTERM which unwinds alike: also while the files are moved."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path), *SETS.values(), ",".join(NAMES)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) > 12
    assert all(interrupted for interrupted, _ in results[:-3])  # rmtree swallows none either
    texts = []
    for step, (_, found) in enumerate(results, start=1):
        sets = {name: text for name, text in found.items() if name in NAMES}
        assert set(sets) == set(NAMES), step
        assert len(set(sets.values())) == 1, f"half an export after step {step}"
        texts.append(sets[NAMES[0]])
        strays = set(found) - set(NAMES)
        assert all(name.startswith(".vitpe-tmp-") for name in strays), step
        if strays:  # interrupted while it cleaned up: the next writer does
            with StagedFiles(tmp_path / f"step{step}"):
                pass
        assert sorted(p.name for p in (tmp_path / f"step{step}").iterdir()) == sorted(NAMES)
    assert texts == sorted(texts, reverse=True)
    assert set(texts) == set(SETS.values())


def test_files_that_came_in_the_meantime_are_not_replaced_unasked(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="b exists already"),
        StagedFiles(tmp_path) as staging,
    ):
        for name in ("a", "b"):
            staging.path(name).write_text("mine")
        (tmp_path / "b").write_text("theirs")
        staging.commit(replace=False)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("b", "theirs")]


def test_folder_in_the_way_is_found_before_anything_moves(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text("old")
    with pytest.raises(ArtifactError, match="in the way"), StagedFiles(tmp_path) as staging:
        for name in ("a", "b"):
            staging.path(name).write_text("new")
        staging.commit()
    assert (tmp_path / "a").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_live_writers_are_left_alone(tmp_path: Path) -> None:
    with StagedFiles(tmp_path) as first:
        first.path("a").write_text("first")
        with StagedFiles(tmp_path) as second:
            second.path("a").write_text("second")
            second.commit()
        finish_interrupted(tmp_path)
        assert (tmp_path / "a").read_text() == "second"
        first.commit()
    assert (tmp_path / "a").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_journal_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    staging = folder / ".vitpe-tmp-x"
    staging.mkdir(parents=True)
    (staging / ".lock").touch()
    (staging / "evil").write_text("evil")
    (staging / ".commit.json").write_text('["../evil", "sub/evil", "..", "", 7, "evil"]')
    finish_interrupted(folder)
    assert (folder / "evil").read_text() == "evil"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    assert [p.name for p in folder.iterdir()] == ["evil"]


@pytest.mark.parametrize("journal", ["", "{", '{"a": 1}', "null", "[" * 5000, "\x00\xff"])
def test_damaged_journal_moves_nothing(tmp_path: Path, journal: str) -> None:
    staging = tmp_path / ".vitpe-tmp-x"
    staging.mkdir()
    (staging / ".lock").touch()
    (staging / "a").write_text("half")
    (staging / ".commit.json").write_text(journal, encoding="latin-1")
    finish_interrupted(tmp_path)
    with StagedFiles(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_folder_that_was_made_goes_when_nothing_came_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with pytest.raises(RuntimeError, match="given up"), StagedFiles(folder) as staging:
        staging.path("x").write_text("half")
        raise RuntimeError("given up")
    assert not folder.exists()


def test_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails with EFBIG
    try:
        with (
            pytest.raises(ArtifactError, match=f"cannot write to {tmp_path}: File too large"),
            StagedFiles(tmp_path) as staging,
        ):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
            staging.path("a").write_bytes(b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


def test_full_disk_that_a_library_does_not_name(tmp_path: Path) -> None:
    """numpy's own writing says how much is missing and not why."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with (
            pytest.raises(ArtifactError, match="File too large"),
            StagedFiles(tmp_path) as staging,
        ):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
            with staging.path("a").open("wb") as file:
                np.zeros(5000).tofile(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_says_make_room(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught, StagedFiles(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "No space left on device" in caught.value.message
    assert caught.value.hint.startswith("Make room")


def test_folder_removed_half_way(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with (
        pytest.raises(ArtifactError, match="was removed on the way"),
        StagedFiles(folder) as staging,
    ):
        staging.path("a").write_text("x")
        shutil.rmtree(folder)
        staging.commit()
    with pytest.raises(ArtifactError, match="cannot write to"), StagedFiles(folder) as staging:
        shutil.rmtree(folder)
        staging.path("a").write_text("x")


def test_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ArtifactError, match="cannot write to"), StagedFiles(tmp_path / "out"):
        pass


def test_files_in_sub_folders_appear_with_the_others(tmp_path: Path) -> None:
    with StagedFiles(tmp_path / "out") as staging:
        staging.path("model/1/model.onnx").write_text("weights")
        staging.path("config.json").write_text("{}")
        assert not (tmp_path / "out" / "model").exists()
        staging.commit()
    assert (tmp_path / "out" / "model" / "1" / "model.onnx").read_text() == "weights"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "model"]


def test_nothing_is_written_through_a_linked_sub_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model").symlink_to(tmp_path / "elsewhere")
    with StagedFiles(tmp_path / "out") as staging:
        staging.path("model/x").write_text("")
        with pytest.raises(ArtifactError, match="behind a link"):
            staging.commit()
    # The journal of a stranger's archive does not lead there either.
    stale = tmp_path / "out" / ".vitpe-tmp-x"
    (stale / "model").mkdir(parents=True)
    (stale / "model" / "x").write_text("")
    (stale / ".commit.json").write_text('["model/x", "../x", "/x", "a/../../x"]')
    finish_interrupted(tmp_path / "out")
    assert not list((tmp_path / "elsewhere").iterdir())
    assert not (tmp_path / "x").exists()
