"""transformers: small networks of the library's config classes, saved and run as it documents."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.families.base import Arrays, Library, Saved
from benchmarks.families.transformers_configs import OTHERS, SMALL, Small, build
from benchmarks.families.weights import redraw

_NAMES = {
    "last_hidden_state": ("tokens", "feature-map"),
    "pooler_output": ("pooled",),
    "feature_maps": ("feature-map",),
}
"""The library's names of outputs -> those in our files."""


class Transformers(Library):
    """A folder of ``save_pretrained``, read again by ``from_pretrained`` at every size."""

    name: ClassVar[str] = "transformers"

    def names(self, *, others: bool = False) -> tuple[str, ...]:
        """Names of small configs."""
        return tuple(OTHERS if others else SMALL)

    def save(self, name: str, folder: Path) -> Saved:
        """config.json and model.safetensors."""
        module = build(name)
        module.load_state_dict(redraw(module))
        path = folder / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.save_pretrained(path)
        tower = _small(name).tower
        return Saved(f"hf:{path}", {"tower": tower} if tower else {})

    def reference(
        self, name: str, saved: Saved, mode: str, size: tuple[int, int], inputs: Any
    ) -> Arrays:
        """The class itself, fresh, run on the inputs; tensors by the names of our files.

        Positions are resampled where that is asked for, at every size but the native one; with
        nothing masked and nothing shuffled where the class masks.
        """
        import transformers

        small = _small(name)
        cls: Any = getattr(transformers, small.cls)
        more = {"mask_ratio": 0.0} if "mask_ratio" in cls.config_class().to_dict() else {}
        module = cls.from_pretrained(saved.model.removeprefix("hf:"), **more).eval()
        if small.part:
            module = module.get_submodule(small.part)
        options: dict[str, Any] = {}
        if mode != "native" and small.tower != "text":
            options = {"interpolate_pos_encoding": True}
        if more:
            count = (size[0] // 16) * (size[1] // 16)
            options["noise"] = torch.linspace(0, 1, count).expand(inputs.shape[0], -1)
        with torch.no_grad():
            if small.tower:
                return _tower(module, small.tower, inputs, options)
            return named(_call(module, inputs, options))


def _call(run: Any, inputs: Tensor, options: Mapping[str, Any]) -> Any:
    """Run a network or a method with those options that it has."""
    taken = inspect.signature(getattr(run, "forward", run)).parameters
    return run(inputs, **{k: v for k, v in options.items() if k in taken})


def _tower(module: Any, tower: str, inputs: Tensor, options: Mapping[str, Any]) -> Arrays:
    """What the library compares with the other tower, not normalised."""
    method = module.get_text_features if tower == "text" else module.get_image_features
    result = _call(method, inputs, options)
    value = result if isinstance(result, Tensor) else result.pooler_output
    return {"embedding": value.numpy()}


def named(result: Any) -> Arrays:
    """Tensors of an output of the library under all names that our files may use."""
    if isinstance(result, Tensor):
        return {"tokens": result.numpy(), "feature-map": result.numpy()}
    found: dict[str, Any] = {}
    for key, value in result.items():
        if isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        if isinstance(value, tuple) and key == "feature_maps":
            found |= {f"feature-map{k}": v.numpy() for k, v in enumerate(value)}
        if isinstance(value, Tensor):
            found |= dict.fromkeys(_NAMES.get(key, (key,)), value.numpy())
    return found


def _small(name: str) -> Small:
    return {**OTHERS, **SMALL}[name]


LIBRARY = Transformers
