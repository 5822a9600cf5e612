"""ONNX's own Attention where there are few tokens: the same numbers, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import vitpe_deploy
from exporters.passes.standard_attention import FEW, StandardAttention
from tests.exporters.passes.conftest import execute, graph, operators
from vitpe_deploy.request import Target
from vitpe_deploy.results import ExportReport

B, T, N, M, D = 2, 3, 5, 2, 8
RNG = np.random.default_rng(23)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def attention(
    inputs: str = "q, k, v", tokens: object = N, extra: str = "", scale: str = "scale = 0.7"
) -> ir.Model:
    text = f"""
    net (float[{B}, {T}, {D}] q, float[{B}, {tokens}, {D}] k, float[{B}, {tokens}, {D}] v{extra})
        => (float[{B}, {T}, {D}] y) {{
        y = com.microsoft.MultiHeadAttention <num_heads = {M}, {scale}> ({inputs})
    }}"""
    model = graph(text)
    model.opset_imports[""] = 23
    return model


BIASES = [(1, 1, T, N), (1, M, T, N), (B, M, T, N), (B, 1, T, N)]


@pytest.mark.parametrize("scale", ["scale = 0.7", "scale = 0.0"])
@pytest.mark.parametrize("bias", [None, *BIASES])
def test_same_numbers(bias: tuple[int, ...] | None, scale: str, run_pass: Any) -> None:
    extra = "" if bias is None else f", float[{', '.join(map(str, bias))}] b"
    model = attention("q, k, v" if bias is None else "q, k, v, , , b", extra=extra, scale=scale)
    feeds = {"q": numbers(B, T, D), "k": numbers(B, N, D), "v": numbers(B, N, D)}
    feeds |= {} if bias is None else {"b": numbers(*bias)}
    before = execute(model, **feeds)["y"]
    assert run_pass(StandardAttention, model, opset=23).changed == 1
    assert operators(model) == ["Attention"]
    assert "com.microsoft" not in model.opset_imports
    after = execute(model, **feeds)["y"]
    assert before.std() > 0.1
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (attention(tokens=FEW + 1), {}, f"{FEW + 1} keys are more than {FEW}"),
        (attention(tokens="n"), {}, "how many keys it has is not known"),
        (attention(), {"half": True}, "float16"),
        (attention("q, k, v, , m", extra=f", int32[{B}, {N}] m"), {}, "mask"),
    ],
)
def test_what_is_left_alone_says_why(
    model: ir.Model, options: dict[str, Any], reason: str, run_pass: Any
) -> None:
    outcome = run_pass(StandardAttention, model, opset=23, **options)
    assert outcome.changed == 0
    assert operators(model) == ["MultiHeadAttention"]
    assert "com.microsoft" in model.opset_imports
    (refusal,) = outcome.refused
    assert reason in refusal.reason


@pytest.mark.parametrize(
    ("target", "opset"), [(Target.ORT, 22), (Target.OPENVINO, 23), (Target.PORTABLE, 23)]
)
def test_other_targets_and_opsets_keep_the_fused_node(
    target: Target, opset: int, run_pass: Any
) -> None:
    model = attention()
    outcome = run_pass(StandardAttention, model, target=target, opset=opset)
    assert (outcome.changed, outcome.refused) == (0, [])
    assert operators(model) == ["MultiHeadAttention"]


TINY = {"depth": 2, "embed_dim": 32, "num_heads": 2}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    return vitpe_deploy.export(
        "vit_tiny_patch16_224",
        model_kwargs=TINY,
        resolution=(48, 64),
        opset=23,
        output_dir=tmp_path_factory.mktemp("standard"),
    )


def kinds(report: ExportReport) -> list[str]:
    nodes = onnx.load(report.artifacts[0].path).graph.node
    return [f"{n.domain}.{n.op_type}".lstrip(".") for n in nodes]


def test_both_engines_run_the_export(exported: ExportReport) -> None:
    assert kinds(exported).count("Attention") == TINY["depth"]  # the class token's one query, too
    assert not [kind for kind in kinds(exported) if "." in kind]
    assert {row.runtime for row in exported.parity} == {"onnxruntime", "openvino"}
    assert all(row.passed and (row.max_rel or 1) <= 1e-5 for row in exported.parity)


@pytest.mark.parametrize(
    ("target", "opset", "found", "lost"),
    [
        ("portable", 20, "Softmax", "Attention"),
        ("ort", 20, "com.microsoft.MultiHeadAttention", "Attention"),
        ("portable", 23, "Attention", "com.microsoft.MultiHeadAttention"),
    ],
)
def test_respelled_for_others(
    exported: ExportReport, target: str, opset: int, found: str, lost: str, tmp_path: Any
) -> None:
    report = vitpe_deploy.export(
        exported.artifacts[0].path, target=target, opset=opset, output_dir=tmp_path
    )
    assert report.verdict == "passed"
    assert found in kinds(report)
    assert lost not in kinds(report)
