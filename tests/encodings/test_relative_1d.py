"""The distance table: hand-computed biases, resampling, slices for text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.encodings.relative_1d import Relative1D
from vitpe_deploy.encodings.resample import ResampleRule
from vitpe_deploy.errors import SizeError, UsageError


def build(grid: tuple[int, int], prefix: int = 0, **params: Any) -> Relative1D:
    torch.manual_seed(0)
    spec = EncodingSpec(grid, 8, 2, 3, prefix_tokens=prefix, params=params)
    return Relative1D.build(spec).requires_grad_(False)


def test_2x2_by_hand() -> None:
    """Four patches in raster order; row 3 of the table is distance 0."""
    encoding = build((2, 2), prefix=1)
    encoding.table.copy_(torch.stack([torch.arange(7.0), 10 * torch.arange(7.0)], dim=1))
    want = torch.tensor(
        [
            [0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 3.0, 2.0, 1.0, 0.0],
            [0.0, 4.0, 3.0, 2.0, 1.0],
            [0.0, 5.0, 4.0, 3.0, 2.0],
            [0.0, 6.0, 5.0, 4.0, 3.0],
        ]
    )
    for positions in (
        encoding.positions((2, 2)), encoding.fit((2, 2)), encoding.in_graph(2, 2)
    ):  # fmt: skip
        bias = encoding.attention_bias(positions, layer=2)
        assert bias is not None
        assert bias.shape == (1, 2, 5, 5)
        assert torch.allclose(bias[0, 0], want, atol=1e-5)
        assert torch.allclose(bias[0, 1], 10 * want, atol=1e-5)


def test_3x3_first_and_last_patch_by_hand() -> None:
    encoding = build((3, 3))
    encoding.table.copy_(torch.arange(17.0).reshape(1, 17, 1).expand(1, 17, 2))
    bias = encoding.fit((3, 3))["bias"]
    assert bias[0, 1, 0].tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert bias[0, 1, 8].tolist() == [16, 15, 14, 13, 12, 11, 10, 9, 8]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "rule", [ResampleRule(antialias=False), ResampleRule(), ResampleRule("bilinear")]
)
def test_three_answers_agree(
    answers_agree: Callable[..., None], rule: ResampleRule, shared: bool
) -> None:
    answers_agree(build((6, 6), prefix=2, rule=rule, shared=shared))


def test_resampled_distances_of_a_straight_table() -> None:
    """A linear resample of a straight line is a straight line: (j + 1/2) M / N - 1/2 inside."""
    encoding = build((1, 4), rule=ResampleRule("bilinear", antialias=False))
    encoding.table.copy_(torch.arange(7.0).reshape(1, 7, 1).expand(1, 7, 2))
    bias = encoding.fit((1, 6))["bias"][0, 0]
    offset_zero = (5 + 0.5) * 7 / 11 - 0.5
    assert bias.diagonal().tolist() == pytest.approx([offset_zero] * 6, abs=1e-6)
    assert bias[1, 0].item() == pytest.approx(offset_zero + 7 / 11, abs=1e-6)


def test_layers_read_their_own_table() -> None:
    encoding = build((2, 3), shared=False)
    positions = encoding.fit((2, 3))
    assert positions["bias"].shape == (3, 2, 6, 6)
    for layer in range(3):
        bias = encoding.attention_bias(positions, layer)
        assert bias is not None
        assert torch.equal(bias[0, :, 0, 0], encoding.table[layer, 5])


def test_scaled_placement_divides_by_the_root_of_head_dim() -> None:
    after, scaled = build((2, 3)), build((2, 3), placement="scaled")
    for name in ("positions", "fit"):
        want = getattr(after, name)((3, 3))["bias"] / 2  # head_dim 4
        assert torch.allclose(getattr(scaled, name)((3, 3))["bias"], want)
    assert torch.allclose(scaled.in_graph(3, 3)["bias"], after.in_graph(3, 3)["bias"] / 2)


def test_text_slices_and_refuses_longer() -> None:
    """The distance between neighbours is the same in every length."""
    text = encodings.get_for("relative-1d", "text")
    encoding = text.build(EncodingSpec((1, 9), 8, 2, 2, prefix_tokens=0)).requires_grad_(False)
    native = encoding.fit((1, 9))["bias"]
    for length in (1, 4, 9):
        want = native[..., :length, :length]
        for positions in (
            encoding.positions((1, length)),
            encoding.fit((1, length)),
            encoding.in_graph(1, length),
        ):
            assert torch.equal(positions["bias"], want)
    with pytest.raises(SizeError, match="9 positions, got 10"):
        encoding.fit((1, 10))


def test_text_of_any_length_in_both_engines(export_dynamic: Callable[..., Any]) -> None:
    encoding = build((1, 12), fitting="slice")
    graph = export_dynamic(lambda h, w: encoding.in_graph(1, w)["bias"])
    assert not {"Resize", "Loop", "If", "ScatterND"} & set(graph.operators)
    for length in (1, 5, 12):
        want = encoding.positions((1, length))["bias"].numpy()
        for engine, got in graph(3, length).items():
            np.testing.assert_array_equal(got, want, err_msg=engine)


def test_unknown_words_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="placement 'before'"):
        build((2, 2), placement="before")
    with pytest.raises(UsageError, match="fitting 'crop'"):
        build((2, 2), fitting="crop")


def test_network(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    positions_matter: Callable[..., None],
) -> None:
    positions_matter(tiny_vit("relative-1d"))
    assert "Gather" in export_matches(lambda: tiny_vit("relative-1d"))


def test_baked_network_holds_the_bias(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]]
) -> None:
    ops = baked_matches(lambda: tiny_vit("relative-1d", shared=False), (5, 8))
    assert not {"Range", "Abs"} & ops
