"""The text tower: transformers and open_clip as oracles, lengths, end tokens, engines."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.models.presets import TEXT_PRESETS, TextConfig
from vitpe_deploy.models.text import TextTower, causal_mask, end_positions
from vitpe_deploy.threads import available_cpus

VOCABULARY, END = 99, 98

ENCODINGS = ("none", "learned-1d", "sincos-1d", "relative-1d", "rope-1d")


def tiny(encoding: str = "learned-1d", **changes: Any) -> TextConfig:
    return TextConfig(
        **{
            "vocab_size": VOCABULARY,
            "embed_dim": 32,
            "depth": 2,
            "num_heads": 2,
            "projection_dim": 16,
            "encoding": encoding,
            **changes,
        }
    )


def build(config: TextConfig, seed: int = 0) -> TextTower:
    torch.manual_seed(seed)
    return TextTower(config).eval().requires_grad_(False)


def texts(batch: int, length: int, ends: tuple[int, ...] = (), pad: int = 0) -> Tensor:
    """Random words; the end token at the given places and padding behind."""
    ids = torch.randint(1, END, (batch, length), generator=torch.Generator().manual_seed(length))
    for row, end in enumerate(ends or (length - 1,) * batch):
        ids[row, end] = END
        ids[row, end + 1 :] = pad
    return ids


def clip_oracle(activation: str = "quick_gelu", end_token_id: int = END) -> nn.Module:
    """transformers' own tower with weights and positions large enough to matter."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    torch.manual_seed(1)
    oracle = CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=77,
            projection_dim=16,
            hidden_act=activation,
            eos_token_id=end_token_id,
            bos_token_id=0,
            pad_token_id=0,
        )
    ).eval()
    for name, parameter in oracle.named_parameters():
        mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        nn.init.normal_(parameter, mean, 0.5 if "embedding" in name else 0.2)
    return oracle.requires_grad_(False)


