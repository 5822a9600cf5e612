"""Who can read a file: rules with their reasons, and nothing claimed that was not tested.

ONNX Runtime and OpenVINO are the engines that files are proved in. Of other consumers only what
the standard says is stated: which operators, opset, types and dimensions they have to support.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vitpe_deploy.inspection.report import Consumer, Dimension
from vitpe_deploy.request import OPSETS

CONTRIB = "com.microsoft"
ORT, OPENVINO = "ONNX Runtime", "OpenVINO"
STANDARD = "standard-only importers"

OPENVINO_SINCE: Mapping[str, str] = {
    "BiasGelu": "2026.3",
    "MultiHeadAttention": "2026.3",
    "RotaryEmbedding": "2026.3",
}
"""Contrib operators that passes write, with the first version of OpenVINO seen to run them."""

_ORT_CONTRIB = frozenset(
    {
        "Attention", "BiasGelu", "FastGelu", "FusedMatMul", "Gelu", "LayerNormalization",
        "MultiHeadAttention", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization",
        "SkipLayerNormalization", "DynamicQuantizeMatMul", "MatMulNBits", "FusedConv",
        "SkipSimplifiedLayerNormalization", "NhwcMaxPool", "QLinearAdd", "QAttention",
    }
)  # fmt: skip
_OPENVINO_CONTRIB = frozenset(
    {"Attention", "FastGelu", "FusedMatMul", "MatMulNBits", "QuickGelu",
     "SkipLayerNormalization", "SimplifiedLayerNormalization"}
)  # fmt: skip
"""In OpenVINO's own list of supported contrib operators; not run here."""

_PLAIN_TYPES = frozenset({"float32", "int64", "int32", "bool"})
_INTEGER = frozenset(
    {"MatMulInteger", "ConvInteger", "DynamicQuantizeLinear", "QuantizeLinear", "DequantizeLinear",
     "QLinearMatMul", "QLinearConv"}
)  # fmt: skip
"""Operators of the standard that importers for float networks often lack."""

_ML_DOMAINS = ("ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
TESTED_OPSETS = frozenset({14, *OPSETS})
"""Opsets of files that were run in both engines by the tests of this project."""


def onnx_consumers(
    operators: Mapping[str, int],
    opsets: Mapping[str, int],
    symbolic: Sequence[Dimension],
    wrong_in_openvino: Sequence[str],
    *,
    attention_lacks: bool,
    types: Sequence[str] = (),
) -> tuple[Consumer, ...]:
    """What is known of each reader of an ONNX file.

    Args:
        operators: counts by kind, contrib ones with their domain.
        opsets: version by domain.
        symbolic: symbolic dimensions of inputs.
        wrong_in_openvino: what OpenVINO computes wrongly.
        attention_lacks: whether nodes of opset 23's ``Attention`` are there, which importers of
            lower opsets do not have.
        types: number formats of the weights.
    """
    foreign = [k for k in operators if "." in k and not k.startswith(_ML_DOMAINS)]
    contrib = [k.removeprefix(f"{CONTRIB}.") for k in foreign if k.startswith(f"{CONTRIB}.")]
    unknown = [k for k in foreign if not k.startswith(f"{CONTRIB}.")]
    opset = opsets.get("", 0)
    return (
        _ort(contrib, unknown, opset),
        _openvino(contrib, unknown, opset, wrong_in_openvino),
        _standard(
            foreign,
            opset,
            symbolic,
            attention_lacks=attention_lacks,
            types=[t for t in types if t not in _PLAIN_TYPES],
            integer=[k for k in operators if k in _INTEGER],
        ),
    )


def _ort(contrib: Sequence[str], unknown: Sequence[str], opset: int) -> Consumer:
    reasons = [f"operator {k} is of no domain that it has" for k in unknown]
    reasons += [
        f"contrib operator {k} is not among those known here"
        for k in contrib
        if k not in _ORT_CONTRIB
    ]
    if reasons:
        return Consumer(name=ORT, runs=False if unknown else None, reasons=tuple(reasons))
    return Consumer(name=ORT, runs=_tested(opset), reasons=_untested(opset))


def _openvino(
    contrib: Sequence[str], unknown: Sequence[str], opset: int, wrong: Sequence[str]
) -> Consumer:
    if unknown:
        return Consumer(
            name=OPENVINO,
            runs=False,
            reasons=tuple(f"operator {k} is of no domain that it has" for k in unknown),
        )
    reasons, runs = [], _tested(opset)
    for k in contrib:
        if k in OPENVINO_SINCE:
            reasons.append(f"contrib operator {k}: from {OPENVINO_SINCE[k]}")
        elif k in _OPENVINO_CONTRIB:
            reasons.append(f"contrib operator {k}: in its list, not tested")
            runs = None
        else:
            reasons.append(f"contrib operator {k}: not known to be read")
            runs = None
    if wrong:
        reasons.append(f"it runs and computes something else: {wrong[0]}")
    return Consumer(name=OPENVINO, runs=runs, reasons=(*reasons, *_untested(opset)))


def _standard(
    foreign: Sequence[str],
    opset: int,
    symbolic: Sequence[Dimension],
    *,
    attention_lacks: bool,
    types: Sequence[str],
    integer: Sequence[str],
) -> Consumer:
    """TensorRT-style importers and others that have the operators of the ONNX standard alone."""
    reasons = [f"operator {k} is not of the standard" for k in foreign]
    if reasons:
        hint = " (vitpe-export FILE --target portable respells one of ours)"
        reasons[-1] += hint if any(k.startswith(CONTRIB) for k in foreign) else ""
        return Consumer(name=STANDARD, runs=False, reasons=tuple(reasons))
    reasons.append(f"standard operators only, opset {opset}; not tested")
    if attention_lacks:
        reasons.append("it must have Attention, which is new in opset 23")
    if types:
        reasons.append(f"it must take weights in {', '.join(types)}")
    if integer:
        reasons.append(f"it must have {', '.join(integer)}")
    if symbolic:
        axes = ", ".join(f"{d.input}[{d.axis}]" for d in symbolic)
        reasons.append(f"it must take symbolic dimensions: {axes}")
    return Consumer(name=STANDARD, runs=None, reasons=tuple(reasons))


def ir_consumers(opset: str) -> tuple[Consumer, ...]:
    """What is known of the readers of an OpenVINO IR."""
    return (
        Consumer(
            name=OPENVINO, runs=True, reasons=(f"read by the one that is installed, {opset}",)
        ),
        Consumer(name=ORT, runs=False, reasons=("OpenVINO IR is OpenVINO's alone",)),
    )


def _tested(opset: int) -> bool | None:
    return True if opset in TESTED_OPSETS else None


def _untested(opset: int) -> tuple[str, ...]:
    return () if opset in TESTED_OPSETS else (f"opset {opset} is not among those tested",)
