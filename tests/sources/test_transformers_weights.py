"""Loading hf: folders: what fits is loaded whole, what does not is refused by name."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitpe_deploy.errors import SourceError
from vitpe_deploy.request import ModelRequest
from vitpe_deploy.sources import open_source
from vitpe_deploy.sources.base import LoadedModel

# transformers 4 reports the name, 5 the shapes as well.
SHAPES = re.compile(
    r"embeddings\.position_embeddings "
    r"(is \[1, 26, 32\], the model has \[1, 37, 32\]|has another shape)"
)


def _load(folder: Path) -> LoadedModel:
    return open_source(ModelRequest(model=f"hf:{folder}")).load()


def _rewrite(folder: Path, change: Any) -> Path:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def _outputs(loaded: LoadedModel, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return loaded.call(loaded.fresh(), pixels, loaded.facts.default_outputs)


def test_loads_what_was_saved(kit: Any) -> None:
    module = kit.build("vit")
    loaded = _load(kit.save(module))
    assert loaded.weights == "from hf:tiny"
    assert loaded.num_parameters == sum(p.numel() for p in module.parameters())
    pixels = kit.pictures(96, 96)
    right = kit.forward(module, pixels)
    found = _outputs(loaded, pixels)
    torch.testing.assert_close(found["tokens"], right.last_hidden_state, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["pooled"], right.pooler_output, rtol=1e-5, atol=1e-5)


def test_half_precision_checkpoints_run_in_float32(kit: Any) -> None:
    loaded = _load(kit.save(kit.build("vit").half()))
    found = _outputs(loaded, kit.pictures(96, 96))["tokens"]
    assert found.dtype == torch.float32
    exact = kit.build("vit").half().float()
    right = kit.forward(exact, kit.pictures(96, 96)).last_hidden_state
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


def test_no_pooler_in_the_checkpoint(kit: Any) -> None:
    """transformers would draw a random pooler; here that output does not exist."""
    folder = kit.folder("vit")

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if n.startswith("pooler.")]:
            del tensors[name]

    loaded = _load(_rewrite(folder, drop))
    assert loaded.facts.default_outputs == ("tokens",)
    assert "pooled" not in loaded.facts.outputs
    assert not any("pooler" in n for n, _ in loaded.fresh().named_parameters())
    right = kit.forward(kit.build("vit"), kit.pictures(96, 96)).last_hidden_state
    found = _outputs(loaded, kit.pictures(96, 96))["tokens"]
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


def test_everything_that_does_not_fit_is_listed(kit: Any) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["layernorm.bias"]
        tensors["surplus.weight"] = torch.zeros(3)
        tensors["embeddings.position_embeddings"] = torch.zeros(1, 26, 32)

    with pytest.raises(SourceError) as refused:
        _load(_rewrite(kit.folder("vit"), change))
    message = refused.value.message
    assert "do not fit ViTModel" in message
    assert "missing layernorm.bias" in message
    assert "unexpected surplus.weight" in message
    assert SHAPES.search(message), message


def test_a_config_of_another_size_does_not_fit(kit: Any) -> None:
    folder = kit.edit(kit.folder("vit"), image_size=80)
    with pytest.raises(SourceError, match=r"position_embeddings (is \[1, 37, 32\]|has another)"):
        _load(folder)


def test_long_lists_are_cut(kit: Any) -> None:
    with pytest.raises(SourceError, match=r"missing .*; and \d+ more"):
        _load(kit.edit(kit.folder("vit"), num_hidden_layers=3))


@pytest.mark.parametrize("keep", [0, 5, 1000])
def test_damaged_safetensors(kit: Any, keep: int) -> None:
    path = kit.folder("vit") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match="cannot be loaded"):
        _load(path.parent)


def test_no_weights_at_all(kit: Any) -> None:
    folder = kit.folder("vit")
    (folder / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="cannot be loaded"):
        _load(folder)


class _Payload:
    """Runs a command when it is unpickled by a reader that does not look."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_pickled_code_is_not_executed(kit: Any, tmp_path: Path) -> None:
    folder = kit.folder("vit")
    (folder / "model.safetensors").unlink()
    marker = tmp_path / "executed"
    torch.save({"layernorm.bias": _Payload(marker)}, folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match="cannot be loaded"):
        _load(folder)
    assert not marker.exists()
    pickle.loads(pickle.dumps(_Payload(marker)))
    assert marker.exists()  # the payload is a real one


def test_configs_that_change_what_the_class_returns(kit: Any) -> None:
    folder = kit.folder("dinov2", head=True)
    right = kit.forward(kit.build("dinov2", head=True), kit.pictures(84, 84)).logits
    kit.edit(folder, return_dict=False, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(_outputs(_load(folder), kit.pictures(84, 84))["logits"], right)


def test_the_librarys_settings_stay_the_users(kit: Any) -> None:
    from transformers.utils import logging

    folder, level = kit.folder("vit"), logging.get_verbosity()
    try:
        logging.set_verbosity_info()
        _load(folder)
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(level)


def test_non_square_native_grid_runs_as_the_library_runs_it(kit: Any, export: Any) -> None:
    """4x9 = 36 positions: asked to interpolate, the library would read them as 6x6."""
    module = kit.build("vit", image_size=[64, 144], num_hidden_layers=1)
    pixels = kit.pictures(64, 144)
    with torch.no_grad():
        right = module(pixels).last_hidden_state.numpy()
    assert kit.max_rel(kit.forward(module, pixels).last_hidden_state, right) > 0.1
    exported = export(kit.save(module))
    assert exported.input_shape() == [1, 3, 64, 144]
    for engine, given in exported.run(pixels):
        assert kit.max_rel(given["tokens"], right) <= 1e-5, engine
