"""``vitpe-bench`` from the command line, on a small trained network."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator
from onnx import numpy_helper
from PIL import Image
from sklearn.datasets import load_digits

import vitpe_deploy
from vitpe_deploy.bench.baseline import against_baseline
from vitpe_deploy.bench.documents import BaselineRow, BenchReport, HarnessRecord, json_schema
from vitpe_deploy.bench.entry import parse_seconds, parse_share
from vitpe_deploy.bench.gemm import gemm_peak_gflops
from vitpe_deploy.bench.markdown import markdown
from vitpe_deploy.bench.overhead import measure_harness
from vitpe_deploy.bench.plan import BenchOptions
from vitpe_deploy.bench.resume import measured_how
from vitpe_deploy.cli import bench_main
from vitpe_deploy.errors import UsageError
from vitpe_deploy.report.html import render
from vitpe_deploy.runtimes.openvino import shared_core

SCHEMA = Path(vitpe_deploy.__file__).parent / "bench" / "bench.schema.json"
QUICK = ("--threads", "1", "--rounds", "4", "--starts", "1", "--iters", "8", "--warmup", "1", "-q")

Bench = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One static and one dynamic file of a trained digits network."""
    folder = tmp_path_factory.mktemp("bench")
    for dynamic in ("none", "all"):
        vitpe_deploy.export(
            "digits-learned-1d", dynamic=dynamic, output_dir=folder, verify=False, threads=1
        )
    return folder


@pytest.fixture(scope="module")
def static(exported: Path) -> Path:
    return next(p for p in exported.glob("*.onnx") if "dyn" not in p.name)


@pytest.fixture(scope="module")
def dynamic(exported: Path) -> Path:
    return next(exported.glob("*dynall*.onnx"))


@pytest.fixture(scope="module")
def peak() -> Callable[[int], float]:
    """The real peak of one thread, measured once for all tests: it takes seconds."""
    measured = functools.cache(gemm_peak_gflops)
    return lambda threads: measured(1)


@pytest.fixture(scope="module")
def harness() -> Callable[[], HarnessRecord]:
    """What measuring really costs, measured once as well."""
    return functools.cache(measure_harness)


@pytest.fixture(autouse=True)
def _measured_once(
    monkeypatch: pytest.MonkeyPatch,
    peak: Callable[[int], float],
    harness: Callable[[], HarnessRecord],
) -> None:
    monkeypatch.setattr("vitpe_deploy.bench.run.gemm_peak_gflops", peak)
    monkeypatch.setattr("vitpe_deploy.bench.run.measure_harness", harness)


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reference, as on a device: its process imports torch, which takes seconds."""
    failed = SimpleNamespace(returncode=1, stderr="PyTorch is not installed here\n")
    monkeypatch.setattr(
        "vitpe_deploy.bench.reference.subprocess", SimpleNamespace(run=lambda *_, **__: failed)
    )


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    """Exit code and the document on stdout."""

    def run(*arguments: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = bench_main([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_shipped_schema_is_that_of_the_documents() -> None:
    assert json.loads(SCHEMA.read_text()) == json_schema()


def test_rows_of_three_engines(bench: Bench, static: Path) -> None:
    code, document = bench(static, "--runtime", "ort,openvino,torch", *QUICK)
    assert code == 0
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    rows = document["results"]
    assert [row["runtime"] for row in rows] == ["onnxruntime", "openvino", "torch"]
    assert [(c["a"], c["b"]) for c in document["comparisons"]] == [
        (rows[0]["id"], rows[1]["id"]),
        (rows[0]["id"], rows[2]["id"]),
        (rows[1]["id"], rows[2]["id"]),
    ]
    peak = document["host"]["gemm_peak_gflops"]
    for row in rows:
        samples = row["samples_ms"]
        assert len(samples) == 8
        assert row["samples_per_round"] == [2, 2, 2, 2]
        assert row["rounds_per_start"] == [4]
        assert row["latency_ms"]["median"] == pytest.approx(np.median(samples))
        assert row["latency_ms"]["p95"] == pytest.approx(np.percentile(samples, 95))
        assert row["throughput_ips"] == pytest.approx(1e3 / np.median(samples))
        assert row["precision_executed"] == "f32"
        assert row["agreement"]["passed"]
        assert row["agreement"]["max_rel"] < 1e-5
        assert row["agreement"]["top1"] == 1.0
        assert row["threads"] == 1
        achieved = row["gflops_per_image"] * row["throughput_ips"]
        assert row["share_of_peak"] == pytest.approx(achieved / peak)
        assert 0 < row["share_of_peak"] < 1
    assert rows[0]["size_bytes"] == static.stat().st_size


def test_wrong_file_is_seen_beside_its_latency(bench: Bench, static: Path, tmp_path: Path) -> None:
    """One weight matrix moved by 5 %: as fast as before, exit code 3."""
    for file in static.parent.glob(f"{static.name}*"):
        shutil.copy(file, tmp_path)
    model = onnx.load(str(tmp_path / static.name))
    largest = max(model.graph.initializer, key=lambda tensor: int(np.prod(tensor.dims)))
    values = numpy_helper.to_array(largest)
    largest.CopyFrom(numpy_helper.from_array(values * np.float32(1.05), largest.name))
    onnx.save(model, str(tmp_path / static.name))
    code, document = bench(tmp_path / static.name, "--runtime", "ort", *QUICK)
    (row,) = document["results"]
    assert code == 3
    assert row["agreement"]["passed"] is False
    assert row["agreement"]["max_rel"] > 1e-3
    assert any("sha256" in text for text in row["warnings"])
    report = BenchReport.model_validate(document)
    assert "**wrong: " in markdown(report)
    assert "1 of 1 row does not agree with PyTorch" in render(report)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Twenty pictures of digits that the network was not trained on, and their classes."""
    folder = tmp_path_factory.mktemp("digits")
    data = load_digits()
    lines = ["file,label"]
    for k in range(20):
        pixels = (data.images[-1 - k] * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC).save(folder / f"{k}.png")
        lines.append(f"{k}.png,{data.target[-1 - k]}")
    labels = folder / "labels.csv"
    labels.write_text("\n".join(lines), encoding="utf-8")
    return folder, labels


