"""Rows of two reports: which are judged, which are not, and what is refused before measuring."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.example import example, row
from vitpe_deploy.bench import baseline
from vitpe_deploy.bench.baseline import against_baseline, not_judged, require_comparable
from vitpe_deploy.bench.documents import BenchReport, ResultRow
from vitpe_deploy.bench.markdown import markdown
from vitpe_deploy.errors import UsageError
from vitpe_deploy.report.html import render
from vitpe_deploy.report.verdict import checklist

A, B, C = (row("none", "openvino", size, 5.0) for size in (224, 384, 512))


@pytest.fixture(autouse=True)
def _same_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "read_host", lambda: example().host)


def report(*rows: ResultRow, **changes: Any) -> BenchReport:
    nothing: dict[str, Any] = {"results": rows, "comparisons": (), "failed": (), "layers": ()}
    return example(wrong=False).model_copy(update=nothing | changes)


def slower(one: ResultRow, **changes: Any) -> ResultRow:
    samples = tuple(2 * sample for sample in one.samples_ms)
    return one.model_copy(update={"samples_ms": samples, **changes})


def test_what_is_executed_is_judged_whatever_it_is() -> None:
    """bf16 asked for and then no longer executed: the fall is what the gate is for."""
    then = A.model_copy(update={"precision_asked": "bf16", "precision_executed": "bf16"})
    now = slower(then, precision_executed="f32", threads=1)
    (found,) = against_baseline(report(now), report(then), 0.05)
    assert found.regressed
    assert found.changes == ("executed in bf16 then, f32 now", "threads 2 then, 1 now")
    judged = report(now, baseline=(found,))
    assert "**regressed**; executed in bf16 then, f32 now" in markdown(judged)
    assert "REGRESSED; executed in bf16 then, f32 now" in render(judged)


def test_rows_of_one_report_alone_are_named() -> None:
    now, then = report(A, B), report(A, C)
    assert [found.id for found in against_baseline(now, then, 0.05)] == [A.id]
    left = not_judged(now, then)
    assert [(found.id, found.only_in) for found in left] == [(C.id, "baseline"), (B.id, "now")]
    judged = report(A, B, baseline=against_baseline(now, then, 0.05), unjudged=left)
    for shown in (markdown(judged), render(judged)):
        assert "was measured for the baseline, and not now" in shown
        assert "is measured now, and not in the baseline" in shown
    check = next(c for c in checklist(judged) if "baseline" in c.title)
    assert (check.state, check.found) == ("look", "1 of 1 row; 2 rows not judged")


def test_baseline_that_cannot_judge_is_refused_before_anything_is_measured() -> None:
    require_comparable(report(A), [A.id, B.id])
    with pytest.raises(UsageError, match="1 row of the baseline would not be judged") as refused:
        require_comparable(report(A, B), [A.id])
    assert B.id in refused.value.message
    assert "--fewer-rows" in refused.value.hint
    require_comparable(report(A, B), [A.id], fewer_rows=True)
    with pytest.raises(UsageError, match="no row of what is measured"):
        require_comparable(report(A), [B.id], fewer_rows=True)
    elsewhere = report(A, host=example().host.model_copy(update={"cpu": "another"}))
    with pytest.raises(UsageError, match="another host: cpu another"):
        require_comparable(elsewhere, [A.id])
    require_comparable(elsewhere, [A.id], cross_host=True)
