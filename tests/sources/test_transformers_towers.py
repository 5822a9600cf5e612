"""hf: models with two towers, each against the library's own call for it: C26, C27, SigLIP."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import vitpe_deploy
from tests.needs import needs
from vitpe_deploy.errors import SizeError, UnsupportedError, UsageError
from vitpe_deploy.runtimes import open_runtime

BOTH = ("onnx", "openvino")
END = 98

VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": 64, "patch_size": 16,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "vocab_size": 99, "max_position_embeddings": 77,
}  # fmt: skip


def clip(kit: Any) -> Any:
    import transformers

    config = transformers.CLIPConfig(
        vision_config={**VISION, "projection_dim": 24},
        text_config={**TEXT, "eos_token_id": END, "projection_dim": 24},
        projection_dim=24,
    )
    return _random(transformers.CLIPModel(config), kit)


def siglip(kit: Any) -> Any:
    import transformers

    config = transformers.SiglipConfig(
        vision_config=VISION,
        text_config={**TEXT, "max_position_embeddings": 64, "projection_size": 32},
    )
    return _random(transformers.SiglipModel(config), kit)


def bert(kit: Any) -> Any:
    import transformers

    config = transformers.BertConfig(**{**TEXT, "max_position_embeddings": 40})
    return _random(transformers.BertModel(config), kit)


def _random(module: Any, kit: Any) -> Any:
    """Weights in which every part matters, positions among them."""
    kit.randomise(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "position" in name:
                parameter.mul_(0.5)
    return module.eval()


def _words(length: int, ends: tuple[int, ...]) -> Tensor:
    """[B, L]: words of no pattern, the end token at a place of each text, other words after it."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, END, (len(ends), length), generator=generator)
    for item, place in enumerate(ends):
        ids[item, place] = END
    return ids


def _library(module: Any, method: str, inputs: Tensor, **options: Any) -> NDArray[Any]:
    """What the library compares: pictures and texts after their projection."""
    with torch.no_grad():
        result = getattr(module, method)(inputs, **options)
    values = result if isinstance(result, Tensor) else result.pooler_output
    return values.numpy()  # type: ignore[no-any-return]


def _texts(exported: Any, ids: Tensor) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Every file in every engine that takes it."""
    for artifact in exported.report.artifacts:
        names = ("onnxruntime", "openvino") if artifact.format == "onnx" else ("openvino",)
        for name in names:
            with open_runtime(name, Path(artifact.path), device="CPU", threads=2) as runtime:
                yield f"{name} {artifact.format}", runtime.run({"input_ids": ids.numpy()})


@pytest.mark.parametrize(("build", "sizes"), [(clip, [(96, 128)]), (siglip, [(48, 128)])])
def test_vision_tower(build: Any, sizes: list[tuple[int, int]], kit: Any, export: Any) -> None:
    """At the native size and at one that is neither native nor square, in every engine."""
    module = build(kit)
    folder = kit.save(module)
    for size in sizes:
        exported = export(folder, size, tower="vision", formats=BOTH)
        assert exported.input_shape() == [1, 3, *size]
        assert exported.operators.isdisjoint({"Resize", "Interpolate"})
        pixels = kit.pictures(*size)
        right = _library(module, "get_image_features", pixels, interpolate_pos_encoding=True)
        for engine, given in exported.run(pixels):
            assert list(given) == ["embedding"], engine
            assert kit.max_rel(given["embedding"], right) <= 1e-5, (engine, size)


def test_vision_tower_of_any_size(kit: Any, export: Any) -> None:
    """One file; pooled is before the projection, tokens are the encoder's."""
    module = clip(kit)
    outputs = ("embedding", "pooled", "tokens")
    exported = export(kit.save(module), tower="vision", dynamic="all", outputs=outputs)
    for _engine, run in exported.engines():
        for size, batch in (((64, 64), 1), ((48, 112), 2)):
            pixels = kit.pictures(*size, batch=batch)
            with torch.no_grad():
                encoded = module.vision_model(pixels, interpolate_pos_encoding=True)
            given = run(pixels)
            right = {
                "embedding": module.visual_projection(encoded.pooler_output).detach().numpy(),
                "pooled": encoded.pooler_output.numpy(),
                "tokens": encoded.last_hidden_state.numpy(),
            }
            for name, values in right.items():
                assert kit.max_rel(given[name], values) <= 1e-5, (name, size)


