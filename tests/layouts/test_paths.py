"""After files were moved, no part of a report names them where they were."""

from __future__ import annotations

from vitpe_deploy.results import (
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
