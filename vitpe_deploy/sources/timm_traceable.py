"""Parts of timm networks that torch's tracer does not take, written in a way that it does.

The network that is changed is a copy; the referee's is not touched, so each rewriting is proved by
parity.
"""

from __future__ import annotations

from torch import nn


def make_traceable(module: nn.Module, *, symbolic: bool) -> nn.Module:
    """Change a copy in place and give it back.

    Args:
        module: a copy in eval mode.
        symbolic: whether height and width are symbolic in the trace.
    """
    for child in module.modules():
        if getattr(child, "fused_attn", None) is False:
            child.fused_attn = True  # type: ignore[assignment]
    return module
