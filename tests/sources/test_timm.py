"""timm: exports against timm itself: C02, C06, C07, C14, C15, C17, C20, C22, C24, by mechanism.

Every network is small and shallow; its tables are redrawn at standard deviation 0.5, and the
reference is made by ``timm.create_model`` from the same file of weights, without this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor

import vitpe_deploy
from benchmarks.families import timm_networks
from tests.needs import needs
from vitpe_deploy.errors import SizeError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.runtimes import open_runtime
from vitpe_deploy.sources import open_source

RESIZING = {"Resize", "Upsample", "Interpolate"}
CONTROL = {"Loop", "If", "ScatterND"}
SLIM = {"depth": 2, "embed_dim": 96, "num_heads": 3, "num_classes": 7}
PYRAMID = {"depths": (1, 1), "num_classes": 7}

VIT = ("vit_tiny_patch16_224", SLIM)
DISTILLED = ("deit_tiny_distilled_patch16_224", SLIM)
BEIT = ("beit_base_patch16_224", SLIM)
RELPOS = ("vit_relpos_small_patch16_224", SLIM)
EVA = ("eva02_tiny_patch14_224", {**SLIM, "num_classes": 0})
DINOV3 = ("vit_small_patch16_dinov3", {**SLIM, "num_classes": 0})
MIXED = ("vit_small_patch16_rope_mixed_224", SLIM)
SWIN = ("swin_tiny_patch4_window7_224",
        {"depths": (2, 1), "embed_dim": 24, "num_heads": (2, 3), "num_classes": 7})  # fmt: skip
SWINV2 = ("swinv2_tiny_window8_256",
          {"depths": (2, 1), "embed_dim": 24, "num_heads": (2, 3), "num_classes": 7})  # fmt: skip
SAM = ("samvit_base_patch16_224", {**SLIM, "depth": 2, "global_attn_indexes": (1,)})
PVT = ("pvt_v2_b0", {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 24, 32),
                     "num_heads": (1, 2, 3, 4), "num_classes": 7})  # fmt: skip

Model = tuple[str, dict[str, Any]]


@pytest.fixture(scope="session")
def weights_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A weight file of a small network, drawn once."""
    known: dict[str, Path] = {}

    def draw(model: Model) -> Path:
        key = repr(model)
        if key not in known:
            saved = timm_networks.save(*model, tmp_path_factory.mktemp("weights"))
            known[key] = saved.options["weights"]
        return known[key]

    return draw


@pytest.fixture
def export(weights_of: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """``vitpe_deploy.export`` of a small network with its drawn weights."""

    def run(model: Model, size: Any = None, **options: Any) -> Any:
        name, kwargs = model
        options.setdefault("output_dir", tmp_path)
        return vitpe_deploy.export(
            f"timm:{name}",
            size,
            weights=weights_of(model),
            model_kwargs=kwargs,
            threads=2,
            **options,
        )

    return run


def pixels_of(size: tuple[int, int], batch: int = 1) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(5))


def outputs(path: str, pixels: Tensor) -> list[tuple[str, np.ndarray]]:
    """The first output in both engines."""
    found = []
    for engine in ("onnxruntime", "openvino"):
        with open_runtime(engine, Path(path), device="CPU", threads=2) as runtime:
            given = runtime.run({"pixel_values": pixels.numpy()})
        found.append((engine, next(iter(given.values()))))
    return found


def max_rel(given: np.ndarray, right: Tensor) -> float:
    assert given.shape == tuple(right.shape)
    return float(np.abs(given - right.numpy()).max() / right.abs().max())


def operators(path: str) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