def test_text_tower_lengths(kit: Any, export: Any) -> None:
    """C26: 1, 8 and 77 tokens match, 78 is refused with both numbers; in a file of any length."""
    module = clip(kit)
    exported = export(kit.save(module), tower="text", dynamic="length", formats=BOTH)
    assert exported.input_shape() == [1, "length"]
    for length in (1, 8, 77):
        ids = _words(length, (length // 2,))
        right = _library(module, "get_text_features", ids)
        for engine, given in _texts(exported, ids):
            assert kit.max_rel(given["embedding"], right) <= 1e-5, (engine, length)
    with pytest.raises(SizeError) as caught:
        next(_texts(exported, _words(78, (70,))))
    assert "78" in str(caught.value)
    assert "77" in str(caught.value)


def test_text_tower_ends(kit: Any, export: Any) -> None:
    """C27: the embedding is read at the first end token, wherever that is, in each text."""
    module = clip(kit)
    outputs = ("embedding", "pooled", "tokens")
    exported = export(kit.save(module), tower="text", outputs=outputs, dynamic="batch")
    ids = _words(77, (3, 40, 76))
    ids[0, 9] = END  # a second one does not count
    with torch.no_grad():
        encoded = module.text_model(ids)
    right = encoded.last_hidden_state[torch.arange(3), torch.tensor([3, 40, 76])].numpy()
    assert np.abs(np.diff(right, axis=0)).max() > 0.1  # other places give other rows
    for engine, given in _texts(exported, ids):
        assert kit.max_rel(given["pooled"], right) <= 1e-5, engine
        assert kit.max_rel(given["tokens"], encoded.last_hidden_state.numpy()) <= 1e-5, engine
        embedding = _library(module, "get_text_features", ids)
        assert kit.max_rel(given["embedding"], embedding) <= 1e-5, engine


def test_text_tower_stretched(kit: Any, export: Any) -> None:
    """--max-length 248: the first 20 positions stay, so a short text is what it was."""
    module = clip(kit)
    exported = export(kit.save(module), tower="text", max_length=248, dynamic="length")
    ids = _words(20, (15,))
    right = _library(module, "get_text_features", ids)
    for engine, given in _texts(exported, ids):
        assert kit.max_rel(given["embedding"], right) <= 1e-5, engine
    assert "77 -> 248" in str(exported.report.resample_rule)
    with pytest.raises(SizeError, match=r"100 .* 77 positions"):
        vitpe_deploy.export(f"hf:{kit.root / 'tiny'}", tower="text", max_length=100)


def test_siglip_text_tower(kit: Any, export: Any) -> None:
    """SigLIP reads its last token and its padding, as it was trained."""
    module = siglip(kit)
    exported = export(kit.save(module), tower="text", formats=BOTH)
    assert exported.input_shape() == [1, 64]
    ids = _words(64, (11,))
    ids[:, 12:] = module.config.text_config.pad_token_id
    right = _library(module, "get_text_features", ids)
    for engine, given in _texts(exported, ids):
        assert kit.max_rel(given["embedding"], right) <= 1e-5, engine


def test_both_towers(kit: Any, export: Any) -> None:
    """Two files, one report, one manifest each."""
    module = clip(kit)
    exported = export(kit.save(module), tower="both", dynamic="batch")
    names = [Path(a.path).name for a in exported.report.artifacts]
    assert len(names) == 2
    assert "vision" in names[0]
    assert "text" in names[1]
    vision, text = (Path(a.path) for a in exported.report.artifacts)
    pixels, ids = kit.pictures(64, 64, batch=2), _words(77, (5, 60))
    with open_runtime("onnxruntime", vision, device="CPU", threads=2) as runtime:
        given = runtime.run({"pixel_values": pixels.numpy()})["embedding"]
        assert kit.max_rel(given, _library(module, "get_image_features", pixels)) <= 1e-5
    with open_runtime("onnxruntime", text, device="CPU", threads=2) as runtime:
        given = runtime.run({"input_ids": ids.numpy()})["embedding"]
        assert kit.max_rel(given, _library(module, "get_text_features", ids)) <= 1e-5
    verified = vitpe_deploy.verify(text)
    assert verified.verdict == "passed", verified.parity


@needs("transformers", "5", "earlier encoders of text cannot be run without data")
def test_text_encoder_leaves_padding_unread(kit: Any, export: Any) -> None:
    """BERT, as its tokenizer calls it: with a mask over padding."""
    module = bert(kit)
    exported = export(kit.save(module), dynamic="batch", outputs=("tokens", "pooled"))
    ids = _words(40, (39, 6))
    ids[1, 7:] = module.config.pad_token_id
    with torch.no_grad():
        right = module(ids, attention_mask=(ids != module.config.pad_token_id).long())
        unmasked = module(ids)
    assert kit.max_rel(unmasked.pooler_output, right.pooler_output) > 1e-3
    for engine, given in _texts(exported, ids):
        assert kit.max_rel(given["pooled"], right.pooler_output.numpy()) <= 1e-5, engine
        assert kit.max_rel(given["tokens"], right.last_hidden_state.numpy()) <= 1e-5, engine


def test_a_tower_must_be_chosen(kit: Any, tmp_path: Path) -> None:
    """Two towers and no --tower: a usage error that names them; one that is wrong: the closest."""
    folder = kit.save(clip(kit))
    with pytest.raises(UsageError) as caught:
        vitpe_deploy.export(f"hf:{folder}", output_dir=tmp_path / "none")
    assert caught.value.exit_code == 2
    assert all(n in caught.value.message + caught.value.hint for n in ("vision", "text", "both"))
    with pytest.raises(UsageError, match="visoin"):
        vitpe_deploy.export(f"hf:{folder}", output_dir=tmp_path / "none", tower="visoin")
    with pytest.raises(UnsupportedError, match="max-length"):
        vitpe_deploy.export(f"hf:{folder}", tower="vision", max_length=40)
    assert not (tmp_path / "none").exists()


def test_tower_of_a_model_with_one(kit: Any) -> None:
    """--tower says nothing about a ViT, and exits 2."""
    folder = kit.folder("vit")
    with warnings.catch_warnings(), pytest.raises(UsageError) as caught:
        vitpe_deploy.export(f"hf:{folder}", tower="text")
    assert caught.value.exit_code == 2
    assert "--tower" in caught.value.message
