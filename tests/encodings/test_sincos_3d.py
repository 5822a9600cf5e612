"""Factorised sinusoids of video: a worked example, the definition, the engines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vitpe_deploy.encodings.base import EncodingSpec, Grid
from vitpe_deploy.encodings.sincos_3d import SinCos3D
from vitpe_deploy.errors import UsageError


def build(grid: Grid, frames: int = 3, dim: int = 8, **params: Any) -> SinCos3D:
    return SinCos3D.build(EncodingSpec(grid, dim, 2, 1, 0, frames=frames, params=params))


def test_one_token_by_hand() -> None:
    """Width 4, two steps, a 2x3 grid; the token at t=1, y=1, x=2 is number 6 + 3 + 2."""
    table = build((2, 3), frames=2, dim=4).fit((2, 3))["table"]
    assert table.shape == (1, 12, 4)
    time = [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]
    space = [math.sin(1), math.cos(1), math.sin(2), math.cos(2)]
    expected = torch.tensor([a + b for a, b in zip(time, space, strict=True)])
    torch.testing.assert_close(table[0, 11], expected)
    torch.testing.assert_close(table[0, 0], torch.tensor([0.0, 2.0, 0.0, 2.0]))


@pytest.mark.parametrize("mode", ["extrapolate", "rescale"])
def test_all_answers_agree(answers_agree: Callable[..., None], mode: str) -> None:
    answers_agree(build((6, 6), mode=mode, scaling_factor=0.7))


def test_rescale_reads_new_places_on_the_trained_grid() -> None:
    """Twice as fine: centre i lies at i/2 - 1/4. Time does not move."""
    table = build((2, 2), frames=2, dim=4, mode="rescale").fit((4, 4))["table"]
    at = 3 * 0.5 - 0.25
    space = [math.sin(at), math.cos(at), math.sin(-0.25), math.cos(-0.25)]
    time = [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]
    expected = torch.tensor([a + b for a, b in zip(time, space, strict=True)])
    torch.testing.assert_close(table[0, 16 + 12], expected)  # t=1, y=3, x=0


def test_dynamic_graph_in_both_engines(export_dynamic: Callable[..., Any]) -> None:
    encoding = build((6, 9), mode="rescale")
    graph = export_dynamic(lambda h, w: encoding.in_graph(h, w)["table"])
    assert not {"Resize", "Loop", "If", "ScatterND"} & set(graph.operators)
    for grid in [(6, 9), (4, 4), (13, 7), (1, 1)]:
        expected = encoding.positions(grid)["table"].numpy()
        for engine, got in graph(*grid).items():
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=engine)


def test_impossible_options_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="multiple of 4, got 6"):
        build((2, 2), dim=6)
    with pytest.raises(UsageError, match="mode 'stretch'"):
        build((2, 2), mode="stretch")


def test_describes_itself_for_the_manifest() -> None:
    description = build((6, 9)).describe()
    assert (description.kind, description.native_grid) == ("sincos-3d", (6, 9))
    assert description.resample_rule is None
    assert description.params["time_steps"] == 3
