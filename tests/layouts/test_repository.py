"""``--layout``: an export as a repository that is complete, and goes on being one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vitpe_deploy
from vitpe_deploy.cli import export_main
from vitpe_deploy.errors import UsageError
from vitpe_deploy.results import ExportReport

TINY = {"depth": 1, "embed_dim": 32, "num_heads": 2, "num_classes": 7}
NAME = "vit_tiny_patch16_224-64x64-fp32"


def _export(folder: Path, size: int, layout: str, **options: object) -> ExportReport:
    return vitpe_deploy.export(
        "vit_tiny_patch16_224", size, model_kwargs=TINY, output_dir=folder, layout=layout,
        verify=False, **options,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triton") / "out"
    report = _export(folder, 64, "triton")
    assert [Path(a.path) for a in report.artifacts] == [folder / NAME / "1" / f"{NAME}.onnx"]
    assert {row.artifact for row in report.passes} == {a.path for a in report.artifacts}
    return folder


def test_only_the_repository_is_left(repository: Path) -> None:
    found = sorted(str(p.relative_to(repository)) for p in repository.rglob("*") if p.is_file())
    assert found == [
        f"{NAME}/1/{NAME}.onnx",
        f"{NAME}/1/{NAME}.onnx.manifest.json",
        f"{NAME}/config.pbtxt",
    ]


def test_a_model_of_the_repository_is_still_an_artifact(repository: Path) -> None:
    artifact = repository / NAME / "1" / f"{NAME}.onnx"
    assert vitpe_deploy.verify(artifact).verdict == "passed"
    with vitpe_deploy.load(artifact) as model:
        assert model.size == vitpe_deploy.Resolution(64, 64)


def test_what_is_there_is_not_replaced_unasked(repository: Path) -> None:
    with pytest.raises(UsageError, match="exists already"):
        _export(repository, 64, "triton")


def test_servers_know_the_models_of_earlier_exports(tmp_path: Path) -> None:
    _export(tmp_path, 64, "ovms")
    _export(tmp_path, 32, "ovms", formats=("onnx", "openvino"))
    config = json.loads((tmp_path / "config.json").read_text())
    names = [m["config"]["base_path"] for m in config["model_config_list"]]
    assert names == sorted(p.name for p in tmp_path.iterdir() if p.is_dir())
    assert len(names) == 3
    for name in names:
        assert list((tmp_path / name / "1").iterdir())


def test_buckets_share_their_weights_on_the_disk(tmp_path: Path) -> None:
    report = vitpe_deploy.export(
        "vit_tiny_patch16_224", buckets=["64", "32x64"], model_kwargs=TINY, output_dir=tmp_path,
        layout="triton", verify=False,
    )  # fmt: skip
    data = sorted(tmp_path.rglob("*.data"))
    assert len(report.artifacts) == len(data) == 2
    assert data[0].stat().st_ino == data[1].stat().st_ino
    assert all(p.is_dir() for p in tmp_path.iterdir())
    assert vitpe_deploy.verify(report.artifacts[1].path).verdict == "passed"


def test_layouts_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export_main(["--layout", "tritn", "-o", str(tmp_path)]) == 2
    assert "Did you mean 'triton'" in capsys.readouterr().err
    assert export_main(["--layout", "ovms", "--format", "ort", "-o", str(tmp_path)]) == 2
    assert "--layout ovms takes --format onnx and openvino" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
