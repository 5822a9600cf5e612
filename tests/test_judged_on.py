"""What the agreement of an int8 file is counted on, and that nobody has to guess it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vitpe_deploy
from vitpe_deploy import api
from vitpe_deploy.bench.entry import benchmark
from vitpe_deploy.cli_summary import export_summary, verify_summary
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.parity import ParityCase, Target, agreement_cases, check, make_case
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.progress import Silent
from vitpe_deploy.request import Resolution, Tolerance

SIZE = Resolution(4, 4)
SAID = "judged on noise, not on calibration data"


class Notes(Silent):
    """Keeps what is worth knowing."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def samples(path: Path, count: int, channels: int = 3, side: int = 4) -> Path:
    values = np.random.default_rng(0).standard_normal((count, channels, side, side))
    np.savez(path, pixel_values=values.astype(np.float32))
    return path


def chosen(calibration: object, batch: int = 1, size: Resolution = SIZE) -> ParityCase:
    (case,) = agreement_cases(
        [make_case(size, batch)],
        None if calibration is None else str(calibration),
        layout=ImageInput(),
        preprocess=Preprocess(),
        images=None,
    )
    return case


@pytest.mark.parametrize(("count", "batch", "batches"), [(3, 2, 1), (4, 1, 2), (3, 4, 1)])
def test_two_samples_left_to_judge_are_enough(
    tmp_path: Path, count: int, batch: int, batches: int
) -> None:
    case = chosen(samples(tmp_path / "data.npz", count), batch)
    assert (case.data, case.no_data) == ("calibration", None)
    assert [len(x) for x in case.inputs] == [batch] * batches


def test_noise_in_place_of_data_has_a_reason(tmp_path: Path) -> None:
    few = samples(tmp_path / "few.npz", 2)
    data = samples(tmp_path / "data.npz", 8)
    for found, words in (
        (chosen(tmp_path / "gone"), f"{tmp_path / 'gone'} are not there"),
        (chosen(few), "one sample is left to judge"),
        (chosen(data, size=Resolution(8, 4)), "have shape [3, 4, 4]"),
    ):
        assert found.data == "noise"
        assert words in (found.no_data or "")
        assert len(found.inputs) > 1
    for asked_for in ("random", None):
        assert (chosen(asked_for).data, chosen(asked_for).no_data) == ("noise", None)


def test_one_batch_shows_an_output_that_ignores_its_input(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20]>
        constant (float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y)
        <float[1] zero = {0}, float[1] one = {1}> { z = Mul(x, zero)  y = Add(z, one) }
    """)
    onnx.save(model, tmp_path / "constant.onnx")
    case = chosen(samples(tmp_path / "data.npz", 3), 2)
    (row,) = check(
        Target(tmp_path / "constant.onnx", "onnxruntime", threads=1),
        [case],
        lambda _: [{"y": np.ones((2, 3, 4, 4), np.float32)}],
        ["y"],
        Tolerance(),
        artifact="constant.onnx",
        min_agreement=0.9,
    )
    assert not row.passed
    assert "does not depend on the input" in (row.problem or "")
    assert (row.judged_on, row.inputs) == ("calibration", 2)


def timed(path: Path) -> tuple[str | None, bool]:
    """What a benchmark's agreement was counted on, and whether it warns that this was noise."""
    quick: dict[str, Any] = {"rounds": 1, "starts": 1, "iters": 1, "warmup": 0, "threads": 1}
    (row,) = benchmark(path, runtimes=["ort"], **quick).results
    assert row.agreement is not None
    return row.agreement.judged_on, any(SAID in text for text in row.warnings)


def test_every_row_and_summary_says_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made in one folder, verified from another, where the data are not to be found."""
    monkeypatch.chdir(tmp_path)
    samples(Path("data.npz"), 3, channels=1, side=32)
    options: dict[str, Any] = {"precision": "int8", "int8_method": "dynamic", "threads": 1}
    report = vitpe_deploy.export(
        "digits-learned-1d", batch=2, calibration="data.npz", min_agreement=0.9,
        output_dir=tmp_path / "out", **options,
    )  # fmt: skip
    assert {row.judged_on for row in report.parity} == {"calibration"}
    assert SAID not in export_summary(report)
    path = Path(report.artifacts[0].path)
    assert timed(path) == ("calibration", False)
    (tmp_path / "elsewhere").mkdir()
    packed = api.bundle(path, threads=1, output_dir=tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert timed(path) == ("noise", True)
    notes = Notes()
    again = vitpe_deploy.verify(path, threads=1, progress=notes)
    assert {row.judged_on for row in again.parity} == {"noise"}
    assert SAID in verify_summary(again, bundle=False)
    assert "judged on noise" in notes.said[0]
    assert "data.npz are not there, seen from" in notes.said[0]
    bundled = vitpe_deploy.verify(packed, threads=1)
    assert {row.judged_on for row in bundled.parity} == {"calibration"}
    assert SAID not in verify_summary(bundled, bundle=True)
