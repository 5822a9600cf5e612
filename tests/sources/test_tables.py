"""Readings of tensors as tables: shapes, prefix rows, relative positions, what is put in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.encodings.resample import ResampleRule, interpolate_grid, resample_grid
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.sources.module import open_module
from vitpe_deploy.sources.table_search import Search
from vitpe_deploy.sources.tables import (
    LearnedTable,
    RelativeTable,
    fitted,
    install,
    readings,
    relative_index,
    tensor_at,
)

PLAIN = ResampleRule("bicubic", antialias=False)


class Net(nn.Module):
    """A patch convolution and one table, put on by ``add``."""

    def __init__(self, table: Tensor, prefix: int = 0, embedding: bool = False) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 16, 16)
        self.prefix = nn.Parameter(torch.randn(1, prefix, 8))
        if embedding:
            self.embedding = nn.Embedding.from_pretrained(table, freeze=False)
            self.register_buffer("ids", torch.arange(table.shape[0])[None])
        else:
            self.table = nn.Parameter(table)
        self.mix = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x)
        if hasattr(self, "table") and self.table.shape[-3:-2] == (8,):
            x = x + self.table
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], 1)
        if hasattr(self, "embedding"):
            x = x + self.embedding(self.ids)
        elif self.table.shape[-3:-2] != (8,):
            table = self.table
            x = x + (table.flatten(-3, -2) if table.dim() > 3 else table)
        mixed: Tensor = self.mix(x).tanh().mean(1)
        return mixed


def _search(network: nn.Module) -> Search:
    return Search(lambda: network, 3, (16, 16))


@pytest.mark.parametrize(
    ("shape", "prefix", "layout"),
    [((1, 16, 8), 0, "rows"), ((1, 18, 8), 2, "rows"), ((21, 8), 5, "rows"),
     ((1, 8, 4, 4), 0, "channels-first"), ((8, 4, 4), 0, "channels-first"),
     ((1, 4, 4, 8), 0, "channels-last")],
)  # fmt: skip
def test_every_layout_is_found_and_filled(shape: Any, prefix: int, layout: str) -> None:
    import copy

    table = torch.randn(shape)
    network = Net(table, prefix).eval()
    search = Search(lambda: copy.deepcopy(network), 3, (16, 16))
    (found,) = search.find(Resolution(80, 112))
    assert found == LearnedTable("table", (4, 4), prefix, layout)  # type: ignore[arg-type]
    (value,) = found.fitted(network, (3, 5), resample_grid, PLAIN).values()
    if layout == "rows":
        rows = table.reshape(-1, 8)
        picture = rows[prefix:].T.reshape(1, 8, 4, 4)
        right = F.interpolate(picture, size=(3, 5), mode="bicubic")
        patches = value.reshape(-1, 8)[prefix:].T.reshape(1, 8, 3, 5)
        assert torch.equal(value.reshape(-1, 8)[:prefix], rows[:prefix])
    else:
        picture = table.reshape(shape[-3:])
        picture = picture if layout == "channels-first" else picture.permute(2, 0, 1)
        right = F.interpolate(picture[None], size=(3, 5), mode="bicubic")
        patches = value.reshape(value.shape[-3:])
        patches = (patches if layout == "channels-first" else patches.permute(2, 0, 1))[None]
    assert torch.allclose(patches, right, atol=1e-5)
    assert value.dim() == table.dim()


def test_an_embedding_and_its_numbers() -> None:
    import copy

    network = Net(torch.randn(17, 8), 1, embedding=True).eval()
    search = Search(lambda: copy.deepcopy(network), 3, (16, 16))
    (found,) = search.find(Resolution(80, 112))
    assert found == LearnedTable("embedding.weight", (4, 4), 1, "rows", "ids")
    values = found.fitted(network, (2, 5), interpolate_grid, PLAIN)
    assert torch.equal(values["ids"], torch.arange(11)[None])
    assert values["embedding.weight"].shape == (11, 8)


def test_a_table_at_its_own_grid_is_left_alone() -> None:
    """C05 and C08: always from the original, which is untouched at its own grid."""
    network = Net(torch.randn(1, 16, 8))
    table = LearnedTable("table", (4, 4), 0)
    assert fitted(network, [table], (4, 4), resample_grid, PLAIN) == {}
    before = network.table.clone()
    fitted(network, [table], (6, 6), resample_grid, PLAIN)
    assert torch.equal(network.table, before)


def test_layers_of_torch_hold_no_tables() -> None:
    network = Net(torch.randn(1, 16, 8))
    network.mix = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))  # [16, 8] is no table
    assert {t.path for t in readings(network, (16, 16), None)} == {"table"}


def test_a_grid_that_is_not_square_needs_the_native_size() -> None:
    network = Net(torch.randn(1, 15, 8))
    assert readings(network, (16, 16), None) != [LearnedTable("table", (3, 5), 0)]
    assert readings(network, (16, 16), Resolution(48, 80)) == [LearnedTable("table", (3, 5), 0)]


@pytest.mark.parametrize("prefix", [0, 1])
def test_the_index_of_relative_positions_is_timms(prefix: int) -> None:
    from timm.layers.pos_embed_rel import gen_relative_position_index

    right = gen_relative_position_index((3, 5), class_token=bool(prefix))
    assert torch.equal(relative_index((3, 5), prefix), right)


class Relative(nn.Module):
    """Attention with a bias for each distance of the whole grid."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 16, 16)
        self.bias_table = nn.Parameter(0.5 * torch.randn(49, 2))
        self.register_buffer("index", relative_index((4, 4), 0))
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = self.bias_table[self.index].permute(2, 0, 1)[None]
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        logits: Tensor = self.head(x.mean(1))
        return logits


def test_relative_tables(kit: Any, export: Any) -> None:
    torch.manual_seed(0)
    network = Relative().eval()
    found = readings(network, (16, 16), None)
    assert found == [RelativeTable("bias_table", (4, 4), 0, "index")]
    exported = export(network, (48, 96))
    assert exported.report.encoding == "relative-2d"
    picture = network.bias_table.detach().T.reshape(1, 2, 7, 7)
    right = F.interpolate(picture, size=(5, 11), mode="bicubic", antialias=True)
    install(network, {"bias_table": right[0].flatten(1).T, "index": relative_index((3, 6), 0)})
    pixels = kit.pictures(48, 96)
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["logits"], network(pixels).detach()) <= 1e-5, engine


def test_the_users_module_keeps_its_table(export: Any) -> None:
    network = Net(torch.randn(1, 17, 8), 1).eval()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    export(network, (48, 96))
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert isinstance(network.table, nn.Parameter)
    source = open_module(network, ModelRequest(model="Net"), None)
    assert source.facts().native == Resolution(64, 64)
    assert tensor_at(network, "table") is network.table
