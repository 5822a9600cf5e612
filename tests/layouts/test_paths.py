"""After files were moved, no part of a report names them where they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitpe_deploy.layouts.repository import lay_out
from vitpe_deploy.manifest import Manifest, manifest_path, read_manifest
from vitpe_deploy.request import ExportRequest
from vitpe_deploy.results import (
    ArtifactRecord,
    CandidateRecord,
    ExportReport,
    LayerRow,
    LayerVerdict,
    ParityRow,
    PassRecord,
    Steps,
    renamed,
)

OLD, NEW = "out/x.onnx", "out/x/1/x.onnx"


def report() -> ExportReport:
    candidate = CandidateRecord(
        artifact=OLD, method="static", runtime="onnxruntime", latency_ms=1.0, size_bytes=1,
        agreement=1.0, criterion="top1", chosen=True,
    )  # fmt: skip
    row = LayerRow(
        artifact=OLD, runtime="onnxruntime", resolution=(64, 64), block=0, max_abs=0.0,
        max_rel=0.0, limit=1e-4, passed=True,
    )  # fmt: skip
    parity = ParityRow(
        artifact=OLD, runtime="onnxruntime", device="CPU", precision_executed="f32",
        resolution=(64, 64), batch=1, output="logits", max_abs=0.0, max_rel=0.0, cosine=1.0,
        top1_agreement=1.0, limit=1e-4, limit_needed=0.0, passed=True, inputs=8,
    )  # fmt: skip
    return ExportReport(
        model="m",
        encoding=None,
        resample_rule=None,
        weights="random",
        artifacts=(),
        parity=(parity,),
        layers=(
            LayerVerdict(
                artifact=OLD, runtime="onnxruntime", resolution=(64, 64),
                first_failing_block=None, rows=(row,),
            ),
        ),
        passes=(PassRecord(artifact="x.onnx", name="p", changed=1),),
        candidates=(candidate,),
        steps_s=Steps(),
        verdict="passed",
    )  # fmt: skip


def test_every_record_follows_its_file() -> None:
    moved = renamed(report(), {OLD: NEW})
    assert OLD in report().model_dump_json()
    assert f'"{OLD}"' not in moved.model_dump_json()
    assert moved.candidates[0].artifact == moved.layers[0].rows[0].artifact == NEW
    assert moved.passes == report().passes
    assert moved.steps_s == report().steps_s
    assert renamed(moved, {NEW: OLD}) == report()


def test_manifest_that_moves_along_names_the_file_alone(
    manifest: Callable[..., Manifest], tmp_path: Path
) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(b"model")
    here = renamed(report(), {OLD: str(path)})
    written = manifest(files=(path.name,), candidates=here.candidates, layers=here.layers)
    manifest_path(path).write_text(written.as_json())
    record = ArtifactRecord(
        path=str(path), format="onnx", precision="int8", resolution=(64, 96), dynamic="none",
        target="ort", opset=20, size_bytes=5, sha256="", nodes=1,
    )  # fmt: skip
    whole = here.model_copy(update={"artifacts": (record,)})
    moved = lay_out(ExportRequest(layout="triton", output_dir=tmp_path), whole)
    final = tmp_path / "x" / "1" / "x.onnx"
    assert moved.artifacts[0].path == moved.candidates[0].artifact == str(final)
    found = read_manifest(final)
    assert found.candidates[0].artifact == found.layers[0].rows[0].artifact == "x.onnx"
    assert found == renamed(written, {str(path): "x.onnx"})
    assert not path.exists()
