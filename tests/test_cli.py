"""The commands from end to end, on a tiny model."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vitpe_deploy import cli
from vitpe_deploy.manifest import read_manifest

STEM = "vit_tiny_patch16_224-64x64-fp32"
MODEL = [
    "vit_tiny_patch16_224",
    *("--model-kwarg", "image_size=96", "--model-kwarg", "embed_dim=32"),
    *("--model-kwarg", "depth=2", "--model-kwarg", "num_heads=2"),
    *("--model-kwarg", "num_classes=10", "--res", "64", "--threads", "2"),
]

EXPORT_KEYS = {
    "schema",
    "model",
    "reference",
    "candidates",
    "encoding",
    "resample_rule",
    "weights",
    "artifacts",
    "indexes",
    "parity",
    "layers",
    "passes",
    "steps_s",
    "verdict",
}
ARTIFACT_KEYS = {
    "path",
    "format",
    "precision",
    "resolution",
    "dynamic",
    "target",
    "opset",
    "size_bytes",
    "sha256",
    "nodes",
}
PARITY_KEYS = {
    "artifact",
    "runtime",
    "device",
    "precision_executed",
    "resolution",
    "batch",
    "output",
    "max_abs",
    "max_rel",
    "cosine",
    "top1_agreement",
    "limit",
    "limit_needed",
    "passed",
    "criterion",
    "inputs",
    "problem",
    "judged_on",
}


def run(
    main: Any, arguments: Sequence[object], capfd: pytest.CaptureFixture[str]
) -> tuple[int, Any]:
    """Exit code and what was printed, down to the file descriptors."""
    capfd.readouterr()
    code = main([str(a) for a in arguments])
    return code, capfd.readouterr()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Folder of an export as ONNX and OpenVINO, and what it printed on stdout and stderr."""
    folder = tmp_path_factory.mktemp("cli") / "out"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.export_main([*MODEL, "-o", str(folder), "--format", " onnx , openvino", "-v"])
    assert code == 0, err.getvalue()
    return folder, out.getvalue(), err.getvalue()


@pytest.fixture
def artifact(exported: tuple[Path, str, str], tmp_path: Path) -> Path:
    """A copy of the exported ONNX file, with its manifest."""
    shutil.copytree(exported[0], tmp_path / "out")
    return tmp_path / "out" / f"{STEM}.onnx"


# Export


def test_export_writes_exactly_these_files(exported: tuple[Path, str, str]) -> None:
    assert sorted(p.name for p in exported[0].iterdir()) == sorted(
        f"{STEM}{suffix}"
        for suffix in (".onnx", ".onnx.manifest.json", ".xml", ".xml.manifest.json", ".bin")
    )


def test_progress_is_one_plain_line_per_step(exported: tuple[Path, str, str]) -> None:
    lines = exported[2].splitlines()
    assert lines[0] == "vitpe-export  vit_tiny_patch16_224  learned-1d  64x64  fp32  opset 20"
    heads = [line[:28].rstrip() for line in lines[1:10]]
    assert heads == [
        "[1/6] Load model",
        "[2/6] Fit positions",
        "[3/6] Trace",
        "[4/6] Optimise",
        "[5/6] Parity  onnxruntime",
        "      Parity  openvino",
        "      Parity  openvino xml",
        "[6/6] Write",
        "      Write",
    ]
    assert lines[1][28:].startswith("51.6 k params (random, seed 0), native 96x96  ")
    assert lines[2][28:].startswith("grid 6x6 -> 4x4, bicubic antialias  ")
    for line in lines[5:8]:
        assert line[28:].startswith("max rel ")
        assert "(limit 1e-04)  top-1 4/4" in line
        assert line[82:] == "ok"
    for line in lines[1:5]:
        assert line[82:].endswith(" s")
    for line in lines[8:10]:
        assert line.endswith(" MB")
    assert "\x1b" not in exported[2]


def test_verbose_shows_what_passes_did(exported: tuple[Path, str, str]) -> None:
    assert f"  {STEM}.onnx: pass attention changed 2" in exported[2].splitlines()


def test_the_result_names_path_size_verdict_and_random_weights(
    exported: tuple[Path, str, str],
) -> None:
    folder, out, _ = exported
    first, second, weights, *_ = out.splitlines()
    size = (folder / f"{STEM}.onnx").stat().st_size / 1e6
    assert first.startswith(f"{folder}/{STEM}.onnx  {size:.1f} MB  passed  max rel ")
    assert first.endswith("(limit 1e-04) in onnxruntime, openvino")
    assert second.startswith(f"{folder}/{STEM}.xml  ")
    assert second.endswith("in openvino")
    assert weights == "weights: random, seed 0"


