"""One order of severity for the exit code and the headline."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.example import example, layer_verdict, row
from vitpe_deploy.bench.documents import BaselineRow, BenchReport, FailedRow
from vitpe_deploy.bench.outcome import exit_code, problems
from vitpe_deploy.exit_codes import worst
from vitpe_deploy.report.verdict import checklist, verdict

RIGHT, WRONG = row("none", "openvino", 224, 5.0), row("none", "openvino", 384, 5.0, error=0.5)
LOST = {"failed": (FailedRow(id="x", kind="device", message="no", hint=""),)}
SLOWER = {
    "baseline": (
        BaselineRow(
            id=RIGHT.id, baseline_ms=1.0, ratio_median=5.0, ci95=(4.0, 6.0), verdict="slower",
            regressed=True,
        ),
    )
}  # fmt: skip
LAYERS = {"layers": (layer_verdict("openvino", [1e-6, 0.2]),)}


def report(**changes: Any) -> BenchReport:
    nothing = {"results": (RIGHT,), "comparisons": (), "failed": (), "layers": ()}
    return example(wrong=False).model_copy(update=nothing | changes)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        (SLOWER, 4),
        (LAYERS, 3),
        ({"results": (RIGHT, WRONG)}, 3),
        (LOST, 1),
        ({**SLOWER, **LAYERS}, 3),
        ({**SLOWER, **LOST}, 1),
        ({**SLOWER, **LOST, **LAYERS, "results": (RIGHT, WRONG)}, 1),
    ],
)
def test_exit_code_is_that_of_the_worst(changes: dict[str, Any], code: int) -> None:
    found = report(**changes)
    assert exit_code(found) == code == worst([one.exit_code for one in problems(found)])


def test_headline_names_all_trouble_in_that_order() -> None:
    found = report(**SLOWER, **LOST, **LAYERS, results=(RIGHT, WRONG))
    assert verdict(found).headline == (
        "1 row did not run; 1 of 2 rows does not agree with PyTorch; "
        "blocks of 1 file are outside tolerance; 1 row slower than the baseline allows"
    )
    states = {check.title: check.state for check in checklist(found)}
    assert states["Every block agrees with PyTorch"] == "wrong"
