"""2-D sinusoidal positions against the published definitions and worked examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.encodings.sincos_2d import SinCos2D
from vitpe_deploy.errors import UsageError

Array = npt.NDArray[np.float64]

LAYOUTS = ("mae", "detr", "interleaved")
MODES = ("extrapolate", "rescale")


def build(
    grid: tuple[int, int] = (4, 4), dim: int = 16, prefix: int = 1, **params: Any
) -> SinCos2D:
    return SinCos2D.build(EncodingSpec(grid, dim, 2, 2, prefix_tokens=prefix, params=params))


def mae_literal(dim: int, h: int, w: int) -> Array:
    """MAE's definition: a mesh built width first, a sine half and a cosine half for each axis."""

    def one_axis(values: Array) -> Array:
        omega = 1.0 / 10000 ** (np.arange(dim // 4, dtype=np.float64) / (dim / 4.0))
        angles = np.outer(values.reshape(-1), omega)
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    mesh = np.meshgrid(np.arange(w, dtype=np.float64), np.arange(h, dtype=np.float64))
    return np.concatenate([one_axis(mesh[0]), one_axis(mesh[1])], axis=1)


def detr_literal(dim: int, h: int, w: int) -> Array:
    """DETR's definition on an image without padding: cumulative sums, then 2 pi of the last."""
    present = np.ones((h, w))
    y, x = present.cumsum(0), present.cumsum(1)
    y = y / (y[-1:, :] + 1e-6) * 2 * math.pi
    x = x / (x[:, -1:] + 1e-6) * 2 * math.pi
    features = dim // 2
    index = np.arange(features)
    divisor = 10000 ** (2 * (index // 2) / features)

    def waves(axis: Array) -> Array:
        angle = axis[:, :, None] / divisor
        return np.where(index % 2 == 0, np.sin(angle), np.cos(angle))

    return np.concatenate([waves(y), waves(x)], axis=2).reshape(h * w, dim)


@pytest.mark.parametrize("grid", [(14, 14), (3, 5), (24, 7), (1, 1)])
@pytest.mark.parametrize(("layout", "literal"), [("mae", mae_literal), ("detr", detr_literal)])
def test_published_definitions(
    layout: str, literal: Callable[[int, int, int], Array], grid: tuple[int, int]
) -> None:
    encoding = build((14, 14), dim=32, prefix=0, layout=layout)
    expected = literal(32, *grid)

    np.testing.assert_allclose(encoding.positions(grid)["table"][0], expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(encoding.fit(grid)["table"][0], expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(encoding.in_graph(*grid)["table"][0], expected, rtol=0, atol=5e-6)


def test_two_rows_three_columns_by_hand() -> None:
    """Width 4: one frequency per axis. The layouts differ where rows and columns do."""
    s, c = math.sin, math.cos
    cells = [(y, x) for y in range(2) for x in range(3)]
    mae = [[s(x), c(x), s(y), c(y)] for y, x in cells]
    interleaved = [[s(y), c(y), s(x), c(x)] for y, x in cells]
    detr = [
        [s(math.pi * (y + 1)), c(math.pi * (y + 1)), s(turn), c(turn)]
        for y, x in cells
        for turn in [2 * math.pi * (x + 1) / 3]
    ]

    for layout, expected in (("mae", mae), ("interleaved", interleaved), ("detr", detr)):
        encoding = build((2, 3), dim=4, prefix=0, layout=layout)
        for table in (encoding.positions((2, 3))["table"], encoding.fit((2, 3))["table"]):
            # DETR's 1e-6 beside the number of rows moves the angle by 3e-6.
            np.testing.assert_allclose(table[0], expected, rtol=0, atol=5e-6, err_msg=layout)


def test_two_frequencies_by_hand() -> None:
    """Width 8 at row 1, column 2: turns of 1 and 1/100 of a radian per position."""
    s, c = math.sin, math.cos
    at = 1 * 3 + 2
    mae = [s(2), s(0.02), c(2), c(0.02), s(1), s(0.01), c(1), c(0.01)]
    interleaved = [s(1), c(1), s(0.01), c(0.01), s(2), c(2), s(0.02), c(0.02)]

    for layout, expected in (("mae", mae), ("interleaved", interleaved)):
        table = build((2, 3), dim=8, prefix=0, layout=layout).fit((2, 3))["table"]
        assert table[0, at].tolist() == pytest.approx(expected, abs=1e-7), layout


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from(MODES),
    st.tuples(st.integers(1, 16), st.integers(1, 16)),
    st.tuples(st.integers(1, 64), st.integers(1, 64)),
    st.sampled_from([4, 8, 12]),
    st.integers(0, 2),
)
def test_three_answers_agree(
    layout: str,
    mode: str,
    native: tuple[int, int],
    grid: tuple[int, int],
    dim: int,
    prefix: int,
) -> None:
    encoding = build(native, dim, prefix, layout=layout, mode=mode, scaling_factor=0.7)

    expected = encoding.positions(grid)["table"]

    assert expected.shape == (1, prefix + grid[0] * grid[1], dim)
    assert expected.dtype == torch.float32
    torch.testing.assert_close(encoding.fit(grid)["table"], expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(encoding.in_graph(*grid)["table"], expected, rtol=0, atol=1e-5)


def test_rescale_reads_the_trained_range() -> None:
    """2 -> 4 rows: centres at -1/4, 1/4, 3/4, 5/4 of the trained grid."""
    encoding = build((2, 1), dim=4, prefix=0, layout="interleaved", mode="rescale")
    table = encoding.fit((4, 1))["table"][0]
    at = [-0.25, 0.25, 0.75, 1.25]
    assert table[:, 0].tolist() == pytest.approx([math.sin(y) for y in at])
    assert table[:, 1].tolist() == pytest.approx([math.cos(y) for y in at])


def test_rescaled_detr_keeps_the_trained_normaliser() -> None:
    encoding = build((2, 1), dim=4, prefix=0, layout="detr", mode="rescale")
    table = encoding.fit((4, 1))["table"][0]
    at = [math.pi * (y + 1) for y in (-0.25, 0.25, 0.75, 1.25)]
    assert table[:, 0].tolist() == pytest.approx([math.sin(y) for y in at], abs=5e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_modes_meet_at_the_native_grid_only(layout: str) -> None:
    extrapolate, rescale = (build((6, 9), layout=layout, mode=mode) for mode in MODES)

    torch.testing.assert_close(
        extrapolate.fit((6, 9))["table"], rescale.fit((6, 9))["table"], rtol=0, atol=1e-7
    )
    difference = extrapolate.fit((9, 12))["table"] - rescale.fit((9, 12))["table"]
    assert difference.abs().max() > 0.1


def test_prefix_rows_are_zero_and_come_first() -> None:
    encoding = build((2, 3), prefix=2)
    bare = build((2, 3), prefix=0)
    for table in (
        encoding.positions((2, 3))["table"],
        encoding.fit((2, 3))["table"],
        encoding.in_graph(2, 3)["table"],
    ):
        assert torch.equal(table[:, :2], torch.zeros(1, 2, 16))
        torch.testing.assert_close(table[:, 2:], bare.fit((2, 3))["table"], rtol=0, atol=1e-6)
    x = torch.randn(3, 8, 16)
    got = encoding.tokens(x, encoding.positions((2, 3)))
    assert torch.equal(got[:, :2], x[:, :2])
    torch.testing.assert_close(got[:, 2:] - x[:, 2:], bare.fit((2, 3))["table"].expand(3, -1, -1))


@pytest.mark.parametrize("learnable", [False, True])
def test_scaling_factor_multiplies(learnable: bool) -> None:
    plain = build((3, 3)).fit((4, 5))["table"]
    scaled = build((3, 3), scaling_factor=0.25, learnable_scale=learnable)

    torch.testing.assert_close(scaled.fit((4, 5))["table"], plain / 4)
    torch.testing.assert_close(scaled.positions((4, 5))["table"], plain / 4)
    torch.testing.assert_close(scaled.in_graph(4, 5)["table"], plain / 4, rtol=0, atol=1e-6)
    assert scaled.describe().params["scaling_factor"] == 0.25
    assert sorted(scaled.state_dict()) == (["scaling_factor"] if learnable else [])


def test_learned_factor_is_read_after_loading() -> None:
    encoding = build((3, 3), learnable_scale=True)
    before = encoding.fit((3, 3))["table"].detach().clone()
    encoding.load_state_dict({"scaling_factor": torch.tensor(2.0)})
    torch.testing.assert_close(encoding.fit((3, 3))["table"], 2 * before)
    (gradient,) = torch.autograd.grad(
        encoding.positions((3, 3))["table"].sum(), list(encoding.parameters())
    )
    assert gradient.item() == pytest.approx(before.sum().item(), abs=1e-4)


def test_temperature_sets_the_slowest_turn() -> None:
    table = build((1, 4), dim=8, prefix=0, temperature=100.0).fit((1, 4))["table"][0]
    assert table[3, 1].item() == pytest.approx(math.sin(3 / 10))


@pytest.mark.parametrize(
    ("params", "dim", "message"),
    [
        ({}, 18, "multiple of 4, got 18"),
        ({"layout": "mea"}, 16, "layout 'mea'"),
        ({"mode": "rescaled"}, 16, "mode 'rescaled'"),
        ({"temperature": 0.0}, 16, "temperature"),
    ],
)
def test_impossible_options_are_usage_errors(
    params: dict[str, Any], dim: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build(dim=dim, **params)
    assert caught.value.hint


def test_describes_itself_for_the_manifest() -> None:
    description = build((6, 9), prefix=2, layout="detr", mode="rescale").describe()
    assert description.kind == "sincos-2d"
    assert description.native_grid == (6, 9)
    assert description.prefix_tokens == 2
    assert description.resample_rule is None
    assert description.params == {
        "layout": "detr",
        "mode": "rescale",
        "temperature": 10000.0,
        "scaling_factor": 1.0,
    }


def test_is_found_by_name() -> None:
    assert encodings.get("sincos-2d") is SinCos2D
    assert SinCos2D.networks == ("vit", "detr")


@pytest.mark.parametrize(
    ("layout", "mode"), [("mae", "rescale"), ("detr", "extrapolate"), ("interleaved", "rescale")]
)
def test_dynamic_graph_equals_torch_in_both_engines(
    export_dynamic: Callable[..., Any], layout: str, mode: str
) -> None:
    encoding = build((6, 9), layout=layout, mode=mode, scaling_factor=0.5)

    graph = export_dynamic(lambda h, w: encoding.in_graph(h, w)["table"])

    assert not {"Resize", "Loop", "If", "ScatterND"} & set(graph.operators)
    assert graph.operators["Sin"] == graph.operators["Cos"] == 2
    for grid in [(6, 9), (4, 4), (33, 12), (1, 1)]:
        expected = encoding.positions(grid)["table"].numpy()
        for engine, got in graph(*grid).items():
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=engine)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dropped_or_misplaced_positions_move_the_logits(
    tiny_vit: Callable[..., Any], positions_matter: Callable[..., None], layout: str
) -> None:
    positions_matter(tiny_vit("sincos-2d", layout=layout))


def test_network_in_both_engines(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    baked_matches: Callable[..., set[str]],
) -> None:
    assert {"Sin", "Cos"} <= export_matches(lambda: tiny_vit("sincos-2d"))
    baked = baked_matches(lambda: tiny_vit("sincos-2d", mode="rescale"), (5, 8))
    assert not {"Sin", "Cos", "Range"} & baked
