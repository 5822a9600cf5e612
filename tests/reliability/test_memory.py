"""What is let go of when, so that a large model is not in memory twice beside an engine's copy."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch

import vitpe_deploy
from exporters import pipeline
from exporters.trim import forget_rewritten_graph
from vitpe_deploy.models.presets import VIT_PRESETS, with_options
from vitpe_deploy.models.vit import VisionTransformer

WIDTH = 44  # of no other test, so that its weights can be told from everything else in memory
WIDE = {"depth": 2, "embed_dim": WIDTH, "num_heads": 2, "image_size": 32, "num_classes": 5}
MODEL = "vit_tiny_patch16_224"


def alive() -> dict[str, int]:
    """Weights in memory, of torch and of graphs: matrices with a side of ``WIDTH``."""
    gc.collect()
    objects = gc.get_objects()
    tensors = [x for x in objects if type(x) in (torch.Tensor, torch.nn.Parameter)]
    kinds = {kind for kind in map(type, objects) if issubclass(kind, ir.Value)}
    values = [x for x in objects if type(x) in kinds and x.const_value is not None]
    shapes = [tuple(v.const_value.shape.numpy()) for v in values if v.const_value is not None]
    return {
        "torch": sum(x.dim() == 2 and WIDTH in x.shape for x in tensors),
        "graphs": sum(len(s) == 2 and WIDTH in s for s in shapes),
    }


@pytest.fixture
def at_proof(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """What is alive whenever the first engine is about to load its file."""
    seen: list[dict[str, int]] = []
    real = pipeline.prove

    def look(*arguments: Any) -> Any:
        seen.append(alive())
        return real(*arguments)

    monkeypatch.setattr(pipeline, "prove", look)
    return seen


def export(model: Any, folder: Path, sizes: Any = None, **options: Any) -> None:
    report = vitpe_deploy.export(
        model, sizes, formats=["onnx", "openvino"], output_dir=folder, threads=1, **options
    )
    assert report.verdict == "passed"


def test_nothing_holds_the_weights_when_engines_load_theirs(
    tmp_path: Path, at_proof: list[dict[str, int]]
) -> None:
    assert alive() == {"torch": 0, "graphs": 0}
    export(MODEL, tmp_path, model_kwargs=WIDE)
    assert at_proof == [{"torch": 0, "graphs": 0}]


def test_the_model_stays_while_there_are_sizes_to_come(
    tmp_path: Path, at_proof: list[dict[str, int]]
) -> None:
    export(MODEL, tmp_path, [32, 48], model_kwargs=WIDE)
    first, last = at_proof
    assert first["torch"] > 0
    assert first["graphs"] == 0
    assert last == {"torch": 0, "graphs": 0}


def test_a_module_that_was_passed_in_keeps_its_weights(
    tmp_path: Path, at_proof: list[dict[str, int]]
) -> None:
    torch.manual_seed(0)
    module = VisionTransformer(with_options(VIT_PRESETS[MODEL], WIDE)).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    export(module, tmp_path)
    assert at_proof[0]["graphs"] == 0
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_rewriting_works_after_it_was_made_to_forget() -> None:
    from onnxscript import rewriter

    def model() -> ir.Model:
        x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, WIDTH]))
        relu = ir.node("Relu", [x])
        twice = ir.node("Relu", relu.outputs)
        opsets = {"": 20}
        graph = ir.Graph([x], twice.outputs, nodes=[relu, twice], opset_imports=opsets, name="g")
        return ir.Model(graph, ir_version=10)

    first = rewriter.rewrite(model())
    forget_rewritten_graph()
    second = rewriter.rewrite(model())
    assert [n.op_type for n in first.graph] == [n.op_type for n in second.graph] == ["Relu"]
