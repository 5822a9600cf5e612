"""Weights that are no numbers are found wherever they are, in every type that weights have."""

from __future__ import annotations

import pytest
import torch

from vitpe_deploy.sources.finite import has_nan, is_finite

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [0, 1234, 4095])
@pytest.mark.parametrize(
    ("value", "nan"), [(float("nan"), True), (float("inf"), False), (-float("inf"), False)]
)
def test_one_bad_value_is_found(dtype: torch.dtype, place: int, value: float, nan: bool) -> None:
    weights = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert is_finite(weights)
    assert not has_nan(weights)
    weights.view(-1)[place] = value
    assert not is_finite(weights)
    assert not is_finite(weights.T)
    assert has_nan(weights) is nan


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_numbers_are_numbers(dtype: torch.dtype) -> None:
    ends = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min] * 8, dtype=dtype)
    assert is_finite(ends)
    assert not has_nan(ends)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_what_has_no_order_or_is_no_float(dtype: torch.dtype) -> None:
    assert is_finite(torch.ones(5, dtype=dtype))
    assert not has_nan(torch.ones(5, dtype=dtype))
    if dtype.is_complex:
        assert has_nan(torch.tensor([complex(1, float("nan"))]))
        assert not is_finite(torch.tensor([complex(float("inf"), 0)]))


def test_nothing_is_finite() -> None:
    assert is_finite(torch.empty(0))
    assert not has_nan(torch.empty(0, 3))
    assert not is_finite(torch.tensor(float("nan")))
    assert is_finite(torch.tensor(2.0))
