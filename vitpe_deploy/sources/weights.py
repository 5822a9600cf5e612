"""Reading weight files: safetensors, or a torch state dict without executing anything in it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.errors import SourceError

_WRAPPERS = ("model_ema", "state_dict_ema", "ema", "state_dict", "model", "module", "teacher")
_PREFIXES = ("module.", "model.", "_orig_mod.", "backbone.")


@dataclass(frozen=True, slots=True)
class StateDict:
    """Tensors by name, and which wrappers were taken off to get at them."""

    tensors: Mapping[str, Tensor]
    unwrapped: tuple[str, ...]


def read_state_dict(path: Path) -> StateDict:
    """Tensors of a ``.safetensors`` or torch checkpoint, wrappers taken off.

    Raises:
        SourceError: missing, damaged, pickled code inside, or no tensors.
    """
    if not path.is_file():
        raise SourceError(
            f"--weights {path} is not a file", hint="Give a .safetensors file or a checkpoint."
        )
    if path.suffix == ".safetensors":
        return StateDict(_read_safetensors(path), ())
    try:
        # Checkpoints from before torch 1.6 are no zip archives and cannot be mapped.
        mapped = zipfile.is_zipfile(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as problem:
        raise SourceError(
            f"--weights {path} is not a checkpoint of plain tensors: {_first_line(problem)}",
            hint="Save a state dict (torch.save(model.state_dict(), ...)) or safetensors. "
            "Files that need code to be executed are not read.",
        ) from problem
    return _unwrap(content, path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as problem:
        raise SourceError(
            f"--weights {path} is not a safetensors file: {_first_line(problem)}"
        ) from problem
    return tensors


def _unwrap(content: Any, path: Path) -> StateDict:
    unwrapped: list[str] = []
    while isinstance(content, Mapping) and not _is_state_dict(content):
        key = next((k for k in _WRAPPERS if isinstance(content.get(k), Mapping)), None)
        if key is None:
            break
        unwrapped.append(key)
        content = content[key]
    if not isinstance(content, Mapping) or not _is_state_dict(content):
        found = type(content).__name__
        keys = ", ".join(map(str, list(content)[:5])) if isinstance(content, Mapping) else found
        raise SourceError(f"--weights {path} holds no state dict (found: {keys})")
    return StateDict(dict(content), tuple(unwrapped))


def _is_state_dict(content: Mapping[Any, Any]) -> bool:
    return bool(content) and all(isinstance(v, Tensor) for v in content.values())


def load_into(module: nn.Module, weights: StateDict, path: Path) -> tuple[str, ...]:
    """Put tensors into a module whose names and shapes must all agree.

    Returns what was unwrapped, prefixes included.

    Raises:
        SourceError: lists missing and unexpected names and shapes that differ.
    """
    expected = module.state_dict()
    tensors, prefixes = without_prefixes(weights.tensors, expected)
    unwrapped = [*weights.unwrapped, *prefixes]
    problems = [
        *(f"missing {name}" for name in expected if name not in tensors),
        *(f"unexpected {name}" for name in tensors if name not in expected),
        *(
            f"{name} is {list(tensors[name].shape)}, the model has {list(value.shape)}"
            for name, value in expected.items()
            if name in tensors and tensors[name].shape != value.shape
        ),
    ]
    if problems:
        shown = "; ".join(problems[:8])
        shown += f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise SourceError(
            f"--weights {path} does not fit the model: {shown}",
            hint="Weights must be of the model's native size; set --model-kwarg to match them.",
        )
    module.load_state_dict({n: t.to(expected[n].dtype) for n, t in tensors.items()})
    return tuple(unwrapped)


def without_prefixes(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Take prefixes off that wrappers put before every name. Gives the tensors and the prefixes."""
    named, prefixes = dict(tensors), []
    while (prefix := _shared_prefix(named, expected)) is not None:
        named = {n.removeprefix(prefix): t for n, t in named.items()}
        prefixes.append(prefix)
    return named, tuple(prefixes)


def _shared_prefix(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """A wrapper's prefix that all given names carry and no expected one does."""
    for prefix in _PREFIXES:
        given = bool(tensors) and all(n.startswith(prefix) for n in tensors)
        if given and not any(n.startswith(prefix) for n in expected):
            return prefix
    return None


def _first_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else type(problem).__name__
