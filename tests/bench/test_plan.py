"""Rows that a plan has, and what is refused because it would have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vitpe_deploy.bench.plan import BenchOptions, make_plan
from vitpe_deploy.errors import UsageError
from vitpe_deploy.manifest import Manifest, manifest_path


@pytest.fixture
def files(manifest: Callable[..., Manifest], tmp_path: Path) -> tuple[Path, Path]:
    """One ONNX file and one IR, as far as planning looks at them."""
    found = []
    for name, kind in (("a.onnx", "onnx"), ("b.xml", "openvino")):
        path = tmp_path / name
        path.write_bytes(b"")
        manifest_path(path).write_text(manifest(files=(name,), format=kind).as_json())
        found.append(path)
    return found[0], found[1]


def test_engine_that_can_run_none_of_the_files_is_refused(files: tuple[Path, Path]) -> None:
    onnx, ir = files
    both = BenchOptions((onnx, ir), runtimes=("ort", "openvino"))
    rows = [(row.artifact.path.name, row.runtime) for group in make_plan(both) for row in group]
    assert rows == [("a.onnx", "onnxruntime"), ("a.onnx", "openvino"), ("b.xml", "openvino")]
    with pytest.raises(UsageError, match="--runtime onnxruntime can run none of the files"):
        make_plan(BenchOptions((ir,), runtimes=("ort", "openvino")))


def test_precisions_are_for_the_engines_that_take_them(files: tuple[Path, Path]) -> None:
    options = BenchOptions(files[:1], precisions=("f32", "bf16"))
    rows = [(row.runtime, row.precision) for group in make_plan(options) for row in group]
    assert rows == [("onnxruntime", "f32"), ("openvino", "f32"), ("openvino", "bf16")]
    with pytest.raises(UsageError, match="no row takes --precision bf16"):
        make_plan(BenchOptions(files[:1], precisions=("f32", "bf16"), runtimes=("ort",)))
