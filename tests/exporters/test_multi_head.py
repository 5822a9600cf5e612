"""nn.MultiheadAttention written out: torch's own answers, and one fused node per block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import vitpe_deploy
from exporters.multi_head import written_out

B, L, S, E, H = 2, 5, 7, 12, 3


class Writing(TorchFunctionMode):
    """Calls of multi_head_attention_forward are written out; counts those that were."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.multi_head_attention_forward:
            found = written_out(
                lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), args, kwargs or {}
            )
            if found is not None:
                self.written += 1
                return found
        return func(*args, **(kwargs or {}))


def module(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    made = nn.MultiheadAttention(E, H, **options).eval().requires_grad_(False)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)  # torch starts biases at zero
    return made


def both(made: nn.MultiheadAttention, *inputs: Tensor, **options: Any) -> tuple[Any, Any, int]:
    with torch.no_grad():
        right = made(*inputs, **options)
        with Writing() as mode:
            got = made(*inputs, **options)
    return right, got, mode.written


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_is_torchs(batch_first: bool, bias: bool) -> None:
    x = torch.randn(B, L, E)
    right, got, written = both(module(batch_first=batch_first, bias=bias), x, x, x)
    assert written == 1
    torch.testing.assert_close(got[0], right[0])
    torch.testing.assert_close(got[1], right[1])  # averaged weights


def test_weights_of_each_head() -> None:
    x = torch.randn(B, L, E)
    right, got, written = both(module(batch_first=True), x, x, x, average_attn_weights=False)
    assert written == 1
    assert got[1].shape == (B, H, L, L)
    torch.testing.assert_close(got[1], right[1])


@pytest.mark.parametrize("sizes", [{}, {"kdim": 8, "vdim": 6}])
def test_keys_of_another_length_and_width(sizes: dict[str, int]) -> None:
    made = module(batch_first=True, **sizes)
    query = torch.randn(B, L, E)
    key, value = torch.randn(B, S, sizes.get("kdim", E)), torch.randn(B, S, sizes.get("vdim", E))
    right, got, written = both(made, query, key, value, need_weights=False)
    assert written == 1
    assert got[1] is None
    torch.testing.assert_close(got[0], right[0])


def test_masks_say_what_is_not_read() -> None:
    made, x = module(batch_first=True), torch.randn(B, L, E)
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1, 3:] = True
    per_head = torch.randn(B * H, L, L)
    infinite = torch.zeros(L, L).masked_fill(later, float("-inf"))
    for options in (
        {"attn_mask": later},
        {"attn_mask": infinite, "is_causal": True},
        {"key_padding_mask": padding},
        {"attn_mask": later, "key_padding_mask": padding},
        {"attn_mask": per_head},
    ):
        right, got, written = both(made, x, x, x, need_weights=False, **options)
        assert written == 1, options
        torch.testing.assert_close(got[0], right[0])
        plain, _ = made(x, x, x, need_weights=False)
        assert (right[0] - plain).abs().max() > 1e-2  # the mask matters


def test_rare_forms_are_left_alone() -> None:
    x = torch.randn(B, L, E)
    for made, given in (
        (module(batch_first=True, add_bias_kv=True), x),
        (module(batch_first=True, add_zero_attn=True), x),
        (module(), x[0]),
    ):
        right, got, written = both(made, given, given, given)
        assert written == 0
        torch.testing.assert_close(got[0], right[0])


class Block(nn.Module):
    """Pre-norm attention and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(E)
        self.attention = nn.MultiheadAttention(E, H, batch_first=True)
        self.linear = nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        out: Tensor = x + self.linear(x)
        return out


class Network(nn.Module):
    """Three blocks; the row that argmax of the first pixel row names comes out as well."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, E, 16, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        signs = (tokens[..., 0] > tokens[..., 0].mean(1, keepdim=True)).int()  # many ties
        first = tokens[torch.arange(x.shape[0]), signs.argmax(dim=-1)]
        return {"tokens": tokens, "first": first}


@pytest.mark.parametrize("dynamic", ["none", "batch"])
def test_a_network_of_depth_3_has_3_fused_attentions(tmp_path: Path, dynamic: str) -> None:
    """C25, and ties of argmax in both engines."""
    torch.manual_seed(0)
    report = vitpe_deploy.export(Network().eval(), (64, 96), dynamic=dynamic, output_dir=tmp_path)
    assert report.verdict == "passed"
    assert {r.runtime for r in report.parity} == {"onnxruntime", "openvino"}
    model = onnx.load(report.artifacts[0].path)
    operations = [node.op_type for node in model.graph.node]
    assert operations.count("MultiHeadAttention") == 3
    assert "Softmax" not in operations
    assert "ArgMax" not in operations