def from_clip(oracle: nn.Module) -> dict[str, Tensor]:
    """transformers' weights under our names."""
    theirs = oracle.state_dict()
    ours = {
        "token_embedding.weight": theirs["text_model.embeddings.token_embedding.weight"],
        "encoding.table": theirs["text_model.embeddings.position_embedding.weight"][None],
        "projection.weight": theirs["text_projection.weight"],
    }
    for kind in ("weight", "bias"):
        ours[f"norm.{kind}"] = theirs[f"text_model.final_layer_norm.{kind}"]
        for layer in range(2):
            block, source = f"blocks.{layer}", f"text_model.encoder.layers.{layer}"
            ours[f"{block}.norm1.{kind}"] = theirs[f"{source}.layer_norm1.{kind}"]
            ours[f"{block}.norm2.{kind}"] = theirs[f"{source}.layer_norm2.{kind}"]
            ours[f"{block}.proj.{kind}"] = theirs[f"{source}.self_attn.out_proj.{kind}"]
            ours[f"{block}.fc1.{kind}"] = theirs[f"{source}.mlp.fc1.{kind}"]
            ours[f"{block}.fc2.{kind}"] = theirs[f"{source}.mlp.fc2.{kind}"]
            ours[f"{block}.qkv.{kind}"] = torch.cat(
                [theirs[f"{source}.self_attn.{p}_proj.{kind}"] for p in "qkv"]
            )
    return ours


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("length", [1, 8, 77])
def test_agrees_with_transformers_clip(length: int, activation: Any) -> None:
    """C26, the lengths that fit."""
    oracle = clip_oracle(activation)
    tower = build(tiny(activation=activation, end_token_id=END))
    tower.load_state_dict(from_clip(oracle))
    ids = texts(2, length)
    features, expected = tower.forward_features(ids), oracle(ids)
    torch.testing.assert_close(features["pooled"], expected.text_embeds, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(features["tokens"], expected.last_hidden_state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pad", [0, END], ids=["pad-0", "pad-with-end"])
@pytest.mark.parametrize("end_token_id", [2, END], ids=["highest-id", "given-id"])
def test_end_tokens_at_three_places(end_token_id: int, pad: int) -> None:
    """C27. transformers reads the highest id when its config says 2, the old default."""
    oracle = clip_oracle(end_token_id=end_token_id)
    tower = build(tiny(end_token_id=None if end_token_id == 2 else END))
    tower.load_state_dict(from_clip(oracle))
    ids = texts(3, 8, ends=(2, 7, 5), pad=pad)
    features = tower.forward_features(ids)
    torch.testing.assert_close(features["pooled"], oracle(ids).text_embeds, rtol=1e-5, atol=1e-5)
    rows = features["tokens"][torch.arange(3), torch.tensor([2, 7, 5])]
    assert tower.projection is not None
    torch.testing.assert_close(features["pooled"], tower.projection(rows))


def test_agrees_with_open_clip() -> None:
    from open_clip.transformer import TextTransformer

    torch.manual_seed(2)
    oracle = TextTransformer(77, VOCABULARY, width=32, heads=2, layers=2, output_dim=16).eval()
    theirs = {k: torch.randn_like(v) * 0.2 for k, v in oracle.state_dict().items()}
    theirs = {k: v + 1 if ".ln_" in k and k.endswith("weight") else v for k, v in theirs.items()}
    oracle.load_state_dict(theirs)
    ours = {
        "token_embedding.weight": theirs["token_embedding.weight"],
        "encoding.table": theirs["positional_embedding"][None],
        "projection.weight": theirs["text_projection"].T,
    }
    for kind in ("weight", "bias"):
        ours[f"norm.{kind}"] = theirs[f"ln_final.{kind}"]
        for layer in range(2):
            block, source = f"blocks.{layer}", f"transformer.resblocks.{layer}"
            ours[f"{block}.norm1.{kind}"] = theirs[f"{source}.ln_1.{kind}"]
            ours[f"{block}.norm2.{kind}"] = theirs[f"{source}.ln_2.{kind}"]
            ours[f"{block}.qkv.{kind}"] = theirs[f"{source}.attn.in_proj_{kind}"]
            ours[f"{block}.proj.{kind}"] = theirs[f"{source}.attn.out_proj.{kind}"]
            ours[f"{block}.fc1.{kind}"] = theirs[f"{source}.mlp.c_fc.{kind}"]
            ours[f"{block}.fc2.{kind}"] = theirs[f"{source}.mlp.c_proj.{kind}"]
    tower = build(tiny(activation="gelu"))
    tower.load_state_dict(ours)
    ids = texts(3, 77, ends=(9, 76, 30))
    with torch.no_grad():
        torch.testing.assert_close(tower(ids), oracle(ids), rtol=1e-5, atol=1e-5)


def test_length_78_is_refused_by_both_numbers() -> None:
    """C26, S06."""
    with pytest.raises(SizeError, match=r"78 tokens .* maximum of 77") as refusal:
        build(tiny())(texts(1, 78))
    assert "--max-length 248" in refusal.value.hint
    with pytest.raises(SizeError, match=r"78 tokens .* maximum of 77") as refusal:
        build(tiny("rope-1d"))(texts(1, 78))
    assert "--max-length" not in refusal.value.hint


def test_stretched_tower_takes_248_and_keeps_short_texts() -> None:
    tower = build(tiny())
    short = texts(2, 20)
    before = tower(short)
    tower.set_max_length(248)
    assert torch.equal(tower(short), before)
    assert tower(texts(1, 248)).shape == (1, 16)
    with pytest.raises(SizeError, match=r"249 tokens .* maximum of 248") as refusal:
        tower(texts(1, 249))
    assert "--max-length" not in refusal.value.hint
    assert tower.encoding.describe().resample_rule == "long-clip stretch 77 -> 248, slice"


def test_shorter_maximum() -> None:
    tower = build(tiny())
    ids = texts(2, 16)
    before = tower(ids)
    tower.set_max_length(16)
    assert torch.equal(tower(ids), before)
    with pytest.raises(SizeError, match=r"17 tokens .* maximum of 16"):
        tower(texts(1, 17))


@pytest.mark.parametrize("encoding", ["none", "sincos-1d", "rope-1d"])
def test_computed_positions_take_a_higher_maximum(encoding: str) -> None:
    tower = build(tiny(encoding))
    tower.set_max_length(100)
    assert tower(texts(1, 100)).shape == (1, 16)


def test_maximum_beyond_a_distance_table_is_refused() -> None:
    tower = build(tiny("relative-1d"))
    with pytest.raises(SizeError, match=r"77 .* 78"):
        tower.set_max_length(78)
    assert tower.max_length == 77


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_maximum_below_two_is_refused(encoding: str) -> None:
    with pytest.raises(UsageError, match="at least 2, got 1"):
        build(tiny(encoding)).set_max_length(1)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_text_reads_the_same_inside_a_longer_one(encoding: str) -> None:
    """Causal, and positions that do not depend on the length: rows 0..8 are those of length 9."""
    tower = build(tiny(encoding))
    ids = texts(2, 77)
    whole = tower.forward_features(ids)["tokens"]
    part = tower.forward_features(ids[:, :9])["tokens"]
    torch.testing.assert_close(whole[:, :9], part, rtol=1e-5, atol=1e-5)
    changed = ids.clone()
    changed[:, 9:] = 1
    later = tower.forward_features(changed)["tokens"]
    torch.testing.assert_close(whole[:, :9], later[:, :9], rtol=1e-5, atol=1e-5)
    assert (whole[:, 9:] - later[:, 9:]).abs().max() > 0.1


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_word_order_is_read_through_positions(encoding: str) -> None:
    """The last token sees a bag of words unless positions tell them apart (depth 1)."""
    tower = build(tiny(encoding, depth=1))
    ids = texts(1, 8)
    swapped = ids[:, [3, 1, 2, 0, 4, 5, 6, 7]]
    difference = (tower(ids) - tower(swapped)).abs().max().item()
    if encoding == "none":
        assert difference < 1e-5
    else:
        assert difference > 1e-2


def test_scaling_factor_multiplies_learned_positions() -> None:
    tower = build(tiny(encoding_params={"scaling_factor": 0.25}))
    plain = build(tiny())
    plain.load_state_dict({**tower.state_dict(), "encoding.table": tower.encoding.table * 0.25})
    ids = texts(2, 8)
    assert torch.equal(tower(ids), plain(ids))


def test_int32_ids_give_the_same() -> None:
    tower, ids = build(tiny()), texts(2, 8)
    assert torch.equal(tower(ids), tower(ids.int()))


def test_causal_mask_of_three() -> None:
    no = float("-inf")
    expected = torch.tensor([[[[0, no, no], [0, 0, no], [0, 0, 0]]]])
    assert torch.equal(causal_mask(torch.arange(3)), expected)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6), min_size=1, max_size=4))
