"""Two towers as one export: tokenizer, embeddings of length 1, scores of the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitpe_deploy
from vitpe_deploy.cli import run_main
from vitpe_deploy.errors import ArtifactError, SizeError, UnsupportedError, UsageError
from vitpe_deploy.pair_index import find_pair, read_pair
from vitpe_deploy.results import CandidateRecord, ExportReport, Steps
from vitpe_deploy.towers import merged

PROMPTS = ["a photo of a cat", "a dog", "the photo of a dog and a cat"]
WORDS = sorted({word for prompt in PROMPTS for word in prompt.split()})


def tokenizer() -> Any:
    """Words to ids, with a start and an end token as CLIP has them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: k for k, word in enumerate(["<unk>", *WORDS, "<start>", "<end>"])}
    built = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    start, end = vocabulary["<start>"], vocabulary["<end>"]
    built.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", start), ("<end>", end)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=built, unk_token="<unk>", bos_token="<start>", eos_token="<end>",
        pad_token="<end>",
    )  # fmt: skip


def network(kind: str) -> Any:
    """A tiny CLIP or SigLIP with random weights that tell prompts and pictures apart."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    vision = {**sizes, "image_size": 64, "patch_size": 16}
    text = {**sizes, "vocab_size": len(WORDS) + 3, "max_position_embeddings": 16,
            "eos_token_id": len(WORDS) + 2, "bos_token_id": len(WORDS) + 1,
            "pad_token_id": len(WORDS) + 2}  # fmt: skip
    torch.manual_seed(0)
    if kind == "clip":
        config = transformers.CLIPConfig(
            vision_config=vision, text_config=text, projection_dim=24,
            logit_scale_init_value=3.0,
        )  # fmt: skip
        made = transformers.CLIPModel(config)
    else:
        config = transformers.SiglipConfig(
            vision_config=vision, text_config={**text, "projection_size": 32}
        )
        made = transformers.SiglipModel(config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
            elif name == "logit_bias":
                parameter.fill_(-0.7)
    return made.eval()


@pytest.fixture(scope="module", params=["clip", "siglip"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(kind, the library's model, folder of the export, its report)."""
    folder = tmp_path_factory.mktemp(request.param)
    made = network(request.param)
    made.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    report = vitpe_deploy.export(
        f"hf:{folder / 'model'}", tower="both", dynamic="batch", output_dir=folder / "out",
        formats=["onnx", "openvino"] if request.param == "clip" else ["onnx"],
    )  # fmt: skip
    return request.param, made, folder / "out", report


def pictures() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (80, 70, 3), dtype=np.uint8) for _ in range(2)]


def library_scores(kind: str, made: Any, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and probabilities of the library's own forward."""
    padding = {"padding": "max_length", "max_length": 16} if kind == "siglip" else {"padding": True}
    tokens = tokenizer()(PROMPTS, return_tensors="pt", **padding)
    options = {} if kind == "siglip" else {"attention_mask": tokens["attention_mask"]}
    with torch.no_grad():
        out = made(pixel_values=torch.from_numpy(values), input_ids=tokens["input_ids"], **options)
    logits = out.logits_per_image
    scores = logits.softmax(dim=1) if kind == "clip" else logits.sigmoid()
    return logits.numpy(), scores.numpy()


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_scores_equal_the_librarys(pair: Any, runtime: str) -> None:
    kind, made, folder, report = pair
    assert report.verdict == "passed"
    with vitpe_deploy.load_pair(folder, runtime=runtime) as loaded:
        values = loaded.vision.prepare(pictures())
        logits, scores = library_scores(kind, made, values)
        assert np.ptp(scores, axis=1).min() > 0.005  # the prompts matter
        given = loaded.scores(pictures(), PROMPTS)
        assert np.abs(given - scores).max() <= 1e-4
        found = loaded.logits(pictures(), PROMPTS)
        assert np.abs(found - logits).max() <= 1e-4 * np.abs(logits).max()
        for embedding in (loaded.embed_pictures(pictures()), loaded.embed_texts(PROMPTS)):
            np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1, atol=1e-5)


def test_files_give_the_embedding_as_it_is_and_normalised(pair: Any) -> None:
    _, _, folder, _ = pair
    with vitpe_deploy.load_pair(folder) as loaded:
        outputs = loaded.vision(pictures())
        assert list(outputs) == ["embedding", "normalized"]
        length = np.linalg.norm(outputs["embedding"], axis=1, keepdims=True)
        np.testing.assert_allclose(outputs["normalized"], outputs["embedding"] / length, atol=1e-6)
        assert np.abs(length - 1).min() > 1e-2


