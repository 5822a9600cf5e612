"""What is found in reference networks and in models of the transformers library."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from vitpe_deploy.encodings.relative_index import grid_index
from vitpe_deploy.errors import SizeError, UnsupportedError, UsageError
from vitpe_deploy.models.presets import SWIN_PRESETS, VIDEO_PRESETS
from vitpe_deploy.models.swin import SwinTransformer
from vitpe_deploy.models.video import VideoTransformer
from vitpe_deploy.plot import positions
from vitpe_deploy.plot.meetings import Meeting, positions_among
from vitpe_deploy.plot.prepare import _model_reader
from vitpe_deploy.plot.watching import MeetingWatcher

MODEL = "vit_tiny_patch16_224"
TINY = {"image_size": 96, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}


def network(encoding=None, **options):
    from vitpe_deploy.build_request import model_request
    from vitpe_deploy.sources import open_source

    request = model_request(MODEL, encoding=encoding, kwargs={**TINY, **options})
    return open_source(request).load().fresh()


def cosine(rows):
    rows = torch.nn.functional.normalize(rows.double(), dim=1)
    return (rows @ rows.T).numpy()


def test_learned_table_before_and_after_resampling(seen):
    plot = seen(None, "144x96", kind="matrix")
    vit = network()
    native, after = plot.panels
    table = vit.encoding.table[0]
    np.testing.assert_allclose(native.values, cosine(table), atol=1e-6)
    picture = table[1:].T.reshape(1, 32, 6, 6)
    resampled = torch.nn.functional.interpolate(picture, (9, 6), mode="bicubic", antialias=True)
    rows = torch.cat([table[:1], resampled[0].flatten(1).T])
    np.testing.assert_allclose(after.values, cosine(rows), atol=1e-6)
    assert (native.grid, after.grid) == ((6, 6), (9, 6))
    assert (native.note, after.note) == ("native", "bicubic antialias")
    assert native.prefix_tokens == after.prefix_tokens == 1


def test_the_native_size_is_not_resampled(seen):
    (only,) = seen(None, 96, "96x96").panels
    (native,) = seen(None).panels
    np.testing.assert_array_equal(only.values, native.values)
    assert only.note == "native"


@pytest.mark.parametrize("encoding", ["learned-1d", "learned-2d", "sincos-1d", "sincos-2d"])
def test_every_map_is_largest_at_its_own_place(seen, encoding):
    for panel in seen(encoding, "64x128").panels:
        h, w = panel.grid
        own = panel.values.reshape(h * w, h * w)
        assert (own.argmax(axis=1) == np.arange(h * w)).all()
        np.testing.assert_allclose(own.diagonal(), 1.0, atol=1e-12)


def test_sincos_similarity_is_the_closed_form(seen):
    """Similarity of (i, j) and (k, l): mean over frequencies of cos w(i-k) and cos w(j-l)."""
    (panel,) = seen("sincos-2d").panels
    omega = 10000.0 ** -(np.arange(8) / 8)
    for i, j, k, m in [(0, 0, 5, 5), (1, 4, 3, 0), (2, 2, 2, 5), (5, 0, 0, 0)]:
        right = (np.cos(omega * (i - k)).mean() + np.cos(omega * (j - m)).mean()) / 2
        assert panel.values[i, j, k, m] == pytest.approx(right, abs=1e-6)
    # It depends on distances only: turned, mirrored and shifted pairs are alike.
    maps = panel.values
    np.testing.assert_allclose(maps, maps.transpose(1, 0, 3, 2), atol=1e-6)
    np.testing.assert_allclose(maps, maps[::-1, :, ::-1], atol=1e-6)
    np.testing.assert_allclose(maps[1:, :, 1:], maps[:-1, :, :-1], atol=1e-6)


def test_zero_rows_of_the_prefix_have_no_similarity(seen):
    plot = seen("sincos-2d", kind="matrix")
    assert np.isnan(plot.panels[0].values[0]).all()
    assert plot.as_document()["panels"][0]["values"][0][:2] == [None, None]


def test_bias_is_the_line_of_the_table(seen):
    plot = seen("relative-2d", 144, query=(1, 4))
    vit = network("relative-2d")
    index = grid_index(6, 6)[1 * 6 + 4]
    right = vit.encoding.table[0][index].T.reshape(2, 6, 6)
    np.testing.assert_array_equal(plot.panels[0].values, right.numpy())
    assert plot.kind == "bias"
    assert plot.heads == (0, 1)
    assert [p.query for p in plot.panels] == [(1, 4), (2, 6)]
    assert plot.panels[1].values.shape == (2, 9, 9)
    (one,) = seen("relative-2d", query=(1, 4), head=1, layer=1).panels
    np.testing.assert_array_equal(one.values, right[1:].numpy())


def test_layers_have_their_own_bias(seen):
    options = {"model_kwargs": {"pe.shared": False}}
    first = seen("relative-2d", **options).panels[0].values
    second = seen("relative-2d", layer=1, **options).panels[0].values
    assert np.abs(first - second).max() > 0.1


def test_window_bias_belongs_to_the_window():
    torch.manual_seed(0)
    swin = SwinTransformer(SWIN_PRESETS["swin_micro_patch4_window4_64"])
    plot = positions(swin, query=(2, 1), layer=3)
    (panel,) = plot.panels
    encoding = swin.stages[1].blocks[1].attn.encoding
    right = encoding.table.detach()[grid_index(4, 4)[2 * 4 + 1]].T.reshape(4, 4, 4)
    np.testing.assert_array_equal(panel.values, right.numpy())
    assert panel.grid == (4, 4)
    assert panel.resolution is None
    with pytest.raises(UnsupportedError, match="belong to windows"):
        positions(swin, resolutions=[128])


def test_a_changed_window_is_shown_before_and_after():
    plot = positions(
        "swin_micro_patch4_window4_64", model_kwargs={"window": (6, 6), "pretrained_window": (4, 4)}
    )
    assert [p.grid for p in plot.panels] == [(4, 4), (6, 6)]
    assert plot.panels[1].note == "bicubic"


def test_video_shows_the_first_time_step():
    torch.manual_seed(0)
    video = VideoTransformer(VIDEO_PRESETS["video_micro_patch8_48"])
    (panel,) = positions(video, query=(0, 3)).panels
    with torch.no_grad():
        bias = video.encoding.positions((4, 4))["bias"][0]
    np.testing.assert_array_equal(panel.values, bias[:, 3, :16].reshape(-1, 4, 4).numpy())


def test_decomposed_strength_is_the_deviation_of_the_bias(seen):
    plot = seen("decomposed", query=(2, 3), layer=1)
    vit = network("decomposed")
    with torch.no_grad():
        read = vit.encoding.positions((6, 6))
    for k, m in [(0, 0), (2, 3), (5, 1)]:
        vector = read["rel_h"][1][2, k] + read["rel_w"][1][3, m]
        assert plot.panels[0].values[0, k, m] == pytest.approx(float(vector.norm()), rel=1e-5)
    assert plot.heads == ()


def test_rotary_frequencies_are_those_of_the_formula(seen):
    plot = seen("rope-2d", 144)
    omega = 100.0 ** -(np.arange(4) / 4)  # head size 16: 4 pairs per axis, the column first
    for panel in plot.panels:
        steps = panel.steps
        np.testing.assert_allclose(steps[:4, 1], omega, atol=1e-5)
        np.testing.assert_allclose(steps[4:, 0], omega, atol=1e-5)
        np.testing.assert_allclose(steps[:4, 0], 0, atol=1e-6)
        np.testing.assert_allclose(panel.values[1, 4, 5], math.cos(5 * omega[1]), atol=1e-5)
    assert plot.layer is None


def test_mixed_rotations_differ_by_layer_and_head(seen):
    vit = network("rope-mixed")
    column, row = vit.encoding.frequencies.detach()[:, 1, 1].numpy()
    plot = seen("rope-mixed", layer=1, head=1)
    turn = np.angle(np.exp(1j * np.stack([row, column], axis=1)))
    np.testing.assert_allclose(plot.panels[0].steps, turn, atol=1e-5)
    assert (plot.layer, plot.heads) == (1, (1,))


def test_hybrid_has_both_parts(seen):
    assert seen("hybrid").kind == "similarity"
    assert seen("hybrid", kind="bias").panels[0].values.shape == (2, 6, 6)


@pytest.mark.parametrize("encoding", ["none", "conditional"])
def test_nothing_to_draw(seen, encoding):
    with pytest.raises(UsageError, match=f"nothing to draw of the {encoding} positions"):
        seen(encoding)


@pytest.mark.parametrize(
    ("encoding", "options", "message"),
    [
        ("learned-1d", {"kind": "bias"}, "--kind bias is not possible for the learned-1d"),
        ("learned-1d", {"kind": "heat"}, "--kind 'heat' is not known"),
        ("learned-1d", {"layer": 0}, "--layer and --head have no meaning"),
        ("learned-1d", {"query": (0, 0)}, "--query has no meaning"),
        ("relative-2d", {"query": (6, 0)}, "--query 6,0 is outside the 6x6 grid"),
        ("relative-2d", {"head": 2}, "--head 2 does not exist: heads go from 0 to 1"),
        ("relative-2d", {"layer": 2}, "--layer 2 does not exist"),
        ("rope-2d", {"head": 0}, "--head has no meaning here"),
        ("rope-2d", {"layer": 1}, "all layers share"),
    ],
)
def test_options_that_mean_nothing_are_refused(seen, encoding, options, message):
    with pytest.raises(UsageError, match=message):
        seen(encoding, **options)


def test_a_size_that_does_not_fit_is_refused(seen):
    with pytest.raises(SizeError, match="100 does not fit patch size 16"):
        seen(None, 100)


@pytest.mark.parametrize("encoding", ["learned-1d", "sincos-2d", "relative-2d", "rope-mixed"])
def test_watching_a_run_finds_what_the_contract_says(encoding):
    """Our own networks, seen as if they were somebody else's."""
    reader = _model_reader(MODEL, encoding, None, TINY, 0, ())
    (right,) = reader.sets(())
    vit = network(encoding)
    pixels = torch.zeros(1, 3, 96, 96)
    watcher = MeetingWatcher(pixels)
    with torch.no_grad(), watcher:
        vit(pixels)
    found = positions_among(watcher.meetings(), (6, 6))
    assert found.kinds == right.kinds
    if right.table is not None:
        np.testing.assert_array_equal(found.table, right.table)
    assert len(found.biases) == len(right.biases)
    for a, b in zip(found.biases, right.biases, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(found.rotations) == len(right.rotations)
    for a, b in zip(found.rotations, right.rotations, strict=True):
        np.testing.assert_array_equal(a.cos, b.cos)
        np.testing.assert_array_equal(a.sin, b.sin)


def test_transformers_model(tmp_path):
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=96, patch_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64,
    )  # fmt: skip
    model = transformers.ViTModel(config)
    table = torch.randn(1, 37, 32)
    model.embeddings.position_embeddings = nn.Parameter(table)
    model.save_pretrained(tmp_path / "tiny")
    plot = positions(f"hf:{tmp_path / 'tiny'}", kind="matrix", resolutions=["160x128"])
    native, after = plot.panels
    np.testing.assert_allclose(native.values, cosine(table[0]), atol=1e-6)
    picture = table[0, 1:].T.reshape(1, 32, 6, 6)
    resampled = torch.nn.functional.interpolate(picture, (10, 8), mode="bicubic")
    rows = torch.cat([table[0, :1], resampled[0].flatten(1).T])
    np.testing.assert_allclose(after.values, cosine(rows), atol=1e-6)
    assert plot.encoding == "learned-1d"
    assert after.note == "bicubic"


