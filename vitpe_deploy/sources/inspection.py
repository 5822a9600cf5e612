"""Finding parts of a network that was not written here."""

from __future__ import annotations

import copy

import torch
from torch import nn

from vitpe_deploy.errors import UnsupportedError


def find_blocks(module: nn.Module, depth: int) -> tuple[str, ...]:
    """Paths of the ``depth`` transformer blocks: the one list of that many equal modules.

    Raises:
        UnsupportedError: no such list, or more than one.
    """
    found = [
        path
        for path, child in module.named_modules()
        if isinstance(child, nn.ModuleList | nn.Sequential)
        and len(child) == depth
        and len({type(item) for item in child}) == 1
        and any(True for _ in child[0].children())
    ]
    outermost = [p for p in found if not any(p != o and p.startswith(f"{o}.") for o in found)]
    if len(outermost) != 1:
        raise UnsupportedError(
            f"cannot tell which {depth} modules are the blocks of {type(module).__name__} "
            f"(candidates: {', '.join(outermost) or 'none'})",
            hint="Leave out block:K and --layers.",
        )
    return tuple(f"{outermost[0]}.{k}" for k in range(depth))


def on_meta(module: nn.Module) -> nn.Module:
    """A copy without data: its forward computes shapes only."""
    tensors = [*module.parameters(), *module.buffers()]
    memo: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        empty = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if is_parameter else empty
    return copy.deepcopy(module, memo)


def longest_stack(module: nn.Module) -> tuple[str, ...]:
    """Paths of the longest list of equal modules with parts of their own; empty when there is none."""
    stacks = [
        (len(child), path)
        for path, child in module.named_modules()
        if isinstance(child, nn.ModuleList | nn.Sequential)
        and len(child) > 1
        and len({type(item) for item in child}) == 1
        and any(True for _ in child[0].children())
    ]
    if not stacks:
        return ()
    depth, path = max(stacks, key=lambda stack: stack[0])
    return tuple(f"{path}.{k}" for k in range(depth))


def patch_convolution(module: nn.Module) -> nn.Conv2d | None:
    """The first convolution that cuts a picture into patches: its stride is its kernel size."""
    for child in module.modules():
        if (
            isinstance(child, nn.Conv2d)
            and tuple(child.kernel_size) == tuple(child.stride)
            and child.kernel_size[0] > 1
        ):
            return child
    return None
