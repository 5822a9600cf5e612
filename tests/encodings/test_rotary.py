"""The rotation: both layouts against complex numbers and timm."""

from __future__ import annotations

import pytest
import torch
from timm.layers import apply_rot_embed

from vitpe_deploy.encodings.rotary import Layout, rotate, with_leading_rows

LAYOUTS: list[Layout] = ["interleaved", "half"]


def test_quarter_turn_by_hand() -> None:
    x, cos, sin = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(2), torch.ones(2)
    assert rotate(x, cos, sin, "interleaved").tolist() == [-2, 1, -4, 3]
    assert rotate(x, cos, sin, "half").tolist() == [-3, -4, 1, 2]


def test_equals_complex_multiplication() -> None:
    """C21: real arithmetic gives what view_as_complex and polar give, to 1e-6."""
    torch.manual_seed(0)
    x, angle = torch.randn(2, 3, 5, 8), torch.randn(5, 4)
    pairs = torch.view_as_complex(torch.unflatten(x, -1, (4, 2)))
    want = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    got = rotate(x, angle.cos(), angle.sin(), "interleaved")
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_timm(layout: Layout) -> None:
    torch.manual_seed(0)
    x, angle = torch.randn(2, 3, 5, 8), torch.randn(5, 4)
    full = torch.cat([angle, angle], -1) if layout == "half" else angle.repeat_interleave(2, -1)
    want = apply_rot_embed(x, full.sin(), full.cos(), half=layout == "half")
    got = rotate(x, angle.cos(), angle.sin(), layout)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


def test_leading_rows_leave_tokens_alone() -> None:
    torch.manual_seed(0)
    angle, x = torch.randn(3, 2, 5, 4), torch.randn(2, 7, 8)
    tables = with_leading_rows(angle.cos(), angle.sin(), 2)
    assert tables["cos"].shape == (3, 2, 7, 4)
    turned = rotate(x, tables["cos"], tables["sin"], "half")
    assert torch.equal(turned[..., :2, :], x[..., :2, :].expand(3, 2, 2, 8))
    assert torch.equal(turned[..., 2:, :], rotate(x[..., 2:, :], angle.cos(), angle.sin(), "half"))
