"""Resampling against torch.nn.functional.interpolate, closed forms and both engines."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitpe_deploy.encodings.resample import (
    ResampleRule,
    axis_matrix,
    axis_matrix_in_graph,
    interpolate_grid,
    interpolate_rows,
    resample_grid,
    resample_grid_in_graph,
    resample_rows,
    resample_rows_in_graph,
)
from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.request import ResampleOverride

DINO = ResampleRule(antialias=False, offset=0.1)

RULES = [
    ResampleRule(interpolation, antialias, align_corners, offset)  # type: ignore[arg-type]
    for interpolation, antialias, align_corners, offset in itertools.product(
        ("bicubic", "bilinear"), (True, False), (True, False), (0.0, 0.1)
    )
]

FORBIDDEN = {"Resize", "Loop", "If", "ScatterND", "ScatterElements"}


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int]:
    """Old and new length of an axis: up to 24, grown up to 8 times or shrunk down to 1."""
    n_in = draw(st.integers(1, 24))
    return n_in, draw(st.integers(1, 8 * n_in) | st.just(n_in) | st.just(1))


# Against torch


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(RULES), axes(), axes(), st.integers(0, 2**31))
@example(RULES[0], (24, 9), (5, 1), 0)  # columns vanish: torch's trap with a last dimension of 1
@example(RULES[0], (24, 1), (5, 1), 0)
@example(RULES[0], (5, 9), (1, 1), 0)
@example(RULES[1], (24, 1), (5, 1), 0)
@example(RULES[1], (14, 14), (14, 9), 0)  # antialias with an offset copies the axis that stays
@example(DINO, (14, 14), (14, 9), 0)  # plain cubic with an offset does not
def test_matrices_equal_torch_interpolate(
    rule: ResampleRule, rows: tuple[int, int], columns: tuple[int, int], seed: int
) -> None:
    table = noise(rows[0], columns[0], 2, seed=seed)
    size = rows[1], columns[1]

    expected = interpolate_grid(table, size, rule)

    assert expected.shape == (*size, 2)
    torch.testing.assert_close(resample_grid(table, size, rule), expected, rtol=0, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(RULES), axes(), axes(), st.integers(0, 2**31))
def test_in_graph_float32_equals_float64_matrices(
    rule: ResampleRule, rows: tuple[int, int], columns: tuple[int, int], seed: int
) -> None:
    table = noise(rows[0], columns[0], 2, seed=seed).float()
    size = rows[1], columns[1]

    got = resample_grid_in_graph(table, *size, rule)

    assert got.dtype == torch.float32
    expected = resample_grid(table.double(), size, rule)
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(RULES), axes())
def test_axis_matrix_in_graph_is_axis_matrix(rule: ResampleRule, axis: tuple[int, int]) -> None:
    got = axis_matrix_in_graph(*axis, rule)

    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), axis_matrix(*axis, rule), rtol=0, atol=3e-6)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(RULES), axes(), st.integers(0, 2**31))
def test_one_axis_equals_torch_interpolate(
    rule: ResampleRule, axis: tuple[int, int], seed: int
) -> None:
    table = noise(axis[0], 3, seed=seed)

    expected = interpolate_rows(table, axis[1], rule)

    assert expected.shape == (axis[1], 3)
    torch.testing.assert_close(resample_rows(table, axis[1], rule), expected, rtol=0, atol=1e-12)
    in_graph = resample_rows_in_graph(table.float(), axis[1], rule).double()
    torch.testing.assert_close(in_graph, expected, rtol=0, atol=2e-5)


def test_one_axis_equals_torch_linear_mode() -> None:
    table = noise(27, 4)
    expected = F.interpolate(table.T[None], size=47, mode="linear", align_corners=False)[0].T

    got = resample_rows(table, 47, ResampleRule("bilinear", antialias=False))

    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


# Closed forms


def test_bilinear_weights_by_hand() -> None:
    plain = axis_matrix(2, 4, ResampleRule("bilinear", antialias=False))
    antialiased = axis_matrix(4, 2, ResampleRule("bilinear"))
    corners = axis_matrix(3, 5, ResampleRule("bilinear", antialias=False, align_corners=True))

    np.testing.assert_allclose(
        plain, np.array([[4, 0], [3, 1], [1, 3], [0, 4]]) / 4, rtol=0, atol=1e-15
    )
    # Centre 1, taps at distances 1/4, 1/4, 3/4, 5/4 of the widened triangle.
    np.testing.assert_allclose(
        antialiased, np.array([[3, 3, 1, 0], [0, 1, 3, 3]]) / 7, rtol=0, atol=1e-15
    )
    np.testing.assert_allclose(
        corners,
        np.array([[2, 0, 0], [1, 1, 0], [0, 2, 0], [0, 1, 1], [0, 0, 2]]) / 2,
        rtol=0,
        atol=1e-15,
    )


def test_cubic_weights_by_hand() -> None:
    # Doubling reads at 1/4 and 3/4 of a step: k(5/4) k(1/4) k(3/4) k(7/4).
    antialiased = axis_matrix(8, 16, ResampleRule())[7]
    plain = axis_matrix(8, 16, ResampleRule(antialias=False))[7]

    np.testing.assert_allclose(
        antialiased[1:6], np.array([0, -9, 111, 29, -3]) / 128, rtol=0, atol=1e-15
    )
    np.testing.assert_allclose(
        plain[1:6], np.array([0, -27, 225, 67, -9]) / 256, rtol=0, atol=1e-15
    )


C04_ANTIALIAS = ((1.5723, 5.8466, 13.4139), 198.0827)
C04_PLAIN = ((1.6817, 5.1018, 12.6979), 207.7582)


@pytest.mark.parametrize("function", [resample_grid, interpolate_grid, "in graph"])
@pytest.mark.parametrize(("antialias", "expected"), [(True, C04_ANTIALIAS), (False, C04_PLAIN)])
def test_squares_shrunk_to_three_by_three(
    function: Any, antialias: bool, expected: tuple[tuple[float, ...], float]
) -> None:
    """C04: 0, 1, 4..225 as 4x4."""
    squares = (torch.arange(16.0) ** 2).reshape(4, 4, 1)
    rule = ResampleRule(antialias=antialias)

    if function == "in graph":
        got = resample_grid_in_graph(squares, 3, 3, rule)[..., 0]
    else:
        got = function(squares, (3, 3), rule)[..., 0]

    assert got.dtype == torch.float32
    assert got[0].tolist() == pytest.approx(expected[0], abs=1e-3)
    assert got[2, 2].item() == pytest.approx(expected[1], abs=1e-3)


# Sizes


@pytest.mark.parametrize(
    ("side_px", "patch", "base", "rows"),
    [
        (976, 16, 14, 61),
        (1840, 16, 14, 115),
        (1952, 16, 14, 122),
        (546, 14, 37, 39),
        (602, 14, 37, 43),
        (1092, 14, 37, 78),
        (1204, 14, 37, 86),
    ],
)
def test_size_is_resolved_once(side_px: int, patch: int, base: int, rows: int) -> None:
    """C03: the number of rows is integer division, never a floored scale."""
    table = noise(base, 3, 1)
    n_out = side_px // patch

    assert n_out == rows
    for rule in (ResampleRule(), ResampleRule(antialias=False), DINO):
        assert axis_matrix(base, n_out, rule).shape == (rows, base)
        got = resample_grid(table, (n_out, 3), rule)
        assert got.shape == (rows, 3, 1)
        expected = interpolate_grid(table, (n_out, 3), rule)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
        in_graph = resample_grid_in_graph(table.float(), n_out, 3, rule)
        torch.testing.assert_close(in_graph.double(), expected, rtol=0, atol=1e-5)


def test_flooring_the_scale_loses_a_row_in_torch() -> None:
    table = noise(1, 1, 14, 14)
    assert F.interpolate(table, scale_factor=61 / 14, mode="bicubic").shape[-1] == 60


def test_dino_rule_is_not_the_size_rule() -> None:
    """An offset of a tenth of a row moves every sample."""
    table = noise(14, 14, 1)
    by_size = resample_grid(table, (24, 24), ResampleRule(antialias=False))
    by_scale = F.interpolate(table[None, ..., 0][None], scale_factor=24.1 / 14, mode="bicubic")

    dino = resample_grid(table, (24, 24), DINO)

    torch.testing.assert_close(dino[..., 0], by_scale[0, 0], rtol=0, atol=1e-12)
    assert (dino - by_size).abs().max() > 0.02


def test_height_comes_first() -> None:
    table = torch.arange(3.0).reshape(3, 1, 1).expand(3, 5, 1)  # grows with the row only
    got = resample_grid(table, (6, 2), ResampleRule("bilinear", antialias=False))
    assert got.shape == (6, 2, 1)
    assert got[:, 0, 0].tolist() == pytest.approx([0, 0.25, 0.75, 1.25, 1.75, 2])
    assert torch.equal(got[:, 0], got[:, 1])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_native_size_is_bit_identical(rule: ResampleRule) -> None:
    """C08: no arithmetic touches a table at its own size."""
    table = noise(14, 9, 5).float()
    rows = noise(14, 5).float()

    assert resample_grid(table, (14, 9), rule) is table
    assert interpolate_grid(table, (14, 9), rule) is table
    assert torch.equal(resample_grid_in_graph(table, 14, 9, rule), table)
    assert resample_rows(rows, 14, rule) is rows
    assert torch.equal(resample_rows_in_graph(rows, 14, rule), rows)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_empty_axis_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(SizeError, match="cannot resample"):
        axis_matrix(*sizes, ResampleRule())


# The rule as a value


def test_rule_names_itself() -> None:
    assert str(ResampleRule()) == "bicubic antialias"
    assert str(ResampleRule(antialias=False)) == "bicubic"
    assert str(ResampleRule("bilinear", False, True)) == "bilinear align_corners"
    assert str(DINO) == "bicubic offset 0.1"


def test_override_changes_only_what_was_said() -> None:
    assert DINO.overridden(ResampleOverride()) == DINO
    assert DINO.overridden(ResampleOverride(antialias=True)) == ResampleRule(offset=0.1)
    override = ResampleOverride("bilinear", False, True)
    assert ResampleRule().overridden(override) == ResampleRule("bilinear", False, True)


def test_unknown_interpolation_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'bicubik' is not known") as caught:
        ResampleRule().overridden(ResampleOverride(interpolation="bicubik"))
    assert "'bicubic'" in caught.value.hint


@pytest.mark.parametrize("offset", [-0.1, 1.0, float("nan")])
def test_offset_that_changes_the_size_is_a_usage_error(offset: float) -> None:
    with pytest.raises(UsageError, match="offset"):
        ResampleRule(offset=offset)


# In the engines


@pytest.mark.parametrize(
    "rule",
    [ResampleRule(), DINO, ResampleRule("bilinear", True, True, 0.1), RULES[-2]],
    ids=str,
)
def test_dynamic_graph_equals_torch_in_both_engines(
    export_dynamic: Callable[..., Any], rule: ResampleRule
) -> None:
    """C01: N(0, 1) on 14x14, eight channels, symbolic height and width."""
    table = noise(14, 14, 8).float()

    graph = export_dynamic(lambda h, w: resample_grid_in_graph(table, h, w, rule))

    assert not FORBIDDEN & set(graph.operators)
    assert graph.operators["MatMul"] == (2 if rule.antialias else 4)
    for size in [(10, 10), (24, 24), (7, 31), (14, 20), (1, 14), (1, 1)]:
        expected = interpolate_grid(table.double(), size, rule).numpy()
        for engine, got in graph(*size).items():
            assert got.shape == (*size, 8)
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=engine)
    for engine, got in graph(14, 14).items():
        np.testing.assert_array_equal(got, table.numpy(), err_msg=engine)


def test_dynamic_rows_equal_torch_in_both_engines(export_dynamic: Callable[..., Any]) -> None:
    table, rule = noise(27, 8).float(), ResampleRule("bilinear", antialias=False)

    graph = export_dynamic(lambda h, w: resample_rows_in_graph(table, h + w - 1, rule))

    assert not FORBIDDEN & set(graph.operators)
    for h, w in [(24, 24), (9, 5), (14, 14), (1, 1)]:
        expected = interpolate_rows(table.double(), h + w - 1, rule).numpy()
        for engine, got in graph(h, w).items():
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=engine)


def test_plain_export_is_wrong_in_openvino(export_dynamic: Callable[..., Any]) -> None:
    """What C01 guards against: a cubic Resize whose antialias the engine ignores."""
    picture = noise(14, 14, 8).float().permute(2, 0, 1)[None].contiguous()

    def plain(h: int, w: int) -> Tensor:
        return F.interpolate(picture, size=(h, w), mode="bicubic", antialias=True)

    graph = export_dynamic(plain)

    assert graph.operators["Resize"] == 1
    got, expected = graph(10, 10), plain(10, 10).numpy()
    # torch 2.9 writes another cubic coefficient; what the engine ignores is larger
    np.testing.assert_allclose(got["onnxruntime"], expected, rtol=0, atol=5e-2)
    assert np.abs(got["openvino"] - expected).max() > 0.1