def test_the_commands_to_paste_next_work(
    exported: tuple[Path, str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    lines = exported[1].splitlines()[3:]
    commands = [shlex.split(line.removeprefix("Next:")) for line in lines]
    assert [c[0] for c in commands] == ["vitpe-bench", "vitpe-verify"]
    assert commands[0][2:] == ["--runtime", "ort,openvino"]
    assert commands[1][2:] == ["--bundle"]
    code, shown = run(
        cli.bench_main,
        [*commands[0][1:], "--rounds", "4", "--starts", "1", "--iters", "8", "--warmup", "1"],
        capfd,
    )
    assert code == 0
    assert f"{STEM}.onnx" in shown.out
    with pytest.MonkeyPatch.context() as patch:
        folder = exported[0].parent / "bundles"
        patch.chdir(exported[0].parent)
        code, shown = run(cli.verify_main, [*commands[1][1:], "-o", folder], capfd)
    assert code == 0
    assert (folder / f"{STEM}.onnx.bundle.zip").is_file()
    again = shlex.split(shown.out.splitlines()[-1].removeprefix("Next:"))
    assert again == ["vitpe-inspect", str(folder / f"{STEM}.onnx.bundle.zip")]
    assert run(cli.inspect_main, again[1:], capfd)[0] == 0


def test_export_json_is_one_document_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, shown = run(cli.main, ["export", *MODEL, "-o", tmp_path, "--json", "-q"], capfd)
    assert code == 0
    assert shown.err == ""
    document = json.loads(shown.out)
    assert set(document) == EXPORT_KEYS
    assert document["schema"] == "vitpe.export/1"
    assert document["verdict"] == "passed"
    assert document["indexes"] == []  # no buckets, no pair of towers
    (record,) = document["artifacts"]
    assert set(record) == ARTIFACT_KEYS
    assert record["resolution"] == [64, 64]
    assert Path(record["path"]).stat().st_size == record["size_bytes"]
    assert [r["runtime"] for r in document["parity"]] == ["onnxruntime", "openvino"]
    for row in document["parity"]:
        assert set(row) == PARITY_KEYS
        assert row["artifact"] == record["path"]
        assert row["max_rel"] <= 1e-5
    assert set(document["steps_s"]) == {
        *("load", "fit", "trace", "optimise", "simplify", "quantize", "write", "parity")
    }
    assert {p["name"] for p in document["passes"]} >= {"attention", "tidy"}
    assert all(set(p) == {"artifact", "name", "changed", "refused"} for p in document["passes"])


def test_outside_tolerance_keeps_the_file_marks_it_and_exits_3(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, shown = run(cli.export_main, [*MODEL, "-o", tmp_path, "--rtol", "1e-12"], capfd)
    assert code == 3
    path = tmp_path / f"{STEM}.onnx"
    manifest = read_manifest(path)
    assert manifest.verdict == "failed"
    assert not any(row.passed for row in manifest.parity)
    assert f"{path}  " in shown.out
    assert "FAILED" in shown.out
    assert shown.err.count("FAILED") == 2
    assert "would pass at --rtol" in shown.err
    layers, looser = (shlex.split(x.removeprefix("Next:")) for x in shown.out.splitlines()[-2:])
    assert layers == ["vitpe-verify", str(path), "--layers"]
    assert run(cli.verify_main, layers[1:], capfd)[0] == 3
    assert looser[:3] == ["vitpe-verify", str(path), "--rtol"]
    assert run(cli.verify_main, looser[1:], capfd)[0] == 0


def test_an_existing_file_is_replaced_only_with_force(
    artifact: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = artifact.read_bytes()
    arguments = [*MODEL, "-o", artifact.parent, "--no-verify", "-q"]
    code, shown = run(cli.export_main, arguments, capfd)
    assert code == 2
    assert shown.err.startswith(f"error: {artifact} exists already")
    assert artifact.read_bytes() == before
    artifact.write_bytes(b"older")
    code, shown = run(cli.export_main, [*arguments, "--force"], capfd)
    assert code == 0
    assert artifact.read_bytes() == before
    assert "not verified" in shown.out
    assert read_manifest(artifact).verdict == "unverified"


@pytest.mark.parametrize("place", ["pipeline.trace", "proof.in_engine"])
def test_nothing_is_left_behind_by_a_failure(
    place: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of a library")

    monkeypatch.setattr(f"exporters.{place}", fail)
    code, shown = run(cli.export_main, [*MODEL, "-o", tmp_path / "out"], capfd)
    assert code == 1
    assert list(tmp_path.iterdir()) == []
    assert shown.out == ""
    first, second = shown.err.splitlines()[-2:]
    assert first == "error: ZeroDivisionError: of a library"
    assert "-vv" in second
    assert "Traceback" not in shown.err


# Dry run


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*MODEL, "--format", "onnx", "--format", "openvino", "--dry-run"]
    code, shown = run(cli.export_main, arguments, capfd)
    assert code == 0
    assert shown.out.splitlines() == [
        "outputs: logits",
        f"would write   out/{STEM}.onnx",
        f"would write   out/{STEM}.onnx.manifest.json",
        "would verify  64x64 batch 1  in onnxruntime, openvino",
        f"would write   out/{STEM}.xml",
        f"would write   out/{STEM}.bin",
        f"would write   out/{STEM}.xml.manifest.json",
        "would verify  64x64 batch 1  in openvino",
        "Nothing was written: --dry-run.",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_dynamic_file_as_json(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--dynamic", "all", "--verify-res", "512x256", "--dry-run", "--json"]
    code, shown = run(cli.export_main, [*arguments, "-o", tmp_path], capfd)
    assert code == 0
    document = json.loads(shown.out)
    assert document["schema"] == "vitpe.plan/1"
    (file,) = document["files"]
    assert file["paths"][0] == f"{tmp_path}/vit_small_patch16_224-dynall-fp32.onnx"
    assert file["resolution"] is None
    cases = [(tuple(c["resolution"]), c["batch"]) for c in file["verify"]]
    sizes = [(224, 224), (112, 112), (176, 272), (512, 256)]
    assert sorted(cases) == sorted((s, b) for s in sizes for b in (1, 2))
    assert list(tmp_path.iterdir()) == []


# Verify


def test_verify_json_with_layers(artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [artifact, "--layers", "--runtime", " ort ", "--json"]
    code, shown = run(cli.verify_main, arguments, capfd)
    assert code == 0
    document = json.loads(shown.out)
    assert set(document) == {
        "schema",
        "artifact",
        "model",
        "reference",
        "stored_reference",
        "parity",
        "layers",
        "verdict",
    }
    assert document["schema"] == "vitpe.verify/1"
    assert (document["reference"], document["stored_reference"]) == ("pytorch", None)
    assert [r["runtime"] for r in document["parity"]] == ["onnxruntime"]
    assert document["layers"][0]["first_failing_block"] is None


def test_verify_against_another_model_fails(
    artifact: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = [a for a in MODEL if a not in ("--res", "64")]
    arguments = [artifact, "--against", *model, "--runtime", "ort"]
    assert run(cli.verify_main, arguments, capfd)[0] == 0
    code, shown = run(cli.verify_main, [*arguments, "--seed", "1"], capfd)
    assert code == 3
    assert "FAILED" in shown.err
    assert "FAILED" in shown.out


def test_a_bundle_is_beside_the_artifact_and_is_checked(
    artifact: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, shown = run(cli.verify_main, [artifact, "--bundle", "--json"], capfd)
    assert code == 0
    document = json.loads(shown.out)
    bundle = artifact.with_name(f"{STEM}.onnx.bundle.zip")
    assert document["artifact"] == str(bundle)
    assert (document["reference"], document["stored_reference"]) == ("stored", "pytorch")
    assert [r["runtime"] for r in document["parity"]] == ["onnxruntime", "openvino"]
    code, shown = run(cli.verify_main, [artifact, "--bundle"], capfd)
    assert code == 2
    assert "exists already" in shown.err
    assert run(cli.verify_main, [bundle, "--rtol", "1e-12", "-q"], capfd)[0] == 3


def test_a_corrupted_bundle_fails_and_says_so(
    artifact: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(cli.verify_main, [artifact, "--bundle", "-q"], capfd)[0] == 0
    bundle = artifact.with_name(f"{STEM}.onnx.bundle.zip")
    with zipfile.ZipFile(bundle) as archive:
        place = archive.getinfo(f"{STEM}.onnx").header_offset
    data = bytearray(bundle.read_bytes())
    data[place + 5000] ^= 0xFF
    bundle.write_bytes(data)
    code, shown = run(cli.verify_main, [bundle, "--json"], capfd)
    assert code == 1
    document = json.loads(shown.out)
    assert document["kind"] == "artifact"
    assert "damaged" in document["message"]
