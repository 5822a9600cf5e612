"""The compile cache: hits, and everything that must miss."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import vitpe_deploy
from vitpe_deploy.errors import UsageError
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.runtimes.compile_cache import cache_root, entry_folder, user_cache

TINY = {"depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 7}
PICTURE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model in both formats, and the same with other weights in ``other``."""
    folder = tmp_path_factory.mktemp("cache")
    for seed, name in ((0, "one"), (1, "other")):
        vitpe_deploy.export(
            "vit_tiny_patch16_224", 64, model_kwargs=TINY, formats=["onnx", "openvino"], seed=seed,
            output_dir=folder / name, verify=False,
        )  # fmt: skip
    return folder


def logits(folder: Path, cache: Path | None) -> tuple[np.ndarray, bool]:
    """The answer of the IR, and whether it came from the cache."""
    xml = next(folder.glob("*.xml"))
    with vitpe_deploy.load(xml, cache=cache) as model:
        return model(PICTURE)["logits"], model.info.from_cache


def test_second_start_comes_from_the_cache_with_the_same_answer(
    exported: Path, tmp_path: Path
) -> None:
    plain, hit = logits(exported / "one", None)
    assert not hit
    first, hit = logits(exported / "one", tmp_path)
    assert not hit
    again, hit = logits(exported / "one", tmp_path)
    assert hit
    np.testing.assert_allclose(first, plain, rtol=0, atol=1e-6)
    np.testing.assert_allclose(again, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("suffix", [".xml", ".bin"])
def test_changed_files_are_compiled_again(exported: Path, tmp_path: Path, suffix: str) -> None:
    """Also under the same name, of the same length and with the old times."""
    folder, cache = tmp_path / "model", tmp_path / "kept"
    shutil.copytree(exported / "one", folder)
    before, _ = logits(folder, cache)
    ours, theirs = next(folder.glob(f"*{suffix}")), next((exported / "other").glob(f"*{suffix}"))
    times = ours.stat().st_atime_ns, ours.stat().st_mtime_ns
    ours.write_bytes(theirs.read_bytes())
    os.utime(ours, ns=times)
    after, hit = logits(folder, cache)
    assert not hit
    assert np.abs(after - before).max() > 1e-3 or suffix == ".xml"
    assert logits(folder, cache)[1]


def test_damaged_blobs_are_compiled_again(exported: Path, tmp_path: Path) -> None:
    right, _ = logits(exported / "one", tmp_path)
    blobs = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert blobs
    for blob in blobs:
        blob.write_bytes(blob.read_bytes()[: blob.stat().st_size // 2])
    again, hit = logits(exported / "one", tmp_path)
    assert not hit
    np.testing.assert_allclose(again, right, rtol=0, atol=1e-6)


def test_every_part_of_the_key_decides(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"ab")
    (tmp_path / "b").write_bytes(b"c")
    files = [tmp_path / "a", tmp_path / "b"]
    base = {
        "files": files,
        "version": "2026.4.1",
        "device": "CPU",
        "device_names": ["one CPU"],
        "settings": {"INFERENCE_PRECISION_HINT": "f32"},
    }

    def key(**changed: object) -> Path:
        options = {**base, **changed}
        return entry_folder(tmp_path / "root", options.pop("files"), **options)  # type: ignore[arg-type]

    others = [
        key(version="2026.4.2"),
        key(device="GPU"),
        key(device_names=["another CPU"]),
        key(settings={"INFERENCE_PRECISION_HINT": "bf16"}),
        key(files=files[::-1]),
        key(files=files[:1]),
    ]
    assert len({key(), *others}) == 7
    assert key() == key(device="cpu")
    before = key()
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"bc")  # the same bytes in a row, in other files
    assert key() != before


def test_other_precisions_have_their_own_entry(exported: Path, tmp_path: Path) -> None:
    xml = next((exported / "one").glob("*.xml"))
    for precision in ("f32", "bf16", "f32"):
        with open_runtime("openvino", xml, precision=precision, cache=tmp_path) as runtime:
            hit = runtime.info.from_cache
    assert hit
    assert len(list((tmp_path / "openvino").iterdir())) == 2


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root(None) is None
    assert cache_root(False) is None
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root(True) == user_cache() == tmp_path / "vitpe-deploy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == Path.home() / ".cache" / "vitpe-deploy"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        cache_root(tmp_path / "file")


def test_onnx_runtime_keeps_nothing_and_says_so(exported: Path, tmp_path: Path) -> None:
    onnx = next((exported / "one").glob("*.onnx"))
    with pytest.raises(UsageError, match="would run in onnxruntime, which keeps nothing"):
        vitpe_deploy.load(onnx, cache=tmp_path)
    for hit in (False, True):
        with vitpe_deploy.load(onnx, runtime="openvino", cache=tmp_path) as model:
            assert model.info.from_cache is hit
