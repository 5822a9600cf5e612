"""Every encoding x size x baked or in the graph x engine x batch, within 1e-4 of PyTorch.

The reduced form takes the non-square baked file and the four sizes of the dynamic one; the full
matrix (``pytest -m slow tests/test_encoding_matrix.py``, ``benchmarks/encoding_matrix.py``) takes
every baked size and every variant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.encoding_matrix import ENGINES, LIMIT, cells_of, rows
from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import PositionEncoding

REFUSED_IN_GRAPH = {"relative-2d (geometric)"}
"""The list of the README: no closed form in the size."""

PLAIN = [row for row in rows() if row[0] == row[1]]


def judge(label: str, name: str, options: Any, folder: Path, kinds: tuple[str, ...] | None) -> None:
    cells = list(cells_of(label, name, options, folder, baked_kinds=kinds))
    dynamic = [c for c in cells if c.form == "in-graph"]
    baked = [c for c in cells if c.form == "baked"]
    assert len(dynamic) == 4 * len(ENGINES)
    assert len(baked) == len(kinds or range(4)) * len(ENGINES)
    for cell in cells:
        if cell.refusal is not None:
            assert cell.form == "in-graph"
            assert label in REFUSED_IN_GRAPH
            continue
        assert cell.max_rel is not None, cell
        assert cell.max_rel <= LIMIT, cell


@pytest.mark.parametrize("row", PLAIN, ids=[r[0] for r in PLAIN])
def test_reduced_matrix(row: tuple[str, str, Any], tmp_path: Path) -> None:
    judge(*row, tmp_path, ("non-square",))


@pytest.mark.slow
@pytest.mark.parametrize("row", list(rows()), ids=[r[0] for r in rows()])
def test_full_matrix(row: tuple[str, str, Any], tmp_path: Path) -> None:
    judge(*row, tmp_path, None)


def test_matrix_has_every_encoding() -> None:
    assert {name for _, name, _ in rows()} == set(encodings.names())


@pytest.mark.parametrize("fault", ["dropped", "misplaced"])
def test_matrix_notices_positions_that_are_gone_or_moved(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolved positions are broken, the eager model is not: every baked cell must fail."""
    kind = encodings.get("learned-2d")
    right = kind.fit

    def wrong(self: PositionEncoding, grid: tuple[int, int]) -> dict[str, torch.Tensor]:
        made = right(self, grid)
        change = torch.zeros_like if fault == "dropped" else lambda t: t.roll(1, dims=1)
        return {name: change(value) for name, value in made.items()}

    monkeypatch.setattr(kind, "fit", wrong)
    cells = cells_of("learned-2d", "learned-2d", {}, tmp_path, baked_kinds=("non-square",))
    baked = [c for c in cells if c.form == "baked"]
    assert len(baked) == len(ENGINES)
    assert all(c.max_rel is not None and c.max_rel > 100 * LIMIT for c in baked)
