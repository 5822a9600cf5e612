"""Which sizes a dynamic file claims to take, and which of them it is compared at."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.plan import make_plan
from exporters.proof_sizes import proof_sizes
from vitpe_deploy.build_request import make_request
from vitpe_deploy.errors import UsageError
from vitpe_deploy.inputs import ImageInput, TextInput
from vitpe_deploy.limits import AxisLimit, check_shape
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import LengthRule, ModelFacts, SizeRule


def facts(native: Resolution, rule: SizeRule, **others: Any) -> ModelFacts:
    return ModelFacts(
        name="model", spec="model", native=native, size_rule=rule, grid_divisor=rule.divisor,
        encoding=None, encoding_params={}, prefix_tokens=0, outputs=("logits",),
        default_outputs=("logits",), depth=1, **others,
    )  # fmt: skip


def patches(step: int = 16) -> SizeRule:
    return SizeRule.for_patches((step, step), "refuses")


def verified(span: str | None, native: int = 224, **options: Any) -> list[str]:
    request = make_request(dynamic="size", size_range=span, **options)
    (graph,) = make_plan(request, facts(Resolution(native, native), patches())).graphs
    return [str(size) for size, _ in graph.cases]


@pytest.mark.parametrize(
    ("span", "sizes"),
    [
        (None, ["224x224", "112x112", "176x272"]),
        ("64:640:16", ["224x224", "112x112", "176x272"]),
        ("224:1024:32", ["224x224", "256x256", "224x256"]),
        ("320:640:32", ["320x320", "384x384", "320x384"]),
        ("32:96:32", ["96x96", "64x64", "96x64"]),
        ("224:240:16", ["224x224", "240x240", "224x240"]),
        ("32:500:32", ["224x224", "96x96", "160x256"]),
    ],
)
def test_a_range_is_compared_inside_at_three_sizes(span: str | None, sizes: list[str]) -> None:
    assert verified(span) == sizes


def test_sizes_that_were_asked_for_come_first() -> None:
    found = verified("224:1024:32", resolution=512, verify_resolutions=["1024x224"])
    assert found == ["512x512", "224x224", "256x256", "224x256", "1024x224"]


@given(
    low=st.integers(1, 40),
    more=st.integers(1, 40),
    step=st.integers(1, 5),
    native=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    patch=st.sampled_from([1, 14, 16]),
)
def test_every_range_has_two_sizes_and_one_that_is_not_square(
    low: int, more: int, step: int, native: tuple[int, int], patch: int
) -> None:
    high = (low + step * more) * patch + patch - 1  # the end is not on the step
    limits = [AxisLimit(a, n, low * patch, high, step * patch) for a, n in ((2, "h"), (3, "w"))]
    own = Resolution(native[0] * patch, native[1] * patch)
    sizes = proof_sizes(patches(patch), own, limits)
    assert len(sizes) >= 2
    assert any(size.height != size.width for size in sizes)
    assert len({size.height for size in sizes} | {size.width for size in sizes}) >= 2
    for size in sizes:
        check_shape(limits, (1, 3, size.height, size.width))
    if low * patch <= min(own.height, own.width):
        assert sizes[0].height <= own.height + step * patch


def test_a_range_of_one_size_is_refused() -> None:
    with pytest.raises(UsageError, match="224:250:32 holds one size, 224x224") as caught:
        verified("224:250:32")
    assert "--res 224" in caught.value.hint


def test_a_range_in_pixels_is_refused_for_text() -> None:
    text = TextInput(vocab_size=10, max_length=77)
    rule = LengthRule(limit=77)
    request = make_request(dynamic="length", size_range="1:40")
    with pytest.raises(UsageError, match="1:40:1 is in pixels, this model reads text") as caught:
        make_plan(request, facts(Resolution(1, 77), rule, input=text))
    assert "--max-length" in caught.value.hint


@pytest.mark.parametrize("span", [None, "64:640"])
def test_limits_are_those_of_the_file_with_a_symbolic_size(span: str | None) -> None:
    """The library floors static sizes and refuses the same ones in its dynamic form."""
    floors = SizeRule.for_patches((16, 16), "floors")
    both = facts(Resolution(224, 224), floors, dynamic_rule=patches(), input=ImageInput(3))
    plan = make_plan(make_request(dynamic="size", size_range=span, allow_floor=True), both)
    assert [limit.step for limit in plan.limits] == [16, 16]
    for size, _ in plan.graphs[0].cases:
        check_shape(plan.limits, (1, 3, size.height, size.width))


def test_no_file_claims_less_than_one_patch() -> None:
    floors = facts(Resolution(224, 224), SizeRule.for_patches((16, 16), "floors"))
    plan = make_plan(make_request(dynamic="size", allow_floor=True), floors)
    assert [(limit.low, limit.step) for limit in plan.limits] == [(16, 1), (16, 1)]