def test_right_classes_stand_beside_latency(
    bench: Bench, static: Path, digits: tuple[Path, Path]
) -> None:
    images, labels = digits
    _, document = bench(static, "--images", images, "--labels", labels, "--layers", *QUICK)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    for row in document["results"]:
        assert row["accuracy"]["images"] == 20
        assert row["accuracy"]["top1"] == row["accuracy"]["reference_top1"] >= 0.9
    assert "labels top-1 (PyTorch)" in markdown(BenchReport.model_validate(document))
    assert [v["runtime"] for v in document["layers"]] == ["onnxruntime", "openvino"]
    assert all(len(v["rows"]) == 3 and v["first_failing_block"] is None for v in document["layers"])


@pytest.mark.usefixtures("without_torch")
def test_sweep_over_encodings_exports_what_is_not_there(bench: Bench, tmp_path: Path) -> None:
    small = ("depth=1", "embed_dim=32", "num_heads=2")
    arguments = (
        "vit_tiny_patch16_224", *(w for pair in small for w in ("--model-kwarg", pair)),
        "--pe", "none,rope-2d", "--res", "32,48", "--runtime", "ort", "-o", tmp_path, *QUICK,
    )  # fmt: skip
    code, plan = bench(*arguments, "--dry-run")
    assert code == 0
    assert len(plan["exports"]) == 4
    assert [len(group["rows"]) for group in plan["groups"]] == [2, 2]
    assert not list(tmp_path.iterdir())
    own = tmp_path / Path(plan["exports"][0]["path"]).name
    own.write_bytes(b"somebody's own export of that name")
    code, document = bench(*arguments, "--html", tmp_path / "report.html")
    assert code == 0
    assert own.read_bytes() == b"somebody's own export of that name"
    rows = document["results"]
    assert [row["id"] for row in rows] == [r for group in plan["groups"] for r in group["rows"]]
    assert {(row["encoding"], row["resolution"][0]) for row in rows} == {
        ("none", 32), ("none", 48), ("rope-2d", 32), ("rope-2d", 48),
    }  # fmt: skip
    assert {(c["a"], c["b"]) for c in document["comparisons"]} == {
        tuple(group["rows"]) for group in plan["groups"]
    }
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page == render(BenchReport.model_validate(document))
    code, again = bench(*arguments, "--dry-run")
    assert again["exports"] == []  # they are there now
    assert [g["rows"] for g in again["groups"]] == [g["rows"] for g in plan["groups"]]
    code, shown = bench("--from", tmp_path / "bench.json")
    assert (code, shown) == (0, document)


