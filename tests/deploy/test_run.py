"""``vitpe-run``: the document, the text, saved outputs, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitpe_deploy
from vitpe_deploy.cli import main, run_main
from vitpe_deploy.deploy.predictions import top
from vitpe_deploy.errors import ArtifactError, UsageError

TINY = {"depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact, and two pictures in a folder of their own."""
    folder = tmp_path_factory.mktemp("run")
    vitpe_deploy.export(
        "vit_tiny_patch16_224", (96, 64), model_kwargs=TINY, outputs=["logits", "cls"],
        output_dir=folder / "out", verify=False,
    )  # fmt: skip
    generator = np.random.default_rng(0)
    (folder / "pictures").mkdir()
    for name in ("a.png", "b.png"):
        pixels = generator.integers(0, 256, (50, 70, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / name)
    return folder


def test_document_equals_the_loader(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main([str(folder / "out"), str(folder / "pictures"), "--json", "--top", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "vitpe.run/1"
    assert document["resolution"] == [96, 64]
    assert document["runtime"] == "onnxruntime"
    with vitpe_deploy.load(folder / "out") as model:
        expected = model(sorted((folder / "pictures").iterdir()))
    for k, row in enumerate(document["results"]):
        assert row["input"].endswith(("a.png", "b.png")[k])
        order = np.argsort(-expected["logits"][k])[:2]
        assert [best["index"] for best in row["top"]] == order.tolist()
        assert row["top"][0]["logit"] == pytest.approx(expected["logits"][k].max(), rel=1e-6)
        cls = next(o for o in row["outputs"] if o["name"] == "cls")
        assert cls["shape"] == [32]
        assert cls["norm"] == pytest.approx(np.linalg.norm(expected["cls"][k]), rel=1e-6)
        assert cls["path"] is None


def test_outputs_are_saved_and_not_replaced(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, saved = folder / "pictures" / "a.png", tmp_path / "saved"
    arguments = [str(folder / "out"), str(picture), "-o", str(saved)]
    assert main(["run", *arguments]) == 0
    assert sorted(p.name for p in saved.iterdir()) == ["a.png.cls.npy", "a.png.logits.npy"]
    with vitpe_deploy.load(folder / "out") as model:
        expected = model(picture)
    np.testing.assert_array_equal(np.load(saved / "a.png.cls.npy"), expected["cls"][0])
    capsys.readouterr()
    assert main(["run", *arguments]) == 2
    assert "a.png.logits.npy exists already" in capsys.readouterr().err
    assert main(["run", *arguments, "--force"]) == 0


def test_prepared_arrays_run_and_wrong_ones_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = np.random.default_rng(1).standard_normal((2, 3, 96, 64)).astype(np.float32)
    np.save(tmp_path / "batch.npy", values)
    assert run_main([str(folder / "out"), str(tmp_path / "batch.npy"), "--json"]) == 0
    names = [row["input"] for row in json.loads(capsys.readouterr().out)["results"]]
    assert names == [f"{tmp_path / 'batch.npy'}[0]", f"{tmp_path / 'batch.npy'}[1]"]
    assert run_main([str(folder / "out"), str(tmp_path / "batch.npy"), "--res", "96x64"]) == 2
    assert "--res is for pictures" in capsys.readouterr().err

    np.save(tmp_path / "small.npy", values[:, :, :64])
    assert run_main([str(folder / "out"), str(tmp_path / "small.npy"), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "vitpe.error/1"
    assert "takes 96x64, got 64x64" in document["message"]
    assert run_main([str(folder / "out"), str(tmp_path / "small.npy"), "--resize"]) == 0

    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert run_main([str(folder / "out"), str(tmp_path / "objects.npy")]) == 1
    assert "is not an array that can be read" in capsys.readouterr().err


def test_text_names_classes_and_outputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main([str(folder / "out"), str(folder / "pictures" / "a.png"), "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("a.png")
    assert "class " in lines[1]
    assert lines[2].split()[:3] == ["cls", "32", "norm"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["pictures/never.png"], 2, "does not exist"),
        (["pictures/a.png", "--top", "0"], 2, "--top must be at least 1"),
        (["pictures/a.png", "--res", "128"], 2, "takes 96x64, asked for 128x128"),
        (["pictures/a.png", "--force"], 2, "--force is for --output"),
        (["pictures/a.png", "--runtime", "onnx"], 2, "runtime 'onnx' is not known"),
        (["pictures/a.png", "--device", "GPU"], 1, "no such device here"),
        ([], 2, "IMAGES is missing"),
    ],
)
def test_refusals(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    assert run_main(["out", *arguments]) == code
    assert message in capsys.readouterr().err


def test_top_in_closed_form() -> None:
    best = top(np.log(np.array([[1.0, 2.0, 5.0], [4.0, 4.0, 2.0]])), 2, ["a", "b", "c"])
    assert [[p.label for p in row] for row in best] == [["c", "b"], ["a", "b"]]
    assert [p.probability for p in best[0]] == pytest.approx([0.625, 0.25])
    assert top(np.zeros((1, 3)), 9, ["too", "few"])[0][0].label is None
    with pytest.raises(ArtifactError, match="NaN"):
        top(np.array([[0.0, np.nan]]), 1)
    with pytest.raises(UsageError, match="at least 1"):
        top(np.zeros((1, 2)), 0)
