"""Finding parts of a network that was not written here."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vitpe_deploy.errors import UnsupportedError


def find_blocks(module: nn.Module, depth: int) -> tuple[str, ...]:
    """Paths of the ``depth`` transformer blocks: the one list of that many equal modules.

    Raises:
        UnsupportedError: no such list, or more than one.
    """
    found = [path for path, size in _stacks(module) if size == depth]
    outermost = [p for p in found if not any(p != o and p.startswith(f"{o}.") for o in found)]
    if len(outermost) != 1:
        raise UnsupportedError(
            f"cannot tell which {depth} modules are the blocks of {type(module).__name__} "
            f"(candidates: {', '.join(outermost) or 'none'})",
            hint="Leave out block:K and --layers.",
        )
    return _items(module, outermost[0])


def _items(module: nn.Module, path: str) -> tuple[str, ...]:
    """Paths of the items of a list, which need not be called by their number."""
    return tuple(f"{path}.{name}" for name, _ in module.get_submodule(path).named_children())


def _stacks(module: nn.Module) -> list[tuple[str, int]]:
    """Path and length of each list of modules that are of one type and have parts of their own."""
    return [
        (path, len(child))
        for path, child in module.named_modules()
        if isinstance(child, nn.ModuleList | nn.Sequential)
        and len({type(item) for item in child}) == 1
        and any(True for _ in child[0].children())
    ]


def detached(module: nn.Module) -> nn.Module:
    """A copy in eval mode without gradients, sharing the memory of parameters and buffers.

    Someone else's module is never switched to eval mode, frozen or given new state.
    """
    memo: dict[int, object] = {
        id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters()
    }
    memo |= {id(b): b.detach() for b in module.buffers()}
    return copy.deepcopy(module, memo).eval()


def with_own_memory(module: nn.Module) -> nn.Module:
    """A copy that shares nothing, into which weights may be loaded."""
    return copy.deepcopy(module).eval()


@contextmanager
def without_data() -> Iterator[None]:
    """Inside, a forward computes shapes only, whatever tensors the module keeps and where."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        yield


def longest_stack(module: nn.Module) -> tuple[str, ...]:
    """Paths of the longest list of equal modules; empty when there is none."""
    stacks = [(size, path) for path, size in _stacks(module) if size > 1]
    if not stacks:
        return ()
    return _items(module, max(stacks, key=lambda stack: stack[0])[1])


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
