"""Rows of an interrupted run: which are good enough to go on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.report.example import row
from vitpe_deploy.bench.plan import Artifact, PlannedRow
from vitpe_deploy.bench.resume import Journal
from vitpe_deploy.manifest import Manifest
from vitpe_deploy.request import Resolution

ROW = row("none", "openvino", 224, 5.0)
PATH = Path(ROW.artifact)


def planned(manifest: Manifest) -> tuple[PlannedRow, ...]:
    size = Resolution(224, 224)
    found = PlannedRow(Artifact(PATH, manifest), "openvino", "CPU", "f32", "latency", 2, 1, size)
    assert found.id == ROW.id
    return (found,)


def test_rows_are_of_the_same_file_judged_by_the_same_limit(
    manifest: Callable[..., Manifest], tmp_path: Path
) -> None:
    """The same bytes may have been exported again with another ``--rtol``."""
    journal = Journal(tmp_path, {"schema": "vitpe.bench-rows/1"})
    journal.keep([ROW])
    journal = Journal(tmp_path, {"schema": "vitpe.bench-rows/1"})
    same, other = {PATH: ROW.sha256}, {PATH: "1" * 64}
    assert journal.rows(planned(manifest()), same) == [ROW]
    assert journal.rows(planned(manifest()), other) is None
    stricter = manifest(tolerance={"rtol": 1e-7, "atol": 0.0})
    assert journal.rows(planned(stricter), same) is None
    assert journal.rows(planned(manifest(min_agreement=0.99)), same) is None