def test_timm_table_at_another_size():
    import timm

    name = "vit_tiny_patch16_224"
    kwargs = {"depth": 1, "embed_dim": 24, "num_heads": 2}
    plot = positions(
        f"timm:{name}", model_kwargs=kwargs, kind="matrix", resolutions=["160x256"], seed=3
    )
    torch.manual_seed(3)
    native = timm.create_model(name, **kwargs)
    table = native.pos_embed.detach()[0]
    picture = table[1:].T.reshape(1, 24, 14, 14)
    resampled = torch.nn.functional.interpolate(picture, (10, 16), mode="bicubic", antialias=True)
    rows = torch.cat([table[:1], resampled[0].flatten(1).T])
    np.testing.assert_allclose(plot.panels[0].values, cosine(table), atol=1e-5)
    np.testing.assert_allclose(plot.panels[1].values, cosine(rows), atol=1e-5)


def test_timm_rotation_is_dinov3s_closed_form():
    plot = positions("timm:vit_small_patch16_dinov3", model_kwargs={"depth": 1})
    (panel,) = plot.panels
    period = 100.0 ** (4 * np.arange(16) / 64)
    right = 2 * np.pi * (2 / 16) / period  # coordinates lie 2/16 apart
    np.testing.assert_allclose(panel.steps[:16, 0], right, rtol=1e-4)
    np.testing.assert_allclose(panel.steps[16:, 1], right, rtol=1e-4)
    assert plot.kind == "frequencies"


