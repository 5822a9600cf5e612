"""Finding blocks and patch convolutions, and working on copies that leave the original alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.sources.inspection import (
    detached,
    find_blocks,
    longest_stack,
    patch_convolution,
    without_data,
)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))


def _net(**stacks: nn.Module) -> nn.Module:
    net = nn.Module()
    for name, stack in stacks.items():
        net.add_module(name, stack)
    return net


def test_blocks_of_both_layouts_of_transformers() -> None:
    encoder = _net(layer=nn.ModuleList(_Block() for _ in range(3)))
    assert find_blocks(_net(encoder=encoder), 3) == (
        "encoder.layer.0", "encoder.layer.1", "encoder.layer.2",
    )  # fmt: skip
    flat = _net(layers=nn.ModuleList(_Block() for _ in range(3)))
    assert find_blocks(flat, 3) == ("layers.0", "layers.1", "layers.2")
    assert longest_stack(flat) == ("layers.0", "layers.1", "layers.2")


def test_lists_that_are_no_blocks() -> None:
    net = _net(
        norms=nn.ModuleList(nn.LayerNorm(4) for _ in range(3)),
        head=nn.Sequential(_Block(), nn.LayerNorm(4), _Block()),
        blocks=nn.Sequential(*(_Block() for _ in range(3))),
    )
    assert find_blocks(net, 3) == ("blocks.0", "blocks.1", "blocks.2")


def test_nested_lists_name_the_outer_one() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(_Block() for _ in range(2))

    assert find_blocks(_net(layer=nn.ModuleList(Deep() for _ in range(2))), 2) == (
        "layer.0", "layer.1",
    )  # fmt: skip


def test_two_stacks_cannot_be_told_apart() -> None:
    net = _net(*(), encoder=nn.ModuleList(_Block() for _ in range(2)),
               decoder=nn.ModuleList(_Block() for _ in range(2)))  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"candidates: encoder, decoder"):
        find_blocks(net, 2)
    with pytest.raises(UnsupportedError, match=r"candidates: none"):
        find_blocks(net, 5)
    assert longest_stack(nn.Linear(2, 2)) == ()


@pytest.mark.parametrize("family", ["vit", "deit", "dinov2", "dinov2_with_registers"])
def test_blocks_of_the_library(family: str, kit: Any) -> None:
    module = kit.build(family, head=True, num_hidden_layers=3)
    paths = find_blocks(module, 3)
    assert [type(module.get_submodule(p)).__name__[-5:] for p in paths] == ["Layer"] * 3
    assert [p.rsplit(".", 1)[1] for p in paths] == ["0", "1", "2"]


def test_patch_convolution() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1, 1), nn.Conv2d(3, 3, 3, 2), nn.Conv2d(3, 8, (14, 7),
                        (14, 7)))  # fmt: skip
    assert patch_convolution(net) is net[2]
    assert patch_convolution(net[:2]) is None


def test_detached_shares_memory_and_nothing_else() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train()
    copied = detached(net)
    assert not copied.training
    assert net.training
    assert not any(p.requires_grad for p in copied.parameters())
    assert all(p.requires_grad for p in net.parameters())
    mine = (*copied.parameters(), *copied.buffers())
    theirs = (*net.parameters(), *net.buffers())
    assert [t.data_ptr() for t in mine] == [t.data_ptr() for t in theirs]


def test_detached_keeps_tied_parameters_tied() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    copied: Any = detached(net)
    assert copied[0].weight is copied[1].weight


def test_a_run_without_data_takes_tensors_that_are_no_buffers() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.scale = torch.full((2,), 3.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale

    net = Scaled().eval()
    with without_data():
        out = net(torch.empty(5, 4))
    assert out.shape == (5, 2)
    assert torch.equal(net.scale, torch.full((2,), 3.0))
    assert net(torch.ones(1, 4)).isfinite().all()


def test_items_of_a_stack_are_called_by_their_own_names() -> None:
    """torchvision calls its blocks encoder_layer_0, encoder_layer_1, ..."""
    layers = OrderedDict(
        (f"encoder_layer_{k}", nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))) for k in range(3)
    )
    module = nn.Module()
    module.layers = nn.Sequential(layers)
    names = ("layers.encoder_layer_0", "layers.encoder_layer_1", "layers.encoder_layer_2")
    assert find_blocks(module, 3) == names
    assert longest_stack(module) == names