def test_sweep_of_a_dynamic_file(bench: Bench, dynamic: Path) -> None:
    """Two sizes and two batches are four groups, which are never compared with each other."""
    native = json.loads(dynamic.with_name(dynamic.name + ".manifest.json").read_text())[
        "native_resolution"
    ][0]
    code, document = bench(
        dynamic, "--runtime", "ort", "--res", f"{native},{2 * native}", "--batch", "1,2", *QUICK
    )
    assert code == 0
    found = [(r["resolution"][0], r["batch"]) for r in document["results"]]
    assert sorted(found) == [(native, 1), (native, 2), (2 * native, 1), (2 * native, 2)]
    assert document["comparisons"] == []
    assert all(row["agreement"]["passed"] for row in document["results"])
    small, large = (
        next(r for r in document["results"] if (r["resolution"][0], r["batch"]) == key)
        for key in ((native, 1), (2 * native, 1))
    )
    assert large["gflops_per_image"] > 3.5 * small["gflops_per_image"]


@pytest.mark.usefixtures("without_torch")
def test_throughput_is_a_row_of_its_own(bench: Bench, static: Path) -> None:
    code, document = bench(
        static, "--mode", "latency,throughput", "--rounds", "2", "--min-time", "100ms",
        "--threads", "2", "--warmup", "0", "--starts", "1", "-q",
    )  # fmt: skip
    assert code == 0
    by_mode: dict[str, list[dict[str, Any]]] = {"latency": [], "throughput": []}
    for row in document["results"]:
        by_mode[row["mode"]].append(row)
    assert len(by_mode["latency"]) == len(by_mode["throughput"]) == 2
    for row in by_mode["throughput"]:
        assert row["latency_ms"] is None
        assert row["streams"] == 2
        assert row["throughput_ips"] == pytest.approx(1e3 / np.median(row["samples_ms"]))
    modes = {r["id"]: r["mode"] for r in document["results"]}
    assert all(modes[c["a"]] == modes[c["b"]] for c in document["comparisons"])


def test_c34_npu_refuses_a_dynamic_file_before_anything_is_compiled(
    bench: Bench, dynamic: Path
) -> None:
    code, document = bench(dynamic, "--runtime", "openvino", "--device", "NPU", *QUICK)
    assert (code, document["kind"]) == (2, "unsupported")
    assert "fixed shapes" in document["message"]
    assert "vitpe-export digits-learned-1d --buckets" in document["hint"]


@pytest.mark.usefixtures("without_torch")
def test_device_that_is_not_there_names_those_that_are(bench: Bench, static: Path) -> None:
    code, document = bench(static, "--runtime", "openvino", "--device", "NPU", *QUICK)
    assert (code, document["kind"]) == (1, "device")
    assert "there are: CPU" in document["message"]


@pytest.mark.usefixtures("without_torch")
def test_c29_report_says_the_precision_that_is_executed(bench: Bench, static: Path) -> None:
    """f16 is asked for; the report says what OpenVINO's own compiled model says it executes."""
    config = {"INFERENCE_PRECISION_HINT": "f16"}
    compiled = shared_core().compile_model(str(static), "CPU", config)
    executed = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    _, document = bench(static, "--runtime", "openvino", "--precision", "f16", *QUICK)
    (row,) = document["results"]
    assert (row["precision_asked"], row["precision_executed"]) == ("f16", executed)
    assert (row["share_of_peak"] is None) == (executed != "f32")
    warned = any(f"f16 was asked for, {executed} is executed" in t for t in row["warnings"])
    assert warned == (executed != "f16")