def test_end_is_the_first_match(rows: list[list[int]]) -> None:
    ids, index = torch.tensor(rows), torch.arange(6)
    assert end_positions(ids, index, None).tolist() == [row.index(max(row)) for row in rows]
    wanted = [row.index(3) if 3 in row else 0 for row in rows]
    assert end_positions(ids, index, 3).tolist() == wanted


@pytest.mark.parametrize(
    ("encoding", "params"),
    [("relative-1d", {"fitting": "resample"}), ("sincos-1d", {"mode": "rescale"})],
)
def test_rules_that_move_words_apart_are_refused(encoding: str, params: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="does not fit text"):
        build(tiny(encoding, encoding_params=params))


def test_encoding_of_another_network_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match="window-bias does not fit the text network") as refusal:
        build(tiny("window-bias"))
    assert "lives in: swin" in refusal.value.message


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="32 is not a multiple of 3 heads"):
        tiny(num_heads=3)
    with pytest.raises(UsageError, match="activation 'relu'"):
        tiny(activation="relu")
    with pytest.raises(UsageError, match="at least 2, got 1"):
        tiny(context_length=1)


def test_preset_sizes() -> None:
    """The text tower of CLIP B/32 has 63,428,096 parameters: embedding, table, blocks, head."""
    with torch.device("meta"):
        tower = TextTower(TEXT_PRESETS["text_clip_base"])
    d, layers = 512, 12
    block = 4 * d * d + 4 * d + 8 * d * d + 5 * d + 4 * d
    expected = 49408 * d + 77 * d + layers * block + 2 * d + d * 512
    assert sum(p.numel() for p in tower.parameters()) == expected == 63_428_096


class Pooled(nn.Module):
    """Both outputs of the tower."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        features = self.tower.forward_features(input_ids)
        return features["pooled"], features["tokens"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_static_export(encoding: str, export: Callable[..., Any], forbidden: set[str]) -> None:
    tower = build(tiny(encoding))
    ids = texts(3, 8, ends=(2, 7, 5), pad=END)
    engines = export(Pooled(copy.deepcopy(tower).resolve((1, 8))), ids)
    assert not engines.operators & forbidden
    assert not engines.operators & {"Sin", "Cos", "Range"}
    differences = engines.differences(ids, list(Pooled(tower)(ids)))
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_dynamic_export(encoding: str, export: Callable[..., Any], forbidden: set[str]) -> None:
    """C26, C27: one file at lengths 1, 8, 77 and batches 1, 3; 78 fails in every engine."""
    tower = build(tiny(encoding, end_token_id=END))
    resolved = Pooled(copy.deepcopy(tower).resolve(None))
    engines = export(resolved, texts(2, 12), {0: "batch", 1: "length"})
    assert not engines.operators & forbidden
    for ids in (
        texts(1, 1),
        texts(3, 8, ends=(2, 7, 5), pad=END),
        texts(3, 8, ends=(6, 1, 3)),
        texts(1, 77),
    ):
        differences = engines.differences(ids, list(Pooled(tower)(ids)))
        assert max(differences.values()) < 1e-5, (ids.shape, differences)
    for name, run in engines.runners.items():
        if name == "openvino" and available_cpus() == 1:
            continue  # on one core it answers; limits in the file keep our runtimes from asking
        with pytest.raises(Exception, match=r"broadcast|shape|bounds"):  # the engine's own words
            pytest.fail(f"{name} answered a text over the limit: {run(texts(1, 78).numpy())}")


def test_stretched_export(export: Callable[..., Any], forbidden: set[str]) -> None:
    tower = build(tiny(depth=1))
    tower.set_max_length(248)
    engines = export(copy.deepcopy(tower).resolve(None), texts(2, 12), {0: "batch", 1: "length"})
    assert not engines.operators & forbidden
    tables = [list(i.dims) for i in engines.model.graph.initializer]
    assert [1, 248, 32] in tables
    for length in (20, 78, 248):
        ids = texts(2, length)
        assert max(engines.differences(ids, [tower(ids)]).values()) < 1e-5


def test_int32_export(export: Callable[..., Any]) -> None:
    tower, ids = build(tiny(depth=1)), texts(2, 8, ends=(3, 5)).int()
    engines = export(copy.deepcopy(tower).resolve(None), ids, {0: "batch", 1: "length"})
    assert max(engines.differences(ids, [tower(ids)]).values()) < 1e-5
