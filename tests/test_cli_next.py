"""The commands to paste next: two, and none that was just run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitpe_deploy import cli_next
from vitpe_deploy.cli_next import after_export, after_verify
from vitpe_deploy.results import (
    ArtifactRecord,
    ExportReport,
    LayerVerdict,
    ParityRow,
    Steps,
    VerifyReport,
)

BENCH = "vitpe-bench m.onnx --runtime ort,openvino"
BUNDLE = "vitpe-verify m.onnx --bundle"
LAYERS = "vitpe-verify m.onnx --layers"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_next, "_has_layers", lambda path: path == "m.onnx")


def row(runtime: str, *, passed: bool = True, needed: float | None = 1e-6) -> ParityRow:
    return ParityRow(
        artifact="m.onnx", runtime=runtime, device="CPU", precision_executed="f32",
        resolution=(64, 64), batch=1, output="logits", max_abs=needed, max_rel=needed, cosine=1.0,
        top1_agreement=1.0, limit=1e-4, limit_needed=needed, passed=passed, inputs=4,
    )  # fmt: skip


def rows(**options: Any) -> tuple[ParityRow, ...]:
    return row("onnxruntime", **options), row("openvino", **options)


def layers() -> tuple[LayerVerdict, ...]:
    return (
        LayerVerdict(
            artifact="m.onnx", runtime="openvino", resolution=(64, 64), first_failing_block=None
        ),
    )


def exported(
    path: str = "m.onnx", verdict: str = "passed", parity: Any = None, **options: Any
) -> list[str]:
    record = ArtifactRecord(
        path=path, format="onnx", precision="fp32", resolution=(64, 64), dynamic="none",
        target="ort", opset=20, size_bytes=1, sha256="", nodes=1,
    )  # fmt: skip
    report = ExportReport(
        model="m", encoding=None, resample_rule=None, weights="random", artifacts=(record,),
        parity=rows() if parity is None else parity, passes=(), steps_s=Steps(),
        verdict=verdict, **options,
    )  # fmt: skip
    return commands(after_export(report))


def verified(
    path: str = "m.onnx", verdict: str = "passed", parity: Any = None, **options: Any
) -> list[str]:
    bundle = path.endswith(".zip")
    report = VerifyReport(
        artifact=path, model="m", reference="stored" if bundle else "pytorch",
        parity=rows() if parity is None else parity, verdict=verdict, **options,
    )  # fmt: skip
    return commands(after_verify(report, bundle=bundle))


def commands(lines: list[str]) -> list[str]:
    assert [line[:6] for line in lines] == ["Next: ", "      "][: len(lines)]
    return [line[6:] for line in lines]


def test_after_an_export() -> None:
    assert exported() == [BENCH, BUNDLE]
    assert exported(parity=(row("onnxruntime"),)) == ["vitpe-bench m.onnx", BUNDLE]
    assert exported(verdict="unverified", parity=()) == [
        "vitpe-verify m.onnx", "vitpe-bench m.onnx",
    ]  # fmt: skip
    assert exported("a b.onnx")[1] == "vitpe-verify 'a b.onnx' --bundle"


def test_after_an_export_of_several_files() -> None:
    buckets, pair = "out/m.onnx.buckets.json", "out/m.onnx.pair.json"
    assert exported(indexes=(buckets,)) == [
        f"vitpe-bench {buckets} --runtime ort,openvino", f"vitpe-run {buckets} IMAGE",
    ]  # fmt: skip
    assert exported(indexes=(buckets,), verdict="unverified")[0] == f"vitpe-verify {buckets}"
    assert exported(indexes=(pair,)) == [f"vitpe-run {pair} IMAGE --prompt TEXT", BENCH]


def test_after_a_verification() -> None:
    assert verified() == [LAYERS, BUNDLE]
    assert verified(layers=layers()) == [BUNDLE, BENCH]
    assert verified("other.onnx")[0] == "vitpe-verify other.onnx --bundle"
    buckets = "m.onnx.buckets.json"
    assert verified(buckets) == [
        f"vitpe-bench {buckets} --runtime ort,openvino", f"vitpe-run {buckets} IMAGE",
    ]  # fmt: skip


def test_after_a_bundle_its_file_is_timed_where_it_is() -> None:
    assert verified("m.onnx.bundle.zip") == ["vitpe-inspect m.onnx.bundle.zip"]
    Path("m.onnx").touch()
    assert verified("m.onnx.bundle.zip") == ["vitpe-inspect m.onnx.bundle.zip", BENCH]


def test_after_a_failure() -> None:
    close = rows(passed=False, needed=2e-4)
    looser = "vitpe-verify m.onnx --rtol 2.1e-04"
    assert exported(verdict="failed", parity=close) == [LAYERS, looser]
    assert verified(verdict="failed", parity=close) == [LAYERS, looser]
    inspect = "vitpe-inspect m.onnx"
    assert verified(verdict="failed", parity=close, layers=layers()) == [looser, inspect]
    far = rows(passed=False, needed=None)
    assert verified(verdict="failed", parity=far) == [LAYERS, inspect]
    assert verified(verdict="failed", parity=far, layers=layers()) == [inspect]
