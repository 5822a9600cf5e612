"""``--format ort``: runs like the ONNX file, says what a minimal build needs, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import vitpe_deploy
from tests.exporters.conftest import MODEL, TINY
from vitpe_deploy.cli import export_main, run_main, verify_main
from vitpe_deploy.manifest import read_manifest
from vitpe_deploy.runtimes import open_runtime

# onnxruntime's converter leaves the file that it reads open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dynamic model as ``.onnx`` and ``.ort``."""
    folder = tmp_path_factory.mktemp("ort")
    report = vitpe_deploy.export(
        MODEL, dynamic="all", size_range="32:160:16", model_kwargs=TINY, formats=["onnx", "ort"],
        output_dir=folder,
    )  # fmt: skip
    assert report.verdict == "passed"
    rows = [row for row in report.parity if row.artifact.endswith(".ort")]
    assert {row.runtime for row in rows} == {"onnxruntime"}
    assert len({row.resolution for row in rows}) >= 3
    return folder


def test_it_runs_like_the_onnx_file_and_keeps_its_limits(folder: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 64, 96)).astype(np.float32)
    answers = []
    for suffix in (".onnx", ".ort"):
        with open_runtime("ort", next(folder.glob(f"*{suffix}"))) as runtime:
            answers.append(runtime.run({"pixel_values": x})["logits"])
            with pytest.raises(vitpe_deploy.VitpeError, match="height 176 is outside"):
                runtime.run({"pixel_values": np.zeros((1, 3, 176, 96), np.float32)})
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-5, atol=1e-6)


def test_the_list_names_every_operator_that_a_minimal_build_needs(folder: Path) -> None:
    config = next(folder.glob("*.ort.required_operators.config")).read_text()
    lines = [line for line in config.splitlines() if line and not line.startswith("#")]
    domains: dict[str, str] = {}
    for line in lines:
        domain, _version, operators = line.split(";", 2)
        domains[domain] = domains.get(domain, "") + operators
    assert "MultiHeadAttention" in domains["com.microsoft"]
    assert "Conv" in domains["ai.onnx"]
    assert '"float"' in domains["ai.onnx"]  # with the types that are left when others are cut
    assert str(folder) not in config


def test_loader_verify_and_run_take_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    path = next(folder.glob("*.ort"))
    assert read_manifest(path).format == "ort"
    picture = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path / "a.png")
    assert run_main([str(path), str(tmp_path / "a.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runtime"] == "onnxruntime"
    assert verify_main([str(path), "--res", "48x80", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["parity"]
    assert {row["runtime"] for row in rows} == {"onnxruntime"}
    assert verify_main([str(path), "--runtime", "openvino"]) == 2
    assert "--runtime openvino cannot run" in capsys.readouterr().err


def test_int8_and_pixels_go_into_it(tmp_path: Path) -> None:
    report = vitpe_deploy.export(
        MODEL, 96, model_kwargs=TINY, formats=["ort"], precision="int8", calibration="random",
        int8_method="dynamic", min_agreement=0.5, embed_preprocess=True, output_dir=tmp_path,
    )  # fmt: skip
    assert [Path(a.path).suffix for a in report.artifacts] == [".ort"]
    assert report.verdict == "passed"
    with vitpe_deploy.load(tmp_path) as model:
        assert model.layout.kind == "pixels"
        assert model(np.zeros((96, 96, 3), np.uint8))["logits"].shape == (1, 10)


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["-o", str(tmp_path / "never")]
    for arguments, message in (
        (["--format", "ort", "--layers"], "--layers contradicts --format ort"),
        (["--format", "ort", "--buckets", "32,64"], "--buckets contradicts --format ort"),
    ):
        assert export_main([MODEL, *arguments, *out]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "never").exists()
