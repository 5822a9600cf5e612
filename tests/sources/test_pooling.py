"""Rewritings that are exact at every size, against torch's own functions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitpe_deploy.sources.pooling import pooled_to_a_grid, pools_to_a_grid
from vitpe_deploy.sources.transformers_traceable import _cut_patches, _join_patches


@pytest.mark.parametrize("cells", [7, (3, 5), (1, 4)])
@pytest.mark.parametrize("size", [(7, 7), (14, 10), (9, 23), (3, 50), (1, 1)])
def test_pooling_to_a_grid_is_torchs(cells: int | tuple[int, int], size: tuple[int, int]) -> None:
    """Cells that overlap, repeat and are smaller than a pixel included."""
    pool = nn.AdaptiveAvgPool2d(cells)
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(pooled_to_a_grid(pool, x), pool(x), atol=1e-6)


def test_what_pools_to_a_grid() -> None:
    assert pools_to_a_grid(nn.AdaptiveAvgPool2d(7))
    assert pools_to_a_grid(nn.AdaptiveAvgPool2d((1, 2)))
    assert not pools_to_a_grid(nn.AdaptiveAvgPool2d(1))
    assert not pools_to_a_grid(nn.AdaptiveAvgPool2d((1, 1)))
    assert not pools_to_a_grid(nn.AvgPool2d(7))


@pytest.mark.parametrize("patch", [(2, 2), (2, 3)])
@pytest.mark.parametrize("size", [(4, 6), (5, 7), (2, 9)])
def test_patches_are_cut_and_joined_as_by_fold(
    patch: tuple[int, int], size: tuple[int, int]
) -> None:
    """What no patch covers is zero afterwards, as torch leaves it."""
    layer = SimpleNamespace(patch_height=patch[0], patch_width=patch[1])
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    cut, whole = _cut_patches(layer, x)
    right = F.unfold(x, kernel_size=patch, stride=patch)
    assert whole == size
    assert torch.equal(cut, right.reshape(cut.shape))
    joined = _join_patches(layer, cut, whole)
    assert torch.equal(joined, F.fold(right, size, kernel_size=patch, stride=patch))
