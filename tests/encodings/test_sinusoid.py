"""One axis of sines and cosines: worked numbers and coordinate modes."""

from __future__ import annotations

import math

import pytest
import torch

from vitpe_deploy import encodings
from vitpe_deploy.encodings.sinusoid import (
    check_mode,
    check_temperature,
    coordinates,
    frequencies,
    sinusoid,
)
from vitpe_deploy.errors import UsageError


def test_width_four_by_hand() -> None:
    """S01: positions 0, 1, 2."""
    expected = [
        [0, 1, 0, 1],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]

    interleaved = sinusoid(coordinates(3, 3, "extrapolate"), 4)
    halves = sinusoid(coordinates(3, 3, "extrapolate"), 4, interleaved=False)

    torch.testing.assert_close(interleaved, torch.tensor(expected).double(), rtol=0, atol=1e-7)
    assert torch.equal(halves, interleaved[:, [0, 2, 1, 3]])


def test_frequencies_fall_geometrically() -> None:
    assert frequencies(4, 16.0).tolist() == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8])
    assert frequencies(3).dtype == torch.float64


def test_extrapolate_counts_on() -> None:
    assert coordinates(5, 3, "extrapolate").tolist() == [0, 1, 2, 3, 4]


def test_rescale_spreads_the_trained_range() -> None:
    """(i + 1/2) n_old / n_new - 1/2, worked for 2 -> 4 and 4 -> 2."""
    assert coordinates(4, 2, "rescale").tolist() == [-0.25, 0.25, 0.75, 1.25]
    assert coordinates(2, 4, "rescale").tolist() == [0.5, 2.5]
    for n in (1, 14, 37):
        native = coordinates(n, n, "rescale", torch.float32)
        assert torch.equal(native, torch.arange(n, dtype=torch.float32))


def test_relative_angle_is_all_that_a_dot_product_sees() -> None:
    table = sinusoid(coordinates(9, 9, "extrapolate"), 16)
    gram = table @ table.T
    for shift in range(1, 8):
        diagonal = gram.diagonal(shift)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert gram[0, 0].item() == pytest.approx(8)
    assert gram[0, 1].item() < 7.9


def test_odd_width_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="even number of channels, got 5"):
        sinusoid(coordinates(3, 3, "extrapolate"), 5)


def test_unknown_mode_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'rescaled'") as caught:
        check_mode("rescaled")
    assert "Did you mean 'rescale'?" in caught.value.hint


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_impossible_temperature_is_a_usage_error(temperature: float) -> None:
    with pytest.raises(UsageError, match="temperature"):
        check_temperature(temperature)


def test_helper_is_not_an_encoding() -> None:
    assert "sinusoid" not in encodings.names()
    assert "sincos-2d" in encodings.names()
