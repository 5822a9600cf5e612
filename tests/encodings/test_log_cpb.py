"""The continuous bias of Swin V2: closed forms, torchvision as oracle, the pretrained window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vitpe_deploy import encodings
from vitpe_deploy.encodings.base import EncodingSpec, Grid
from vitpe_deploy.encodings.log_cpb import LogCPB, log_offsets
from vitpe_deploy.errors import UsageError

WINDOWS: tuple[Grid, ...] = ((4, 4), (2, 2), (7, 7), (3, 6), (6, 1))


def build(grid: Grid, heads: int = 2, hidden: int = 16) -> LogCPB:
    torch.manual_seed(0)
    spec = EncodingSpec(grid, heads * 4, heads, 1, prefix_tokens=0, params={"hidden": hidden})
    return LogCPB.build(spec).requires_grad_(False)


def literal(encoding: LogCPB, h: int, w: int) -> Tensor:
    """Section 3.3 of the paper, pair by pair, in float64: [M, h*w, h*w]."""

    def log(offset: int, pretrained: int) -> float:
        x = 8 * offset / max(pretrained - 1, 1)
        return math.copysign(math.log2(1 + abs(x)) / math.log2(8), x)

    w1, b1, w2 = (p.double() for p in (encoding.fc1.weight, encoding.fc1.bias, encoding.fc2.weight))
    bias = torch.empty(len(w2), h * w, h * w, dtype=torch.float64)
    for q in range(h * w):
        for k in range(h * w):
            offset = torch.tensor(
                [
                    log(q // w - k // w, encoding.spec.grid[0]),
                    log(q % w - k % w, encoding.spec.grid[1]),
                ],
                dtype=torch.float64,
            )
            z = w2 @ (w1 @ offset + b1).clamp(min=0)
            bias[:, q, k] = 16 / (1 + torch.exp(-z))
    return bias


def test_log_scale_by_hand() -> None:
    end = math.log2(9) / 3
    middle = math.log2(5) / 3
    expected = torch.tensor([-end, -middle, 0.0, middle, end])
    torch.testing.assert_close(log_offsets(3, 3), expected)  # 8 * (-1, -1/2, 0, 1/2, 1)


def test_offsets_keep_their_meaning_in_a_larger_window() -> None:
    native, wide = log_offsets(8, 8), log_offsets(16, 8)
    assert torch.equal(wide[8:-8], native)
    torch.testing.assert_close(wide[-1], torch.tensor(math.log2(1 + 8 * 15 / 7) / 3))


def test_a_pretrained_window_of_one_does_not_divide_by_zero() -> None:
    torch.testing.assert_close(log_offsets(2, 1)[-1], torch.tensor(math.log2(9) / 3))


@pytest.mark.parametrize("window", WINDOWS)
def test_all_answers_equal_the_definition(window: Grid) -> None:
    encoding = build((4, 5))
    expected = literal(encoding, *window).float().unsqueeze(0)
    for positions in (encoding.positions(window), encoding.fit(window), encoding.in_graph(*window)):
        torch.testing.assert_close(positions["bias"], expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.3  # the test weights make positions count


@pytest.mark.parametrize("window", [(8, 8), (3, 5)])
def test_agrees_with_torchvision(window: Grid) -> None:
    from torchvision.models.swin_transformer import ShiftedWindowAttentionV2

    theirs = ShiftedWindowAttentionV2(12, list(window), [0, 0], 3)
    encoding = build(window, heads=3, hidden=512)
    encoding.fc1.load_state_dict(theirs.cpb_mlp[0].state_dict())
    encoding.fc2.load_state_dict(theirs.cpb_mlp[2].state_dict())
    expected = theirs.get_relative_position_bias().detach()
    torch.testing.assert_close(encoding.positions(window)["bias"], expected, rtol=0, atol=1e-5)


def test_pairs_inside_the_pretrained_window_keep_their_bias() -> None:
    """Normalising by the current window instead would move every one of them."""
    encoding = build((4, 4))
    native, wide = encoding.fit((4, 4))["bias"], encoding.fit((6, 6))["bias"]
    corner = torch.arange(36).reshape(6, 6)[:4, :4].flatten()
    torch.testing.assert_close(wide[:, :, corner][..., corner], native, rtol=0, atol=1e-6)


def test_fit_leaves_no_mlp_behind() -> None:
    assert not build((4, 4)).requires_grad_(True).fit((4, 4))["bias"].requires_grad


def test_dynamic_window_in_both_engines(export_dynamic: Callable[..., Any]) -> None:
    encoding = build((4, 4))
    graph = export_dynamic(lambda h, w: encoding.in_graph(h, w)["bias"])
    assert not {"Resize", "Loop", "If", "ScatterND"} & set(graph.operators)
    for window in WINDOWS:
        expected = encoding.positions(window)["bias"].numpy()
        for engine, got in graph(*window).items():
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4, err_msg=engine)


def test_lives_in_swin_only() -> None:
    assert encodings.get_for("log-cpb", "swin") is LogCPB
    with pytest.raises(UsageError, match="log-cpb does not fit the video"):
        encodings.get_for("log-cpb", "video")


def test_describes_itself_for_the_manifest() -> None:
    description = build((8, 8)).describe()
    assert (description.kind, description.native_grid) == ("log-cpb", (8, 8))
    assert description.resample_rule is None
    assert description.params == {"hidden": 16}
