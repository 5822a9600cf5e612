"""Reading weight files: safetensors, or a torch state dict without executing anything in it.

Training code saves the same tensors in many wrappings. Taken off, in this order, and reported:

1. dictionaries around the state dict: an average of the weights (EMA) before the last step's own,
   a teacher before its student;
2. what PEFT leaves in the names of a merged model, and its copies of retrained heads;
3. prefixes that all names share (:func:`without_prefixes`);
4. half precision, which is read as float32.

LoRA matrices that were not merged are refused: their scale is not in the file.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.errors import SourceError

_WRAPPERS = (
    "model_ema",
    "state_dict_ema",
    "ema_state_dict",
    "ema",
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "net",
    "teacher",
    "student",
)
_PREFIXES = (
    "module.",
    "model.",
    "_orig_mod.",
    "backbone.",
    "teacher.",
    "student.",
    "base_model.model.",
    "net.",
)
_LORA = re.compile(r"\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(\.|$)")
_BASE_LAYER = ".base_layer."
_RETRAINED = re.compile(r"\.modules_to_save\.[^.]+\.")
_ORIGINAL = ".original_module."
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class StateDict:
    """Tensors by name, and which wrappers were taken off to get at them.

    Attributes:
        unwrapped: names of dictionaries, and what PEFT had put into the names of tensors.
        notes: conversions, in words.
    """

    tensors: Mapping[str, Tensor]
    unwrapped: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def origin(self, path: Path, unwrapped: Sequence[str] = ()) -> str:
        """What the report says: the file, what was taken off, what was converted."""
        taken = [*self.unwrapped, *unwrapped]
        said = [f"from {path.name}"]
        said += [f"unwrapped {', '.join(taken)}"] if taken else []
        return ", ".join([*said, *self.notes])


def read_state_dict(path: Path) -> StateDict:
    """Tensors of a ``.safetensors`` or torch checkpoint, wrappers taken off.

    Raises:
        SourceError: missing, damaged, pickled code inside, no tensors, or LoRA matrices.
    """
    return _in_full_precision(_without_adapters(_read(path), path))


def _read(path: Path) -> StateDict:
    if not path.is_file():
        raise SourceError(
            f"--weights {path} is not a file", hint="Give a .safetensors file or a checkpoint."
        )
    if path.suffix == ".safetensors":
        return StateDict(_read_safetensors(path), ())
    try:
        # Checkpoints from before torch 1.6 are no zip archives and cannot be mapped.
        mapped = zipfile.is_zipfile(path)
        if mapped:
            _refuse_compressed(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as problem:
        raise SourceError(
            f"--weights {path} is not a checkpoint of plain tensors: {_first_line(problem)}",
            hint="Save a state dict (torch.save(model.state_dict(), ...)) or safetensors. "
            "Files that need code to be executed are not read.",
        ) from problem
    weights = _unwrap(content, path)
    _refuse_repeated(weights, path)
    return weights


def _refuse_compressed(path: Path) -> None:
    """torch stores tensors as they are; what is compressed could be of any size when it is read."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{member.filename!r} in it is compressed")


def _refuse_repeated(weights: StateDict, path: Path) -> None:
    """Strides of zero make a few bytes a tensor of any size.

    Raises:
        SourceError: a tensor that is larger than the file.
    """
    size = path.stat().st_size
    for name, tensor in weights.tensors.items():
        if tensor.numel() * tensor.element_size() > size:
            raise SourceError(
                f"--weights {path}: {name} is {list(tensor.shape)}, more than the file's "
                f"{size} bytes can hold",
                hint="It was saved as an expanded view: save it with .contiguous().",
            )


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


def _without_adapters(weights: StateDict, path: Path) -> StateDict:
    """What PEFT put into the names of a merged model, taken off.

    Raises:
        SourceError: LoRA matrices that were not merged.
    """
    lora = [name for name in weights.tensors if _LORA.search(name)]
    if lora:
        raise SourceError(
            f"--weights {path} holds {len(lora)} LoRA tensors that were not merged ({lora[0]}); "
            "their scale, lora_alpha / r, is not in the file",
            hint="Merge them where they were trained, with model.merge_and_unload(), and save that "
            "model's state dict.",
        )
    named: dict[str, Tensor] = {}
    taken: dict[str, None] = {}
    for name, tensor in weights.tensors.items():
        if _ORIGINAL in name:
            kept = re.compile(re.escape(name).replace(re.escape(_ORIGINAL), _RETRAINED.pattern))
            if any(kept.fullmatch(other) for other in weights.tensors):
                continue  # the head before it was retrained
        plain = name.replace(_BASE_LAYER, ".").replace(_ORIGINAL, ".")
        taken |= {"base_layer": None} if _BASE_LAYER in name else {}
        taken |= {"modules_to_save": None} if _RETRAINED.search(name) else {}
        named[_RETRAINED.sub(".", plain)] = tensor
    if not taken:
        return weights
    return replace(weights, tensors=named, unwrapped=(*weights.unwrapped, *taken))


def _in_full_precision(weights: StateDict) -> StateDict:
    """Half-precision tensors as float32, which holds each of their values."""
    halves = {t.dtype for t in weights.tensors.values()} & set(_HALF)
    if not halves:
        return weights
    tensors = {n: t.float() if t.dtype in _HALF else t for n, t in weights.tensors.items()}
    names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in halves))
    return replace(weights, tensors=tensors, notes=(*weights.notes, f"{names} read as float32"))


def load_checkpoint(module: nn.Module, path: Path) -> str:
    """Read a file into a module of the training size. Gives the origin for the report.

    Raises:
        SourceError: see :func:`read_state_dict` and :func:`load_into`.
    """
    weights = read_state_dict(path)
    taken = load_into(module, weights, path)
    return weights.origin(path, taken[len(weights.unwrapped) :])


def class_count(tensors: Mapping[str, Tensor], module: nn.Module) -> int | None:
    """Classes of a file whose head has another number of them; None when nothing says so.

    The head is the last linear layer. Names are compared without prefixes.
    """
    expected = module.state_dict()
    given, _ = without_prefixes(tensors, expected)
    heads = [n for n, m in module.named_modules() if isinstance(m, nn.Linear)]
    if not heads:
        return None
    weight = given.get(f"{heads[-1]}.weight")
    mine = expected.get(f"{heads[-1]}.weight")
    if weight is None or mine is None or weight.dim() != 2 or weight.shape[1] != mine.shape[1]:
        return None
    return None if weight.shape[0] == mine.shape[0] else int(weight.shape[0])


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