STATIC = [
    (VIT, (96, 160), "bicubic antialias", "MultiHeadAttention"),
    (DISTILLED, (96, 160), "bicubic antialias", "MultiHeadAttention"),
    (BEIT, (96, 144), "uneven geometric grid, linear", "MultiHeadAttention"),
    (RELPOS, (96, 160), None, "MultiHeadAttention"),
    (EVA, (84, 140), "bicubic antialias", "MultiHeadAttention"),
    (MIXED, (96, 160), None, "MultiHeadAttention"),
    (SWIN, (96, 160), None, "MultiHeadAttention"),
    pytest.param(
        SAM,
        (96, 160),
        "bilinear",
        "MultiHeadAttention",
        marks=needs("timm", "1.0.31", "earlier ones write SAM's windows by hand"),
    ),
    (PVT, (96, 160), None, "MultiHeadAttention"),
]


@pytest.mark.parametrize(("model", "size", "rule", "fused"), STATIC, ids=lambda v: _id(v))
def test_static_at_another_size(
    model: Model,
    size: tuple[int, int],
    rule: str | None,
    fused: str,
    export: Any,
    weights_of: Any,
) -> None:
    """C02, C07, C14, C15, C20: the network that timm makes for the size, in both engines."""
    report = export(model, size, verify=False)
    path = report.artifacts[0].path
    assert report.resample_rule == rule
    found = operators(path)
    assert fused in found
    assert not found & (RESIZING | CONTROL | {"Softmax"})
    right = timm_output(model, "static", weights_of(model), size)
    for engine, given in outputs(path, pixels_of(size)):
        assert max_rel(given, right) <= 1e-5, engine


DYNAMIC = [
    (VIT, 16), (BEIT, 16), (RELPOS, 16), (EVA, 14), (DINOV3, 16), (PVT, 1),
    pytest.param(SWIN, 4, marks=needs("timm", "1.0.31", "earlier Swin asserts its own size")),
]  # fmt: skip


@pytest.mark.parametrize(("model", "step"), DYNAMIC, ids=lambda v: _id(v))
def test_dynamic_at_sizes_that_were_not_traced(
    model: Model, step: int, export: Any, weights_of: Any
) -> None:
    """C09, C16, C20: one file, any size and batch; no Resize, no control flow."""
    report = export(model, dynamic="all", verify=False)
    path = report.artifacts[0].path
    assert not operators(path) & (RESIZING | CONTROL)
    native = tuple(open_source(_request(model)).facts().native.as_list())
    unit = math.lcm(step, 16) if step != 14 else 14
    for size, batch in ((native, 1), ((4 * unit, 4 * unit), 2), ((5 * unit, 9 * unit), 3)):
        right = timm_output(model, "dynamic", weights_of(model), size, batch)
        for engine, given in outputs(path, pixels_of(size, batch)):
            assert max_rel(given, right) <= 1e-5, (engine, size)


@needs("timm", "1.0.31", "earlier ones pad no windows of Swin v2")
def test_swin_v2_attention_is_fused(export: Any) -> None:
    """timm computes its cosine attention by hand; here it is one node per block."""
    report = export(SWINV2, (96, 160))
    assert report.verdict == "passed"
    nodes = [n.op_type for n in onnx.load(report.artifacts[0].path).graph.node]
    assert nodes.count("MultiHeadAttention") == 3
    assert "Softmax" not in nodes


def test_beit_table_of_another_size(export: Any, weights_of: Any) -> None:
    """C22: 96x144 with patch 16 has (2*6-1)*(2*9-1)+3 = 190 rows, and timm's own values."""
    loaded = open_source(_request(BEIT, weights_of(BEIT))).load()
    module = loaded.fresh(Resolution(96, 144))
    table = module.state_dict()["blocks.0.attn.relative_position_bias_table"]
    assert tuple(table.shape) == (190, 3)
    bias = module.blocks[0].attn._get_rel_pos_bias()
    report = export(BEIT, (96, 144), outputs=["tokens"], verify=False)
    stored = [
        numpy_helper.to_array(t) for t in onnx.load(report.artifacts[0].path).graph.initializer
    ]
    found = [a for a in stored if a.shape == tuple(bias.shape)]
    assert any(np.abs(a - bias.numpy()).max() <= 1e-6 for a in found)


