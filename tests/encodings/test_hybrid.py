"""Two encodings in one network, each by its own rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import EncodingSpec
from vitpe_deploy.encodings.hybrid import Hybrid
from vitpe_deploy.errors import UsageError

SPEC = EncodingSpec((6, 6), 16, 2, 2, prefix_tokens=1)


def build(**params: Any) -> Hybrid:
    torch.manual_seed(0)
    return Hybrid.build(replace(SPEC, params=params)).requires_grad_(False)


def test_default_is_learned_table_and_relative_bias() -> None:
    """Both parts answer as they do alone."""
    hybrid = build()
    torch.manual_seed(0)
    absolute = encodings.get("learned-1d").build(SPEC).requires_grad_(False)
    relative = encodings.get("relative-2d").build(SPEC).requires_grad_(False)
    positions = hybrid.fit((4, 7))
    assert positions.keys() == {"absolute_table", "relative_bias"}
    x = torch.randn(2, 29, 16)
    assert torch.equal(hybrid.tokens(x, positions), absolute.tokens(x, absolute.fit((4, 7))))
    bias = hybrid.attention_bias(positions, layer=0)
    want = relative.attention_bias(relative.fit((4, 7)), layer=0)
    assert bias is not None
    assert want is not None
    assert torch.equal(bias, want)
    assert hybrid.query_bias(x, positions, layer=0) is None


def test_parts_take_their_own_options(answers_agree: Callable[..., None]) -> None:
    hybrid = build(
        absolute="sincos-1d",
        absolute_params={"scaling_factor": 0.5},
        relative="rope-2d",
        relative_params={"coordinates": "dinov3"},
    )
    answers_agree(hybrid)
    positions = hybrid.fit((6, 6))
    assert positions.keys() == {"absolute_table", "relative_cos", "relative_sin"}
    assert positions["absolute_table"].abs().max() == 0.5
    assert hybrid.attention_bias(positions, layer=0) is None
    q = torch.randn(1, 2, 37, 8)
    assert (hybrid.rotate(q, q, positions, layer=0)[0] - q).abs().max() > 0.1


def test_two_biases_add_up() -> None:
    hybrid = build(absolute="relative-1d", relative="relative-2d")
    positions = hybrid.fit((5, 4))
    bias = hybrid.attention_bias(positions, layer=0)
    assert bias is not None
    assert torch.equal(bias, positions["absolute_bias"] + positions["relative_bias"])


def test_query_bias_and_convolution_are_passed_on() -> None:
    hybrid = build(absolute="conditional", relative="decomposed")
    positions = hybrid.fit((2, 3))
    bias = hybrid.query_bias(torch.randn(1, 2, 7, 8), positions, layer=1)
    assert bias is not None
    assert bias.shape == (1, 2, 7, 7)
    x = torch.randn(1, 7, 16)
    assert (hybrid.after_block(x, (2, 3), layer=0) - x).abs().max() > 0.1


def test_three_answers_agree(answers_agree: Callable[..., None]) -> None:
    answers_agree(build())


def test_description_names_both_rules() -> None:
    description = build().describe()
    assert description.resample_rule == "absolute: bicubic antialias; relative: bicubic"
    assert description.params["relative"]["kind"] == "relative-2d"


def test_hybrid_of_hybrids_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="its own relative part"):
        build(relative="hybrid")


@pytest.mark.parametrize("relative", ["relative-2d", "decomposed"])
def test_network(
    tiny_vit: Callable[..., Any],
    export_matches: Callable[..., set[str]],
    positions_matter: Callable[..., None],
    relative: str,
) -> None:
    positions_matter(tiny_vit("hybrid", relative=relative))
    export_matches(lambda: tiny_vit("hybrid", relative=relative))


def test_each_part_matters(tiny_vit: Callable[..., Any]) -> None:
    model, x = tiny_vit("hybrid"), torch.randn(1, 3, 20, 32)
    want = model(x)
    for table in (model.encoding.absolute.table, model.encoding.relative.table):
        kept = table.clone()
        table.zero_()
        assert (model(x) - want).abs().max() > 1e-2
        table.copy_(kept)
    assert torch.equal(model(x), want)


def test_baked_network(
    tiny_vit: Callable[..., Any], baked_matches: Callable[..., set[str]]
) -> None:
    assert not {"Range", "Abs"} & baked_matches(lambda: tiny_vit("hybrid"), (5, 8))
