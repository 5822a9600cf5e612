"""Does the proof notice, for models of libraries? The referee is the library, and nothing else.

Each test of the second kind breaks one thing in what is traced and expects a failed verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitpe_deploy
from benchmarks.families import open_library, timm_networks
from benchmarks.families.base import Library, Saved, inputs_of
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.sources import open_source
from vitpe_deploy.sources.base import LoadedModel
from vitpe_deploy.sources.timm_model import TimmModel
from vitpe_deploy.sources.transformers_model import TransformersModel

SOURCES = {"timm": "deit3_small_patch16_224", "transformers": "vit"}
SLIM = {"depth": 2, "embed_dim": 96, "num_heads": 3, "num_classes": 7, "img_size": (96, 96)}
SIZE = Resolution(96, 160)

Network = tuple[Library, str, Saved]


@pytest.fixture(scope="module", params=SOURCES)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Network:
    """A small network of each library with drawn weights on disk."""
    library, name = open_library(request.param), SOURCES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "timm":
        return library, name, timm_networks.save(name, SLIM, folder)
    return library, name, library.save(name, folder)


def load(saved: Saved) -> LoadedModel:
    options = saved.options
    return open_source(
        ModelRequest(
            saved.model,
            weights=options.get("weights"),
            kwargs=options.get("model_kwargs", {}),
        )
    ).load()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_the_referee_is_the_library_alone(network: Network, mode: str) -> None:
    """The same weights, the network made and run without a line of this package: equal."""
    library, name, saved = network
    loaded = load(saved)
    pixels = inputs_of(loaded.facts.input, SIZE, 2)
    right = library.reference(name, saved, mode, (SIZE.height, SIZE.width), pixels)
    referee = loaded.referee(threads=1, symbolic=mode == "dynamic")
    (found,) = referee.outputs(SIZE, [pixels.numpy()], ["logits"])
    wanted = right.get("logits", right.get("*"))
    assert found["logits"].shape == wanted.shape
    assert np.abs(found["logits"] - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.filterwarnings("default")
def test_positions_matter_in_what_is_compared(network: Network) -> None:
    """With the table of the transposed grid the library itself answers something else."""
    library, name, saved = network
    loaded = load(saved)
    pixels = inputs_of(loaded.facts.input, SIZE, 1)
    right = library.reference(name, saved, "static", (SIZE.height, SIZE.width), pixels)
    turned = library.reference(
        name, saved, "static", (SIZE.width, SIZE.height), pixels.transpose(2, 3)
    )
    one, other = (np.asarray(next(iter(r.values()))) for r in (right, turned))
    assert np.abs(one - other).max() > 1e-2 * np.abs(one).max()


Break = Callable[[nn.Module, Any], nn.Module]


def at_native_size(module: nn.Module, loaded: Any) -> nn.Module:
    """The network of another size behind an input of the right one."""
    native = loaded.facts.native

    def resized(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return F.interpolate(inputs[0], size=(native.height, native.width), mode="bilinear"), *(
            inputs[1:]
        )

    if hasattr(module, "pos_embed"):
        module = loaded.fresh()
        module.patch_embed.strict_img_size = False  # type: ignore[union-attr]
    module.register_forward_pre_hook(resized)
    return module


def not_resampled(module: nn.Module, loaded: Any) -> nn.Module:
    """Rows of the native table in their old order, as many as there are patches."""
    count = (SIZE.height // 16) * (SIZE.width // 16)
    return _with_patches(module, loaded, lambda rows, _h, _w: rows.repeat(1, 4, 1)[:, :count])


def swapped(module: nn.Module, loaded: Any) -> nn.Module:
    """The table resampled for the transposed grid."""

    def turned(rows: torch.Tensor, h: int, w: int) -> torch.Tensor:
        side = round(rows.shape[1] ** 0.5)
        grid = rows.reshape(1, side, side, -1).permute(0, 3, 1, 2)
        antialias = isinstance(loaded, TimmModel)
        grid = F.interpolate(grid, size=(w, h), mode="bicubic", antialias=antialias)
        return grid.flatten(2).transpose(1, 2)

    return _with_patches(module, loaded, turned)


def _with_patches(module: Any, loaded: Any, change: Callable[..., torch.Tensor]) -> nn.Module:
    """Other patch rows in the position table."""
    h, w = SIZE.height // 16, SIZE.width // 16
    if isinstance(loaded, TimmModel):
        rows = change(loaded.fresh().pos_embed.detach(), h, w)
        module.pos_embed = nn.Parameter(rows, requires_grad=False)
        return module  # type: ignore[no-any-return]
    embeddings = module.vit.embeddings
    table = embeddings.position_embeddings.detach()
    rows = torch.cat([table[:, :1], change(table[:, 1:], h, w)], dim=1)
    embeddings.interpolate_pos_encoding = lambda *_args: rows
    return module  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("fault", [None, at_native_size, not_resampled, swapped])
def test_a_fault_in_the_file_is_noticed(
    network: Network, fault: Break | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cls in (TimmModel, TransformersModel):

        def broken(self: Any, size: Resolution | None, _right: Any = cls.explicit) -> nn.Module:
            module: nn.Module = _right(self, size)
            return module if fault is None else fault(module, self)

        monkeypatch.setattr(cls, "explicit", broken)
    _, _, saved = network
    report = vitpe_deploy.export(saved.model, SIZE, output_dir=tmp_path, threads=1, **saved.options)
    assert report.verdict == ("passed" if fault is None else "failed")
    if fault is not None:
        assert min(row.max_rel for row in report.parity) > 1e-2


@pytest.mark.filterwarnings("default")
def test_a_dynamic_file_of_one_grid_is_noticed(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right at its native size, wrong at every other."""
    for cls in (TimmModel, TransformersModel):

        def broken(self: Any, size: Resolution | None, _right: Any = cls.explicit) -> nn.Module:
            return at_native_size(_right(self, size), self)

        monkeypatch.setattr(cls, "explicit", broken)
    _, _, saved = network
    report = vitpe_deploy.export(
        saved.model, output_dir=tmp_path, threads=1, dynamic="size", **saved.options
    )
    native = load(saved).facts.native
    assert report.verdict == "failed"
    for row in report.parity:
        assert row.passed == (list(row.resolution or ()) == native.as_list()), row