def test_timm_decomposed_tables():
    import timm

    name, kwargs = "samvit_base_patch16_224", {"depth": 1, "embed_dim": 24, "num_heads": 2}
    (panel,) = positions(f"timm:{name}", model_kwargs=kwargs, query=(0, 0)).panels
    assert panel.values.shape == (1, 14, 14)
    module = timm.create_model(name, **kwargs).eval()
    torch.nn.init.normal_(module.blocks[0].attn.rel_pos_h)
    torch.nn.init.normal_(module.blocks[0].attn.rel_pos_w)
    (panel,) = positions(module, query=(3, 5), resolutions=[224]).panels
    right = module.blocks[0].attn.rel_pos_h[13 + 3 - 9] + module.blocks[0].attn.rel_pos_w[13 + 5]
    assert panel.values[0, 9, 0] == pytest.approx(float(right.detach().norm()), rel=1e-5)


def test_a_bias_of_zeros_is_still_a_bias():
    found = positions_among([Meeting("attend", np.zeros((1, 2, 10, 10)))], (3, 3))
    assert len(found.biases) == 1


def test_masks_and_weights_are_no_positions():
    n = 10  # 1 prefix, 3x3
    causal = np.triu(np.full((1, 1, n, n), -np.inf), k=1)
    bias = np.random.default_rng(0).standard_normal((2, n, n))
    found = positions_among(
        [
            Meeting("attend", causal),
            Meeting("attend", np.ones((1, 1, n, n), bool)),
            Meeting("add", np.ones((1, 1, 8))),
            Meeting("multiply", np.ones((n, 8)) * 0.5),
            Meeting("add", bias),
        ],
        (3, 3),
    )
    assert found.table is None
    assert found.rotations == ()
    (only,) = found.biases
    np.testing.assert_array_equal(only, bias)


def test_layouts_of_a_table():
    rows = np.random.default_rng(0).standard_normal((2 * 3, 5))
    for value in (
        rows,
        rows[None],
        rows.reshape(1, 2, 3, 5),
        rows.T.reshape(1, 5, 2, 3),
    ):
        found = positions_among([Meeting("add", value)], (2, 3))
        np.testing.assert_array_equal(found.table, rows)


def test_repeated_rotary_columns_are_one_pair():
    angle = np.random.default_rng(0).uniform(-0.7, 0.7, (6, 4))
    for spread in (lambda t: np.repeat(t, 2, axis=1), lambda t: np.tile(t, 2)):
        met = [Meeting("multiply", spread(part(angle))) for part in (np.sin, np.cos)]
        (turn,) = positions_among(met * 2, (2, 3)).rotations
        np.testing.assert_array_equal(turn.cos[0], np.cos(angle))
        np.testing.assert_array_equal(turn.sin[0], np.sin(angle))