def test_prompts_are_embedded_once(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, folder, _ = pair
    with vitpe_deploy.load_pair(folder) as loaded:
        seen: list[list[str]] = []
        inner = loaded.tokens
        monkeypatch.setattr(
            loaded, "tokens", lambda texts: seen.append(list(texts)) or inner(texts)
        )
        first = loaded.embed_texts(PROMPTS[:2])
        again = loaded.embed_texts([PROMPTS[1], PROMPTS[2], PROMPTS[0], PROMPTS[1]])
        assert seen == [PROMPTS[:2], [PROMPTS[2]]]
        np.testing.assert_array_equal(again[[2, 0]], first)
        np.testing.assert_array_equal(again[0], again[3])
        assert np.abs(first[0] - first[1]).max() > 1e-3


def test_refusals(pair: Any, tmp_path: Path) -> None:
    _, _, folder, _ = pair
    with vitpe_deploy.load_pair(folder) as loaded:
        with pytest.raises(SizeError, match="has 22 tokens, this file takes 16"):
            loaded.embed_texts("cat " * 20)
        with pytest.raises(UsageError, match="texts must be strings"):
            loaded.embed_texts([7])  # type: ignore[list-item]
        with pytest.raises(UsageError, match="there are no texts"):
            loaded.embed_texts([])
    with pytest.raises(ArtifactError, match="holds no pair of towers"):
        vitpe_deploy.load_pair(tmp_path)


def test_what_the_index_lists_must_be_there(pair: Any, tmp_path: Path) -> None:
    import shutil

    _, _, folder, _ = pair
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    path = find_pair(moved, ".onnx")
    document = json.loads(path.read_text())
    tokens = moved / document["tokenizer"]["file"]
    document["tokenizer"], document["pairing"] = None, None
    path.write_text(json.dumps(document))
    with vitpe_deploy.load_pair(path) as loaded:
        with pytest.raises(UnsupportedError, match="came without a tokenizer"):
            loaded.embed_texts("a cat")
        assert loaded.embed_tokens(np.ones((1, 16), np.int64)).shape[0] == 1
        with pytest.raises(UnsupportedError, match="does not say how its embeddings"):
            loaded.scores(pictures(), "a cat")
    tokens.unlink()
    document["text"] = "../x.onnx"
    path.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="names a file outside its folder"):
        read_pair(path)


def test_an_index_in_the_way_is_refused_before_anything_is_loaded(pair: Any) -> None:
    _, _, folder, report = pair
    for artifact in report.artifacts:
        assert Path(artifact.path).is_file()
    with pytest.raises(UsageError, match="exists already"):
        vitpe_deploy.export(f"hf:{folder.parent / 'model'}", tower="both", output_dir=folder)


def test_towers_appear_together_or_not_at_all(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exporters import pipeline

    spec, out = f"hf:{pair[2].parent / 'model'}", tmp_path / "out"
    whole, seen = pipeline.trace, []

    def second_fails(*given: Any, **options: Any) -> Any:
        seen.append(given)
        if len(seen) == 2:
            raise UnsupportedError("the second tower")
        return whole(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "trace", second_fails)
        with pytest.raises(UnsupportedError, match="the second tower"):
            vitpe_deploy.export(spec, tower="both", verify=False, output_dir=out)
    assert len(seen) == 2
    assert list(tmp_path.iterdir()) == []
    report = vitpe_deploy.export(spec, tower="both", verify=False, output_dir=out)
    named = [Path(path) for path in (*(a.path for a in report.artifacts), *report.indexes)]
    assert len(named) == 3
    assert all(path.is_file() for path in named)


def test_the_report_names_files_of_both_towers_by_their_paths(pair: Any) -> None:
    _, _, _, report = pair
    paths = {artifact.path for artifact in report.artifacts}
    assert {row.artifact for row in report.passes} == paths
    assert {row.artifact for row in report.parity} == paths


def test_candidates_of_all_towers_are_reported() -> None:
    def report(name: str) -> ExportReport:
        found = CandidateRecord(
            artifact=name, method="dynamic", runtime="onnxruntime", latency_ms=1.0, size_bytes=1,
            agreement=1.0, criterion="top1", chosen=True,
        )  # fmt: skip
        return ExportReport(
            model="m", encoding=None, resample_rule=None, weights="random", artifacts=(),
            parity=(), passes=(), candidates=(found,), steps_s=Steps(), verdict="passed",
        )  # fmt: skip

    both = merged([report("out/v.onnx"), report("out/t.onnx")])
    assert [c.artifact for c in both.candidates] == ["out/v.onnx", "out/t.onnx"]


def test_the_command_scores_pictures_against_prompts(
    pair: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    kind, made, folder, _ = pair
    Image.fromarray(pictures()[0]).save(tmp_path / "a.png")
    flags = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    assert run_main([str(folder), str(tmp_path / "a.png"), *flags, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["results"][0]["top"]
    with vitpe_deploy.load_pair(folder) as loaded:
        _, scores = library_scores(kind, made, loaded.vision.prepare(pictures()))
    order = np.argsort(-scores[0], kind="stable")
    assert [b["label"] for b in best] == [PROMPTS[k] for k in order]
    np.testing.assert_allclose([b["probability"] for b in best], scores[0][order], atol=1e-4)
    index = str(find_pair(folder, ".onnx"))
    assert run_main([index, str(tmp_path / "a.png")]) == 2
    assert "there are no prompts" in capsys.readouterr().err
    assert run_main([index, str(tmp_path / "a.png"), "--prompt", "a cat", "--res", "64"]) == 2
    assert "--res has no meaning with --prompt" in capsys.readouterr().err