@pytest.mark.usefixtures("without_torch")
def test_interrupted_run_goes_on(bench: Bench, static: Path, tmp_path: Path) -> None:
    arguments = (static, "--runtime", "ort", "-o", tmp_path / "kept", *QUICK)
    _, first = bench(*arguments)
    journal = tmp_path / "kept" / "bench.jsonl"
    whole = journal.read_text()
    row = whole.splitlines()[1]
    journal.write_text(whole + row[: len(row) // 2])  # killed while it wrote another row
    _, second = bench(*arguments)
    assert second["results"] == first["results"]
    assert journal.read_text() == whole
    assert json.loads((tmp_path / "kept" / "bench.json").read_text()) == second
    assert "| onnxruntime CPU | f32 |" in (tmp_path / "kept" / "bench.md").read_text()
    _, third = bench(*arguments, "--force")
    assert third["results"][0]["samples_ms"] != first["results"][0]["samples_ms"]
    code, refused = bench(*arguments, "--rounds", "5")
    assert (code, refused["kind"]) == (2, "usage")
    assert "measured with schedule.rounds 4, now it is 5" in refused["message"]
    label = tmp_path / "photos" / "labels.csv"
    label.parent.mkdir()
    label.write_text("1")
    pictures = BenchOptions((static,), images=label.parent, labels=label)
    before = measured_how(pictures)
    assert measured_how(pictures) == before
    label.write_text("2 and more")
    now = measured_how(pictures)
    assert {key for key in now if now[key] != before[key]} == {
        "content of --images", "content of --labels",
    }  # fmt: skip
    for text in ("{}\n", f"{journal.read_text().splitlines()[0]}\n{{}}\n"):
        journal.write_text(text)
        assert bench(*arguments)[1]["kind"] == "artifact"


@pytest.mark.usefixtures("without_torch")
def test_baseline(bench: Bench, static: Path, tmp_path: Path) -> None:
    """A run against itself made slower and faster by hand, and of another machine or rows."""
    _, document = bench(static, "--runtime", "ort", *QUICK)
    measured = BenchReport.model_validate(document)
    steady = [  # on a quiet machine: within one percent of the median
        row.model_copy(
            update={
                "samples_ms": tuple(
                    float(np.median(row.samples_ms)) * (1 + 0.01 * (k % 2))
                    for k in range(len(row.samples_ms))
                )
            }
        )
        for row in measured.results
    ]
    report = measured.model_copy(update={"results": tuple(steady)})

    def altered(factor: float, **host: object) -> Path:
        rows = [
            row.model_copy(update={"samples_ms": tuple(factor * v for v in row.samples_ms)})
            for row in report.results
        ]
        old = report.model_copy(
            update={"results": tuple(rows), "host": report.host.model_copy(update=host)}
        )
        path = tmp_path / "old.json"
        path.write_text(old.model_dump_json(by_alias=True))
        return path

    def judged(old: Path, limit: float = 0.05) -> BaselineRow:
        then = BenchReport.model_validate_json(old.read_bytes())
        (row,) = against_baseline(report, then, limit)
        return row

    slower = judged(altered(0.2))
    assert slower.ratio_median == pytest.approx(5.0)
    assert slower.regressed
    assert not judged(altered(0.2), limit=20.0).regressed
    assert not judged(altered(1.0)).regressed
    faster = judged(altered(5.0))
    assert faster.ratio_median == pytest.approx(0.2)
    assert not faster.regressed
    run = (static, "--runtime", "ort", *QUICK, "--baseline")
    code, found = bench(*run, altered(0.05))  # 20 times slower, whatever else the machine does
    assert code == 4
    assert found["baseline"][0]["regressed"] is True
    assert bench(*run, altered(20.0))[0] == 0
    for dry in ((), ("--dry-run",)):
        code, error = bench(*run, altered(1.0, cpu="another"), *dry)
        assert (code, error["kind"]) == (2, "usage")
        assert "another host: cpu another" in error["message"]
    assert bench(*run, altered(20.0, cpu="another"), "--cross-host")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--res", "40"), "takes 32x32 alone"),
        (("--batch", "3"), "takes batch 1"),
        (("--mode", "latncy"), "'latncy' is not known"),
        (("--threads", "two"), "'two' is not a number"),
        (("--threads", "0"), "at least 1"),
        (("--min-time", "soon"), "'soon' is not a time"),
        (("--runtime", "ort", "--precision", "f16"), "onnxruntime takes no --precision f16"),
        (("--iters", "3", "--mode", "throughput"), "--iters counts samples of latency"),
        (("--runtime", "ort", "--precision", "f32,bf16"), "no row takes --precision bf16"),
        (("--runtime", "torch", "--device", "GPU"), "--device GPU has no row"),
        (("--runtime", "torch", "--mode", "throughput"), "contradicts --mode throughput"),
        (("--force",), "--force is for --output"),
        (("--max-regression", "1%"), "--max-regression is for --baseline"),
        (("--cross-host",), "--cross-host is for --baseline"),
        (("--fewer-rows",), "--fewer-rows is for --baseline"),
        (("--iters", "3", "--min-time", "1s"), "--iters contradicts --min-time"),
        (("--layers", "--runtime", "torch"), "--layers compares"),
        (("--doctor",), "--doctor looks at the machine alone: WHAT"),
        (("--pe", "rope-2d"), "--pe is for models"),
        (("--precision", "int8"), "--precision int8 is for models"),
        (("--labels", "labels.csv"), "--labels are for --images"),
        (("--from", "old.json"), "--from times nothing"),
    ],
)
def test_refusals(bench: Bench, static: Path, arguments: tuple[str, ...], says: str) -> None:
    code, document = bench(static, *arguments)
    assert code == 2
    assert says in document["message"]


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--from", "old.json", "--baseline", "older.json"), "--baseline"),
        (("--from", "old.json", "-o", "out"), "-o"),
        (("--from", "old.json", "--res", "224"), "--res"),
        (("--from", "old.json", "--dry-run"), "--dry-run"),
        (("--doctor", "--from", "old.json"), "--from"),
        (("--doctor", "--threads", "1"), "--threads"),
        (("--doctor", "--html", "x.html"), "--html"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(
    bench: Bench, arguments: tuple[str, ...], flag: str
) -> None:
    code, document = bench(*arguments)
    assert code == 2
    assert f": {flag} has no meaning beside it" in document["message"]


def test_report_of_somebody_else_is_not_replaced(
    bench: Bench, static: Path, tmp_path: Path
) -> None:
    """Without the rows beside it, ``bench.json`` is not of an earlier run into that folder."""
    (tmp_path / "bench.json").write_text("mine")
    code, document = bench(static, "-o", tmp_path, "--dry-run")
    assert code == 2
    assert "bench.json exists already" in document["message"]
    assert bench(static, "-o", tmp_path, "--dry-run", "--force")[0] == 0


def test_calibration_without_int8_is_refused(bench: Bench) -> None:
    code, document = bench("vit_tiny_patch16_224", "--calibration", "random")
    assert code == 2
    assert "--calibration is for --precision int8" in document["message"]


def test_dry_run_times_nothing(bench: Bench, static: Path, tmp_path: Path) -> None:
    code, document = bench(static, "--dry-run", "-o", tmp_path / "nothing")
    assert code == 0
    assert [len(g["rows"]) for g in document["groups"]] == [2]
    assert document["estimate_s"] > 1
    assert not (tmp_path / "nothing").exists()


def test_interruption_says_that_the_same_command_goes_on(
    static: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitpe_deploy.bench.entry.run_planned", stopped)
    assert bench_main([str(static), "-o", str(tmp_path), "-q"]) == 130
    assert "The same command goes on" in capsys.readouterr().err
    assert bench_main([str(static), "-q"]) == 130
    assert "goes on" not in capsys.readouterr().err


def test_doctor(bench: Bench) -> None:
    code, document = bench("--doctor")
    assert (code, document["schema"]) == (0, "vitpe.doctor/1")
    assert "CPU" in document["openvino_devices"]
    assert document["host"]["cores_used"] >= 1


@pytest.mark.usefixtures("without_torch")
def test_python_interface_gives_the_same_report(static: Path) -> None:
    report = vitpe_deploy.benchmark(
        static, runtimes=["openvino"], threads=1, rounds=2, iters=2, warmup=0
    )
    assert isinstance(report, BenchReport)
    assert [row.runtime for row in report.results] == ["openvino"]


def test_units() -> None:
    assert [parse_seconds(t) for t in ("3s", "500ms", "2m", "1.5")] == [3, 0.5, 120, 1.5]
    assert [parse_share(t) for t in ("5%", "0.05", "12.5 %")] == [0.05, 0.05, 0.125]
    with pytest.raises(UsageError, match="not a share"):
        parse_share("some")
