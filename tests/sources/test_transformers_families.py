"""What a look at a class of transformers gives, and what it must not leave behind."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.needs import needs
from vitpe_deploy.errors import SourceError
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.sources import open_source

_BEIT = {
    "model_type": "beit", "architectures": ["BeitModel"], "hidden_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 1, "intermediate_size": 8, "image_size": 80, "patch_size": 16,
    "use_relative_position_bias": True,
}  # fmt: skip


def _folder(tmp_path: Path, config: str) -> str:
    (tmp_path / "config.json").write_text(config)
    return f"hf:{tmp_path}"


@needs("transformers", "5", "earlier ones keep no index for the process")
def test_a_look_leaves_nothing_in_the_library(tmp_path: Path) -> None:
    """BEiT's index is kept for the process, by grid: the referee reads what a look puts there."""
    from transformers.models.beit.modeling_beit import BeitRelativePositionBias

    facts = open_source(ModelRequest(_folder(tmp_path, json.dumps(_BEIT)))).facts()
    assert facts.native is not None
    assert (facts.native.height, facts.native.width) == (80, 80)
    index = BeitRelativePositionBias.generate_relative_position_index((5, 5))
    assert index.device.type == "cpu"
    assert index.shape == (26, 26)
    assert index[0, 0] == 9 * 9 + 2
    assert index[1, 1] == 9 * 4 + 4  # the same place: the middle of the table
    assert index[1, 25] == 0


def test_tokens_of_a_convolutional_network_have_its_mean_before_them(tmp_path: Path) -> None:
    config = {"model_type": "dinov3_convnext", "architectures": ["DINOv3ConvNextModel"],
              "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "image_size": 64}  # fmt: skip
    facts = open_source(ModelRequest(_folder(tmp_path, json.dumps(config)))).facts()
    assert facts.prefix_tokens == 1
    assert facts.grid_divisor == (32, 32)
    assert set(facts.outputs) == {"tokens", "pooled", "cls", "feature-map"}


def test_swin_is_compared_with_a_fresh_network_for_each_size(kit: Any) -> None:
    """C13: the library's windows and shifts stay as the last small map left them."""
    import transformers

    config = transformers.SwinConfig(
        image_size=32, patch_size=4, window_size=4, embed_dim=16, depths=[2, 2], num_heads=[1, 2]
    )
    module = transformers.SwinModel(config).eval()
    kit.randomise(module)
    pixels = {n: kit.pictures(n, n) for n in (32, 64)}

    def answer(network: Any, size: int) -> Any:
        with torch.no_grad():
            return network(pixels[size]).last_hidden_state

    right = {n: answer(copy.deepcopy(module), n) for n in pixels}
    used = copy.deepcopy(module)
    answer(used, 32)
    assert kit.max_rel(answer(used, 64), right[64]) > 1e-3
    referee = open_source(ModelRequest(f"hf:{kit.save(module)}")).load().referee(symbolic=True)
    for size, x in pixels.items():
        (given,) = referee.outputs(Resolution(size, size), [x.numpy()], ["tokens"])
        assert kit.max_rel(given["tokens"], right[size]) <= 1e-6, size


def test_config_that_is_nested_too_deeply(tmp_path: Path) -> None:
    depth = 200_000
    model = _folder(tmp_path, '{"a":' + "[" * depth + "]" * depth + "}")
    with pytest.raises(SourceError, match=r"config\.json .* is not valid JSON: maximum recursion"):
        open_source(ModelRequest(model)).facts()