def test_dinov3_rotary_is_the_closed_form(export: Any) -> None:
    """C24: patch centres from -1 to 1, angle 2 pi c / period, period = 100^(4i / head_dim)."""
    _, kwargs = DINOV3
    report = export(DINOV3, (96, 160), verify=False)
    head_dim = kwargs["embed_dim"] // kwargs["num_heads"]
    rows = (np.arange(6) + 0.5) / 6 * 2 - 1
    columns = (np.arange(10) + 0.5) / 10 * 2 - 1
    periods = 100.0 ** (4 * np.arange(head_dim // 4) / head_dim)
    by_row = np.repeat(rows, 10)[:, None] / periods
    by_column = np.tile(columns, 6)[:, None] / periods
    angles = 2 * math.pi * np.concatenate([by_row, by_column], axis=1)  # [60, D/2]
    stored = [
        numpy_helper.to_array(t) for t in onnx.load(report.artifacts[0].path).graph.initializer
    ]
    # One column per pair of channels; the rows of prefix tokens in front turn by nothing.
    tables = [a for a in stored if a.ndim == 2 and a.shape[1] == head_dim // 2 and len(a) >= 60]
    for function in (np.sin, np.cos):
        right = [t for t in tables if np.abs(t[-60:] - function(angles)).max() <= 1e-6]
        assert right, function
        assert all((t[:-60] == function(0.0)).all() for t in right)


def test_dinov3_follows_every_grid_when_dynamic(weights_of: Any) -> None:
    """timm divides by float(size), which a tracer freezes at the size it was traced at."""
    loaded = open_source(_request(DINOV3, weights_of(DINOV3))).load()
    written, own = loaded.explicit(None).rope, loaded.fresh(symbolic=True).rope
    for grid in ((6, 10), (3, 3), (11, 2)):
        assert torch.allclose(written._create_embed(grid), own._create_embed(grid), atol=1e-6)


def test_height_and_width_are_not_swapped(export: Any, tmp_path: Path) -> None:
    """C07: the transposed picture in the transposed file is another answer."""
    wide = export(VIT, (96, 160), output_dir=tmp_path / "a", verify=False).artifacts[0].path
    tall = export(VIT, (160, 96), output_dir=tmp_path / "b", verify=False).artifacts[0].path
    pixels = pixels_of((96, 160))
    one = outputs(wide, pixels)[0][1]
    other = outputs(tall, pixels.transpose(2, 3).contiguous())[0][1]
    assert np.abs(one - other).max() > 1e-2 * np.abs(one).max()


@needs("transformers", "5", "as_timm reads its names of weights")
def test_same_weights_differ_between_timm_and_transformers(kit: Any, tmp_path: Path) -> None:
    """C06: timm resamples with antialias, transformers without; each report says so."""
    module = kit.build("vit", head=True, image_size=224, layer_norm_eps=1e-6)
    theirs = vitpe_deploy.export(f"hf:{kit.save(module)}", 384, output_dir=tmp_path / "hf")
    path = tmp_path / "timm.pth"
    torch.save(as_timm(module), path)
    options = {"depth": 2, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "num_classes": 5}
    name = "timm:vit_tiny_patch16_224"
    kept = {"weights": path, "model_kwargs": options}
    ours = vitpe_deploy.export(name, 384, output_dir=tmp_path / "timm", **kept)
    assert (theirs.verdict, ours.verdict) == ("passed", "passed")
    assert (theirs.resample_rule, ours.resample_rule) == ("bicubic", "bicubic antialias")

    native = vitpe_deploy.export(name, 224, output_dir=tmp_path / "native", **kept)
    pixels = pixels_of((224, 224))
    with torch.no_grad():
        right = module(pixels).logits
    assert max_rel(outputs(native.artifacts[0].path, pixels)[0][1], right) <= 1e-5
    pixels = pixels_of((384, 384))
    one, other = (outputs(r.artifacts[0].path, pixels)[0][1] for r in (theirs, ours))
    assert np.abs(one - other).max() > 1e-3 * np.abs(one).max()


REFUSED = [
    ("cait_xxs24_224", {"depth": 1}, (160, 288), "none", SizeError, "pos_embed is"),
    ("cait_xxs24_224", {"depth": 1}, None, "size", UnsupportedError, "pos_embed is"),
    ("pit_ti_224", {}, (160, 288), "none", SizeError, "pos_embed is"),
    ("mvitv2_tiny", {}, (160, 288), "none", SizeError, "only squares are"),
    ("mvitv2_tiny", {}, None, "size", UnsupportedError, "rel_pos_h belongs to one size"),
    ("vit_tiny_patch16_224", SLIM, (225, 225), "none", SizeError, "225 = 14*16 + 1"),
    ("twins_svt_small", {}, (144, 160), "none", SizeError, "reduced 32 times"),
]


@pytest.mark.parametrize(("name", "kwargs", "size", "dynamic", "error", "says"), REFUSED)
def test_refused_before_weights_are_read(
    name: str,
    kwargs: dict[str, Any],
    size: Any,
    dynamic: str,
    error: type[UsageError],
    says: str,
    tmp_path: Path,
) -> None:
    """C17: what timm has no rule for is refused with the mechanism, and nothing is written."""
    with pytest.raises(error) as caught:
        vitpe_deploy.export(
            f"timm:{name}", size, dynamic=dynamic, model_kwargs=kwargs,
            weights=tmp_path / "is-not-read.safetensors", output_dir=tmp_path / "out",
        )  # fmt: skip
    assert says in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


def test_square_network_at_another_square() -> None:
    facts = open_source(ModelRequest("timm:mvitv2_tiny")).facts()
    facts.size_rule.check(Resolution(256, 256))
    with pytest.raises(SizeError):
        facts.size_rule.check(Resolution(240, 240))


@pytest.mark.parametrize(
    ("model", "hint"),
    [("timm:vit_tinny_patch16_224", "vit_tiny_patch16_224"), ("timm:", "timm:NAME")],
)
def test_unknown_name(model: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_source(ModelRequest(model)).facts()
    assert hint in caught.value.hint


def test_unknown_option() -> None:
    with pytest.raises(UsageError, match="patchsize is not an option"):
        open_source(ModelRequest("timm:vit_tiny_patch16_224", kwargs={"patchsize": "8"})).facts()


def test_weights_that_do_not_fit_are_listed(weights_of: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(weights_of(VIT))
    del tensors["blocks.1.norm2.bias"]
    tensors["blocks.1.norm2.shift"] = torch.zeros(96)
    path = tmp_path / "odd.safetensors"
    save_file(tensors, path)
    with pytest.raises(SourceError) as caught:
        open_source(_request(VIT, path)).load()
    assert "blocks.1.norm2.bias" in caught.value.message
    assert "blocks.1.norm2.shift" in caught.value.message


def test_wrapped_bfloat16_weights_with_another_class_count(weights_of: Any, tmp_path: Path) -> None:
    """As people save them; the number of classes is read off the head."""
    from safetensors.torch import load_file

    tensors = {f"module.{n}": t.bfloat16() for n, t in load_file(weights_of(VIT)).items()}
    path = tmp_path / "checkpoint.pth"
    torch.save({"state_dict": tensors, "epoch": 3}, path)
    options = {k: v for k, v in SLIM.items() if k != "num_classes"}
    report = vitpe_deploy.export(
        f"timm:{VIT[0]}", (96, 160), weights=path, model_kwargs=options, output_dir=tmp_path / "out"
    )
    assert report.verdict == "passed"
    assert "state_dict, module." in report.weights
    shape = onnx.load(report.artifacts[0].path).graph.output[0].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim] == [1, 7]


def test_weights_of_another_training_size_are_resampled_once(
    weights_of: Any, tmp_path: Path
) -> None:
    """C05: weights of 160 px under a 224 px name go straight to 288, not by way of 224."""
    name, options = VIT
    trained = (name, {**options, "img_size": (160, 160)})
    right = timm_output(VIT, "static", weights_of(trained), (288, 288))
    report = vitpe_deploy.export(
        f"timm:{name}", 288, weights=weights_of(trained), model_kwargs=options, output_dir=tmp_path
    )
    assert report.verdict == "passed"
    for _, given in outputs(report.artifacts[0].path, pixels_of((288, 288))):
        assert max_rel(given, right) <= 1e-5


def test_all_outputs(export: Any, weights_of: Any) -> None:
    names = ["logits", "pooled", "cls", "tokens", "feature-map", "block:0"]
    report = export(DISTILLED, (96, 160), outputs=names)
    assert report.verdict == "passed"
    shapes = {
        o.name: [d.dim_value for d in o.type.tensor_type.shape.dim]
        for o in onnx.load(report.artifacts[0].path).graph.output
    }
    assert shapes["tokens"] == shapes["block:0"] == [1, 62, 96]
    assert shapes["feature-map"] == [1, 96, 6, 10]
    assert shapes["cls"] == [1, 96]


def test_position_rule_can_be_overridden(export: Any, weights_of: Any) -> None:
    report = export(VIT, (96, 160), antialias=False)
    assert report.verdict == "passed"
    assert report.resample_rule == "bicubic"
    right = timm_output(VIT, "static", weights_of(VIT), (96, 160))
    assert max_rel(outputs(report.artifacts[0].path, pixels_of((96, 160)))[0][1], right) > 1e-3
    with pytest.raises(UnsupportedError, match="geometric"):
        export(BEIT, (96, 144), antialias=False, force=True)


# The referee: more of this in test_library_referees.py.


def test_file_of_another_size_is_noticed(export: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative bias of the right shape for the wrong grid (160x96 has as many patches)."""
    from vitpe_deploy.sources.timm_model import TimmModel

    right = TimmModel.explicit

    def other(self: TimmModel, size: Resolution | None) -> Any:
        module = right(self, Resolution(160, 96))
        module.patch_embed.strict_img_size = False
        return module

    monkeypatch.setattr(TimmModel, "explicit", other)
    assert export(BEIT, (96, 160)).verdict == "failed"


def timm_output(
    model: Model,
    mode: str,
    weights: Path,
    size: tuple[int, int],
    batch: int = 1,
) -> Tensor:
    """What timm itself answers."""
    with torch.no_grad():
        network = timm_networks.network(*model, weights, mode, size)
        right: Tensor = network(pixels_of(size, batch))
    return right


def _request(model: Model, weights: Path | None = None) -> ModelRequest:
    return ModelRequest(f"timm:{model[0]}", kwargs=model[1], weights=weights)


def _id(value: Any) -> str | None:
    return value[0] if isinstance(value, tuple) and isinstance(value[0], str) else None


def as_timm(module: Any) -> dict[str, Tensor]:
    """A transformers ViT's weights under timm's names."""
    given = module.state_dict()
    plain = {"attention.o_proj": "attn.proj", "layernorm_before": "norm1",
             "layernorm_after": "norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}  # fmt: skip
    named = {
        "cls_token": given["vit.embeddings.cls_token"],
        "pos_embed": given["vit.embeddings.position_embeddings"],
    }
    for part in ("weight", "bias"):
        patch = given[f"vit.embeddings.patch_embeddings.projection.{part}"]
        named[f"patch_embed.proj.{part}"] = patch
        named[f"norm.{part}"] = given[f"vit.layernorm.{part}"]
        named[f"head.{part}"] = given[f"classifier.{part}"]
        for k in range(module.config.num_hidden_layers):
            old, new = f"vit.layers.{k}", f"blocks.{k}"
            for theirs, ours in plain.items():
                named[f"{new}.{ours}.{part}"] = given[f"{old}.{theirs}.{part}"]
            qkv = [given[f"{old}.attention.{word}_proj.{part}"] for word in "qkv"]
            named[f"{new}.attn.qkv.{part}"] = torch.cat(qkv)
    return named
