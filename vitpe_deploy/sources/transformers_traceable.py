"""Parts of transformers' networks that torch's tracer does not take, written in a way that it does.

The network that is changed is a copy; the referee's is not touched, so each rewriting is proved by
parity.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn


def make_traceable(module: nn.Module, *, symbolic: bool) -> nn.Module:
    """Change a copy in place and give it back.

    Args:
        module: a copy in eval mode.
        symbolic: whether height and width are symbolic in the trace.
    """
    for child in module.modules():
        if symbolic:
            keep_sizes_symbolic(child)
    return module


def keep_sizes_symbolic(module: nn.Module) -> None:
    """Let a copy's ``interpolate_pos_encoding`` see symbolic sizes.

    The library passes sizes through its ``torch_int``, which is ``int`` outside torch.jit: in some
    families that freezes the grid of the trace. The method's own code runs here, on this object
    alone, with a ``torch_int`` that leaves symbols as they are.
    """
    method = getattr(type(module), "interpolate_pos_encoding", None)
    if not isinstance(method, types.FunctionType) or "torch_int" not in method.__globals__:
        return
    names = {**method.__globals__, "torch_int": _int_or_symbol}
    own = types.FunctionType(
        method.__code__, names, method.__name__, method.__defaults__, method.__closure__
    )
    own.__kwdefaults__ = method.__kwdefaults__
    module.interpolate_pos_encoding = types.MethodType(own, module)  # type: ignore[assignment]


def _int_or_symbol(value: Any) -> Any:
    return value if isinstance(value, torch.SymInt) else int(value)
