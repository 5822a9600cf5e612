"""``nn.MultiheadAttention`` with its attention in sight.

torch's module packs the projections and hides its attention from whoever watches torch functions:
what is called is ``F.multi_head_attention_forward`` and, inside, nothing that can be intercepted.
Here that one function is written out from its arguments, batch first, so that the attention in it
becomes the same node as everybody else's. torchvision's ViT and open_clip's towers are made of it.

Letters: B batch, L queries, S keys, E embed_dim, H heads, d = E / H.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Query, key, value [B, H, L|S, d] and an additive mask or None -> [B, H, L, d]."""

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)
_RARE = ("bias_k", "bias_v", "static_k", "static_v")


def written_out(
    attend: Attend, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None] | None:
    """One call of ``F.multi_head_attention_forward``, its attention done by ``attend``.

    Gives what torch gives, [L, B, E] and the weights, or None for calls that are left alone: extra
    keys, and inputs without a batch.
    """
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    call = bound.arguments
    query = call["query"]
    if query.dim() != 3 or call["add_zero_attn"] or any(call[n] is not None for n in _RARE):
        return None
    heads, width = int(call["num_heads"]), int(call["embed_dim_to_check"])
    q, k, v = (_by_head(x, heads) for x in _projected(call))
    mask = _mask(call, query.shape[1], heads)
    attended = attend(q, k, v, mask)
    merged = attended.transpose(1, 2).reshape(query.shape[1], query.shape[0], width)  # [B, L, E]
    out = F.linear(merged, call["out_proj_weight"], call["out_proj_bias"]).transpose(0, 1)
    if not call["need_weights"]:
        return out, None
    weights = _weights(q, k, mask)
    return out, weights.mean(1) if call["average_attn_weights"] else weights


def _projected(call: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Query, key and value after their projections, batch first: [B, L|S, E]."""
    inputs = [call[n] for n in ("query", "key", "value")]
    bias = call["in_proj_bias"]
    if not call["use_separate_proj_weight"]:
        if inputs[0] is inputs[1] is inputs[2]:
            packed = F.linear(inputs[0].transpose(0, 1), call["in_proj_weight"], bias)
            return packed.chunk(3, dim=-1)
        weights = call["in_proj_weight"].chunk(3)
    else:
        weights = tuple(call[f"{n}_proj_weight"] for n in "qkv")
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(
        F.linear(x.transpose(0, 1), w, b) for x, w, b in zip(inputs, weights, biases, strict=True)
    )


def _by_head(x: Tensor, heads: int) -> Tensor:
    """[B, L, E] -> [B, H, L, d]."""
    return torch.unflatten(x, -1, (heads, -1)).transpose(1, 2)


def _mask(call: Mapping[str, Any], batch: int, heads: int) -> Tensor | None:
    """Both masks as one additive mask [1|B, 1|H, L|1, S]; torch's True means not read."""
    mask, padding = call["attn_mask"], call["key_padding_mask"]
    if mask is not None:
        mask = _additive(mask, call["query"].dtype)
        mask = mask[None, None] if mask.dim() == 2 else torch.unflatten(mask, 0, (batch, heads))
    if padding is None:
        return mask  # type: ignore[no-any-return]
    own = _additive(padding, call["query"].dtype)[:, None, None, :]
    return own if mask is None else mask + own


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, torch.finfo(dtype).min)


def _weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """What a caller that asks for weights gets; nothing is left of it when they are not read."""
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return torch.softmax(logits if mask is None else logits + mask, dim=-1)
