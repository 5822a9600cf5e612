"""Every encoding x size x baked or in the graph x engine x batch, within 1e-4 of PyTorch.

The reduced form takes the non-square baked file and the four sizes of the dynamic one; the full
matrix (``pytest -m slow tests/test_encoding_matrix.py``, ``benchmarks/encoding_matrix.py``) takes
every baked size and every variant.
"""

from __future__ import annotations

from collections.abc import Callable
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


NO_TENSORS = {"none", "conditional"}
"""Nothing to break: no positions at all, and a convolution that needs no size."""

REDUCED = ("learned-2d", "rope-2d", "relative-2d")
"""One that is added to tokens, one that turns queries and keys, one that is a bias."""


def broken(
    name: str, change: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolved positions go through ``change``, baked and in the graph; eager ones do not."""
    home = next(n for n in ("vit", "swin", "video") if n in encodings.networks_of(name))
    kind = encodings.get(name).placed_in(home)
    for method in ("fit", "in_graph"):
        right = getattr(kind, method)

        def wrong(
            self: PositionEncoding, *size: Any, right: Any = right
        ) -> dict[str, torch.Tensor]:
            return {key: change(value) for key, value in right(self, *size).items()}

        monkeypatch.setattr(kind, method, wrong)


def all_notice(name: str, folder: Path) -> None:
    cells = list(cells_of(name, name, {}, folder, baked_kinds=("non-square",)))
    assert len(cells) == 5 * len(ENGINES)
    assert all(c.max_rel is not None and c.max_rel > 100 * LIMIT for c in cells), cells


@pytest.mark.parametrize(
    "name",
    [
        n if n in REDUCED else pytest.param(n, marks=pytest.mark.slow)
        for n in encodings.names()
        if n not in NO_TENSORS
    ],
)
def test_matrix_notices_positions_that_are_gone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(name, torch.zeros_like, monkeypatch)
    all_notice(name, tmp_path)


def test_matrix_notices_positions_that_are_moved_by_one_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken("learned-2d", lambda table: table.roll(1, dims=1), monkeypatch)
    all_notice("learned-2d", tmp_path)
