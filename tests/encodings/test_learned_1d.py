"""The learned table: prefix rows, raster order, always from the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vitpe_deploy.encodings.base import EncodingSpec, Resolved
from vitpe_deploy.encodings.learned_1d import Learned1D
from vitpe_deploy.encodings.resample import ResampleRule


def build(grid: tuple[int, int] = (6, 6), prefix: int = 1, **params: Any) -> Learned1D:
    torch.manual_seed(0)
    spec = EncodingSpec(grid, 8, 2, 2, prefix_tokens=prefix, params=params)
    return Learned1D.build(spec).requires_grad_(False)


def test_224_to_384_keeps_the_class_row() -> None:
    """S03: 1x197xD becomes 1x577xD."""
    encoding = build((224 // 16, 224 // 16))
    grid = (384 // 16, 384 // 16)
    assert encoding.table.shape == (1, 197, 8)

    tables = {
        "positions": encoding.positions(grid)["table"],
        "fit": encoding.fit(grid)["table"],
        "in_graph": encoding.in_graph(*grid)["table"],
    }

    for name, table in tables.items():
        assert table.shape == (1, 577, 8), name
        assert torch.equal(table[:, 0], encoding.table[:, 0]), name
        torch.testing.assert_close(table, tables["positions"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("grid", [(3, 5), (9, 4), (1, 1), (12, 12)])
@pytest.mark.parametrize(
    "rule",
    [ResampleRule(), ResampleRule(antialias=False, offset=0.1), ResampleRule("bilinear", False)],
    ids=str,
)
def test_three_answers_agree(prefix: int, grid: tuple[int, int], rule: ResampleRule) -> None:
    encoding = build((4, 6), prefix, rule=rule)

    expected = encoding.positions(grid)["table"]

    assert expected.shape == (1, prefix + grid[0] * grid[1], 8)
    torch.testing.assert_close(encoding.fit(grid)["table"], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(encoding.in_graph(*grid)["table"], expected, rtol=0, atol=1e-5)


def test_fit_never_chains() -> None:
    """C05: 96 px -> 144 -> 96 ends at the original table; resampling twice does not."""
    encoding = build((96 // 16, 96 // 16))
    original = encoding.table.clone()

    grown = encoding.fit((9, 9))["table"]
    back = encoding.fit((6, 6))["table"]

    assert torch.equal(back, original)
    assert torch.equal(encoding.table, original)
    baked = Resolved(encoding, (9, 9))
    assert torch.equal(Resolved(baked.encoding, (6, 6)).positions((6, 6))["table"], original)
    chained = build((9, 9))
    chained.table.copy_(grown)
    assert (chained.fit((6, 6))["table"] - original).abs().max() > 0.05


def test_native_size_is_bit_identical_everywhere() -> None:
    """C08, the table's part."""
    encoding = build((5, 7), 2)
    for table in (
        encoding.positions((5, 7))["table"],
        encoding.fit((5, 7))["table"],
        encoding.in_graph(5, 7)["table"],
    ):
        assert torch.equal(table, encoding.table)


def test_rows_come_before_columns() -> None:
    """A table that tells rows apart only, in raster order after the prefix."""
    encoding = build((2, 3), rule=ResampleRule("bilinear", antialias=False))
    encoding.table.zero_()
    encoding.table[0, 4:] = 1.0  # the second row of patches

    table = encoding.fit((4, 1))["table"]

    assert table[0, :, 0].tolist() == pytest.approx([0, 0, 0.25, 0.75, 1])


def test_transposed_table_gives_the_transposed_grid() -> None:
    """C07: 96x160 and 160x96 are different tables, mirror images of each other."""
    encoding, mirrored = build((4, 6), 0), build((6, 4), 0)
    mirrored.table.copy_(encoding.table.reshape(1, 4, 6, 8).transpose(1, 2).flatten(1, 2))

    wide = encoding.fit((6, 10))["table"].reshape(1, 6, 10, 8)
    tall = mirrored.fit((10, 6))["table"].reshape(1, 10, 6, 8)

    torch.testing.assert_close(wide.transpose(1, 2), tall, rtol=0, atol=1e-6)
    other = encoding.fit((10, 6))["table"].reshape(1, 10, 6, 8)
    assert (tall - other).abs().max() > 0.1


def test_rule_decides_the_table_and_is_described() -> None:
    """C06, the table's part: the same weights under two families' rules."""
    timm = build((14, 14))
    transformers = build((14, 14), rule=ResampleRule(antialias=False))
    assert torch.equal(timm.table, transformers.table)

    difference = timm.fit((24, 24))["table"] - transformers.fit((24, 24))["table"]

    assert difference.abs().max() > 0.05
    assert timm.describe().resample_rule == "bicubic antialias"
    assert transformers.describe().resample_rule == "bicubic"
    assert timm.describe().native_grid == (14, 14)
    assert timm.describe().prefix_tokens == 1


def test_tokens_adds_the_table_to_every_image() -> None:
    encoding = build((2, 2))
    x = torch.randn(3, 5, 8)
    got = encoding.tokens(x, encoding.positions((2, 2)))
    assert torch.equal(got - x, (x + encoding.table) - x)
    assert (got - x).abs().max() > 0.3  # positions large enough to matter


def test_dynamic_graph_equals_torch_in_both_engines(export_dynamic: Callable[..., Any]) -> None:
    encoding = build((6, 9), 2)

    graph = export_dynamic(lambda h, w: encoding.in_graph(h, w)["table"])

    assert not {"Resize", "Loop", "If", "ScatterND"} & set(graph.operators)
    for grid in [(6, 9), (4, 4), (11, 7)]:
        expected = encoding.positions(grid)["table"].numpy()
        for engine, got in graph(*grid).items():
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=engine)


def test_network_in_both_engines(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., Any],
    baked_matches: Callable[..., Any],
    positions_matter: Callable[..., None],
) -> None:
    positions_matter(tiny_vit("learned-1d"))
    export_matches(lambda: tiny_vit("learned-1d", distillation_token=True))
    assert "Range" not in baked_matches(lambda: tiny_vit("learned-1d"), (5, 8))


def test_scaling_factor_multiplies() -> None:
    plain, scaled = build(), build(scaling_factor=0.25)
    for grid in [(6, 6), (4, 9)]:
        for name in ("positions", "fit"):
            want = getattr(plain, name)(grid)["table"] / 4
            assert torch.equal(getattr(scaled, name)(grid)["table"], want)
        want = plain.in_graph(*grid)["table"] / 4
        assert torch.equal(scaled.in_graph(*grid)["table"], want)
