"""What is asked of the transformers library: config objects, classes, networks without data."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitpe_deploy.errors import MissingExtraError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.request import closest

if TYPE_CHECKING:
    from torch import nn

_PLAIN_OUTPUTS = {"output_attentions": False, "output_hidden_states": False}
"""A config may ask for more; it would change what the class returns and how it attends."""

_LOADER_ONLY = ("architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path")


def config_object(config: Mapping[str, Any]) -> Any:
    """The library's config of a ``config.json``.

    Raises:
        UnsupportedError: a ``model_type`` that the installed library does not know.
        SourceError: values that the library does not take.
    """
    known = config_classes()
    kind = str(config.get("model_type"))
    if kind not in known:
        raise UnsupportedError(
            f"the model is of type {kind!r}, which the installed transformers does not know",
            hint=f"{closest(kind, known)}Is config.json's model_type right?",
        )
    given = {k: v for k, v in config.items() if k not in ("torch_dtype", "dtype")}
    try:
        made = known[kind].from_dict({**given, **_PLAIN_OUTPUTS})
    except Exception as problem:  # the library validates values with errors of its own
        raise SourceError(f"transformers does not take this config: {_line(problem)}") from problem
    made.return_dict = True
    return made


def config_classes() -> Any:
    """``model_type`` -> config class.

    Raises:
        MissingExtraError: transformers or torch is not installed.
    """
    try:
        import torch  # noqa: F401
        from transformers import CONFIG_MAPPING
    except ImportError as problem:
        raise MissingExtraError(problem.name or "transformers", "transformers") from problem
    return CONFIG_MAPPING


def overridden(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the user's values.

    Raises:
        UsageError: a name that the config class does not have.
    """
    made = config_object(config)
    names = {*made.to_dict(), *made.attribute_map, "num_labels"} - set(_LOADER_ONLY)
    for name in options:
        if name not in names:
            raise UsageError(
                f"--model-kwarg {name} is not in the config of {type(made).__name__}",
                hint=f"{closest(name, names)}Options are the keys of config.json.",
            )
    for name, text in options.items():
        value = _value(text)
        if name == "num_labels" and isinstance(value, int):
            made.num_labels = value
        else:
            setattr(made, name, value)
    changed: dict[str, Any] = {**made.to_dict(), "architectures": config.get("architectures")}
    try:
        config_object(changed)
    except SourceError as problem:
        raise UsageError(f"--model-kwarg: {problem.message}") from problem
    return changed


def _value(given: Any) -> Any:
    """What shell text means to a config: ``12``, ``0.1``, ``true``, ``[2,2]``."""
    if not isinstance(given, str):
        return given
    if given.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[given.lower()]
    try:
        return ast.literal_eval(given)
    except (ValueError, SyntaxError):
        return given


def class_of(name: str) -> Any:
    """A class of the library by name; None when it has no such network."""
    import transformers

    cls: Any = getattr(transformers, name, None) if name else None
    known = inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel)
    return cls if known else None


def base_class_of(config: Any) -> Any:
    """The class that ``AutoModel`` has for a config; None when it has none."""
    from transformers import MODEL_MAPPING

    found: Any = MODEL_MAPPING.get(type(config), None)
    return found[0] if isinstance(found, tuple) else found


def attention_of(cls: Any) -> str:
    """torch's attention where the class has it, which the tracer writes as one node."""
    return "sdpa" if getattr(cls, "_supports_sdpa", False) else "eager"


def make(cls: Any, config: Mapping[str, Any], *, device: str = "meta") -> nn.Module:
    """A network of a class; of the ``meta`` device it has shapes and no data.

    Raises:
        SourceError: the library cannot make it of this config.
    """
    import torch

    made = config_object(config)
    made._attn_implementation = attention_of(cls)
    try:
        with torch.device(device):
            module: nn.Module = cls(made)
    except Exception as problem:
        raise SourceError(
            f"transformers cannot make {cls.__name__} of this config: {_line(problem)}"
        ) from problem
    return module.eval().requires_grad_(False)


def with_weights(
    architecture: str, config: Mapping[str, Any], path: Path, spec: str
) -> tuple[nn.Module, str]:
    """A network with the weights of a file in it, and where they come from.

    Raises:
        SourceError: lists names that are missing or unexpected and shapes that differ.
    """
    from vitpe_deploy.sources.weights import load_into, read_state_dict

    given = read_state_dict(path)
    module = make(class_of(architecture), config, device="cpu")
    unwrapped = load_into(module, given, path)
    origin = f"from {path.name} for {spec}"
    return module, origin + (f", unwrapped {', '.join(unwrapped)}" if unwrapped else "")


def takes(module: nn.Module, argument: str) -> bool:
    """Whether a network's forward has an argument."""
    return argument in inspect.signature(type(module).forward).parameters


def _line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).strip().splitlines() if line.strip()]
    return lines[0][:300] if lines else type(problem).__name__
