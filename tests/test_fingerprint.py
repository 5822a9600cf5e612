"""What a command line reads: which words name something, and what counts as a change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vitpe_deploy.fingerprint import fingerprint, inputs_of


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_words_that_name_something() -> None:
    Path("model").mkdir()
    Path("w.pt").write_bytes(b"1")
    Path("mine.py").write_text("x = 1\n")
    words = ["--res", "224", "hf:model", "checkpoint=w.pt", "py:mine:build", "py:nowhere:build"]
    assert list(inputs_of(words)) == ["hf:model", "checkpoint=w.pt", "py:mine:build"]
    assert inputs_of(["x" * 5000, "", ":", "=", "\0"]) == {}


def test_file_counts_by_content_and_not_by_time() -> None:
    file = Path("w.pt")
    file.write_bytes(b"1")
    first = fingerprint(file)
    os.utime(file, ns=(1, 1))
    assert fingerprint(file) == first
    file.write_bytes(b"2")
    assert fingerprint(file) != first


@pytest.mark.parametrize(
    ("main", "other"),
    [
        ("a.onnx", "a.onnx.data"),
        ("a.onnx", "a.onnx.manifest.json"),
        ("a.xml", "a.bin"),
        ("a[1].onnx", "a[1].onnx.data"),
        ("model.safetensors.index.json", "model-00001-of-00001.safetensors"),
        ("m.onnx.buckets.json", "m-32x32.onnx.manifest.json"),
    ],
)
def test_what_belongs_to_a_file_counts(main: str, other: str) -> None:
    text = '{"a": "model-00001-of-00001.safetensors", "file": "m-32x32.onnx"}'
    Path(main).write_text(text)
    Path("m-32x32.onnx").write_bytes(b"")
    Path(other).write_bytes(b"1")
    first = fingerprint(Path(main))
    Path("another.onnx").write_bytes(b"")
    assert fingerprint(Path(main)) == first
    Path(other).write_bytes(b"2")
    assert fingerprint(Path(main)) != first


def test_folder_counts_by_all_files_below_but_those_set_apart() -> None:
    below = Path("photos/cats")
    below.mkdir(parents=True)
    out = Path("photos/out")
    out.mkdir()
    first = fingerprint(Path("photos"), apart_from=[out])
    (out / "report.json").write_text("1")
    Path("photos/__pycache__").mkdir()
    Path("photos/__pycache__/x.pyc").write_bytes(b"")
    assert fingerprint(Path("photos"), apart_from=[out]) == first
    assert fingerprint(out, apart_from=[Path("photos")]) != fingerprint(below)  # read, and inside
    (below / "a.png").write_bytes(b"1")
    second = fingerprint(Path("photos"), apart_from=[out])
    assert second != first
    os.utime(below / "a.png", ns=(1, 1))
    assert fingerprint(Path("photos"), apart_from=[out]) != second
