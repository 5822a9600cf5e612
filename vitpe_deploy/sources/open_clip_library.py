"""What is asked of open_clip: configs, towers made of them, weights put in by its own rules.

A tower is made through open_clip's own class with the other tower as small as it gets, so that the
text tower of a giant costs no vision tower. Nothing is downloaded: a config is one of open_clip's,
a JSON file, or a folder with ``open_clip_config.json`` and weights.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed
from torch import Tensor, nn

from vitpe_deploy.errors import SourceError, UnsupportedError, UsageError
from vitpe_deploy.preprocess import FILTERS, Preprocess
from vitpe_deploy.request import Resolution, closest
from vitpe_deploy.sources.options import python_value
from vitpe_deploy.towers import TEXT, VISION

CONFIG_FILE = "open_clip_config.json"
WEIGHT_FILES = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "model.safetensors",
)
"""Names that open_clip gives the weights beside its config, in its order."""

_HUB = "hf-hub:"
_FOLDER = "local-dir:"
_LEAST_VISION = {"image_size": 1, "patch_size": 1, "width": 1, "head_width": 1, "layers": 1}
_LEAST_TEXT = {"context_length": 1, "vocab_size": 1, "width": 1, "heads": 1, "layers": 1}
_PARTS = ("vision_cfg", "text_cfg")
_FITS = {"shortest": "center-crop", "squash": "squash"}
_OF_BOTH_TOWERS = ("logit_scale", "logit_bias")


@dataclass(frozen=True)
class Library:
    """One config of open_clip with the user's options.

    Attributes:
        name: stem of the files that are written.
        config: ``embed_dim``, ``vision_cfg``, ``text_cfg`` and what open_clip adds to them.
        pixels: what is said about preprocessing, in open_clip's words.
        weights: file beside the config; None for random ones.
    """

    name: str
    config: Mapping[str, Any]
    pixels: Mapping[str, Any]
    weights: Path | None = None

    @classmethod
    def open(cls, name: str, options: Mapping[str, Any]) -> Library:
        """Find a config and check the options.

        Raises:
            UsageError: no such name or option, with the closest.
            SourceError: a config file that cannot be read.
        """
        path = Path(name.removeprefix(_FOLDER)).expanduser()
        own = name.replace("/", "-")
        if name.startswith(_HUB):
            raise UnsupportedError(
                f"MODEL 'open_clip:{name}' would be downloaded",
                hint="Download the repository, and give its folder: open_clip:DIR.",
            )
        is_file = path.suffix == ".json" or path.is_dir()
        if is_file and own not in open_clip.list_models():
            found = _from_files(path)
        else:
            found = _built_in(own)
        return cls(found.name, _with_options(found.config, options), found.pixels, found.weights)

    @property
    def vision(self) -> Mapping[str, Any]:
        """Config of the vision tower."""
        part: Mapping[str, Any] = self.config["vision_cfg"]
        return part

    @property
    def text(self) -> Mapping[str, Any]:
        """Config of the text tower."""
        part: Mapping[str, Any] = self.config["text_cfg"]
        return part

    @property
    def custom_text(self) -> bool:
        """Whether the text tower is a module of its own, and not parts of the whole."""
        return bool(self.config.get("custom_text") or self.text.get("hf_model_name"))

    def make(self, tower: str, *, device: str, size: Resolution | None = None) -> nn.Module:
        """open_clip's model with one tower and the least of the other, in eval mode.

        Args:
            tower: vision or text.
            device: "meta" for a network without data.
            size: ``image_size`` in place of the config's.

        Raises:
            SourceError: open_clip cannot make it.
        """
        parts: dict[str, Any] = {
            "vision_cfg": dict(self.vision) if tower == VISION else _LEAST_VISION,
            "text_cfg": dict(self.text) if tower == TEXT else _LEAST_TEXT,
        }
        if tower == VISION and self.vision.get("timm_model_name"):
            parts["vision_cfg"]["timm_model_pretrained"] = False
        if size is not None:
            parts["vision_cfg"]["image_size"] = (size.height, size.width)
        # The towers of a CoCa are those of CLIP; only its decoder is not made.
        cls = open_clip.CustomTextCLIP if self.custom_text else open_clip.CLIP
        try:
            with quietly(), torch.device(device):
                module: nn.Module = cls(
                    self.config["embed_dim"],
                    quick_gelu=bool(self.config.get("quick_gelu", False)),
                    **parts,
                )
        except Exception as problem:  # assertions, type errors and torch's own errors alike
            raise SourceError(
                f"open_clip cannot make the {tower} tower of {self.name}: {reason_of(problem)}"
            ) from problem
        return module.eval().requires_grad_(False)

    def tower_state(
        self, tower: str, tensors: Mapping[str, Tensor], path: Path
    ) -> dict[str, Tensor]:
        """The tensors of one tower, under the names that the model made here has.

        Raises:
            SourceError: lists names that are missing or unexpected.
        """
        whole = self.make(tower, device="meta")
        given = dict(convert_state_dict(whole, dict(tensors)))
        if "positional_embedding" in given and self.custom_text:
            given = convert_to_custom_text_state_dict(given)
        given = {n: t for n, t in given.items() if of_tower(n, tower)}
        expected = {n for n in whole.state_dict() if of_tower(n, tower)}
        problems = [f"missing {n}" for n in sorted(expected - given.keys())]
        problems += [f"unexpected {n}" for n in sorted(given.keys() - expected)]
        if problems:
            shown = "; ".join(problems[:8])
            shown += f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
            raise SourceError(
                f"--weights {path} does not fit the {tower} tower of {self.name}: {shown}",
                hint="Weights must be of this very model; set --model-kwarg to match them.",
            )
        return given

    def preprocess(self) -> Preprocess:
        """How the published weights of the name want their pixels.

        Raises:
            UnsupportedError: open_clip pads pictures for it.
        """
        said = {k: v for k, v in self.pixels.items() if v is not None}
        fit = str(said.get("resize_mode", "shortest"))
        if fit not in _FITS:
            raise UnsupportedError(
                f"{self.name} wants its pictures resized by resize_mode {fit!r}, which pads them",
                hint=f"Set preprocess_cfg.resize_mode of the config to one of {', '.join(_FITS)}.",
            )
        kernel = str(said.get("interpolation", "bicubic"))
        mean = tuple(float(n) for n in said.get("mean", open_clip.OPENAI_DATASET_MEAN))
        std = tuple(float(n) for n in said.get("std", open_clip.OPENAI_DATASET_STD))
        return Preprocess(
            mean=mean,  # type: ignore[arg-type]  # three numbers, which Preprocess checks
            std=std,  # type: ignore[arg-type]
            interpolation=kernel if kernel in FILTERS else "bicubic",
            fit=_FITS[fit],
        )


def resized(state: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """A state whose table of positions open_clip has resampled for a network."""
    out = dict(state)
    with quietly():
        resize_pos_embed(out, network)
    return out


def reason_of(problem: BaseException, line: int = 0) -> str:
    """The line of an error that says something; torch's own of weights is the second."""
    lines = [line.strip() for line in str(problem).strip().splitlines() if line.strip()]
    return lines[min(line, len(lines) - 1)][:300] if lines else type(problem).__name__


def of_tower(name: str, tower: str) -> bool:
    """Whether a parameter of the whole model belongs to a tower."""
    if name in _OF_BOTH_TOWERS or name.startswith("text_decoder."):
        return False
    return name.startswith("visual.") == (tower == VISION)


def _built_in(name: str) -> Library:
    known = open_clip.list_models()
    if name not in known:
        raise UsageError(
            f"MODEL 'open_clip:{name}': open_clip {open_clip.__version__} has no such config",
            hint=closest(name, known).strip()
            or "python -c 'import open_clip; print(open_clip.list_models())' lists them; "
            "a config of your own is given as a .json file or a folder.",
        )
    return Library(name, dict(open_clip.get_model_config(name) or {}), _published_pixels(name))


def _published_pixels(name: str) -> Mapping[str, Any]:
    """Preprocessing of most of the published weights of a name; open_clip's own without any."""
    keys = ("mean", "std", "interpolation", "resize_mode")
    configs = [
        open_clip.get_pretrained_cfg(name, tag)
        for tag in open_clip.list_pretrained_tags_by_model(name)
    ]
    if not configs:
        return {}
    counted = Counter(json.dumps({k: c.get(k) for k in keys}) for c in configs)
    said: Mapping[str, Any] = json.loads(counted.most_common(1)[0][0])
    return said


def _from_files(path: Path) -> Library:
    """A config file, or a folder as open_clip pushes it to a hub."""
    file = path if path.suffix == ".json" else path / CONFIG_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise SourceError(
            f"{file.name} in {file.parent} cannot be read: {reason_of(problem)}",
            hint=f"Give a config of open_clip (.json), or a folder with {CONFIG_FILE}.",
        ) from problem
    config = content.get("model_cfg", content) if isinstance(content, dict) else {}
    if not {"embed_dim", *_PARTS} <= set(config):
        raise SourceError(
            f"{file.name} in {file.parent} is no config of open_clip",
            hint="It needs embed_dim, vision_cfg and text_cfg, below model_cfg or at the top.",
        )
    folder = path if path.is_dir() else None
    weights = (
        next((folder / n for n in WEIGHT_FILES if (folder / n).is_file()), None)
        if (folder)
        else None
    )
    name = (folder or file.with_suffix("")).resolve().name
    return Library(name, config, content.get("preprocess_cfg") or {}, weights)


def _with_options(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """``vision_cfg.layers=2`` and the like, put into a copy.

    Raises:
        UsageError: a name that open_clip's config does not have.
    """
    made = deepcopy(dict(config))
    classes = {"vision_cfg": open_clip.CLIPVisionCfg, "text_cfg": open_clip.CLIPTextCfg}
    known = ["embed_dim", "quick_gelu"]
    known += [f"{part}.{f.name}" for part, cls in classes.items() for f in fields(cls)]
    for name, given in options.items():
        if name not in known:
            raise UsageError(
                f"--model-kwarg {name} is not in the config of open_clip",
                hint=f"{closest(name, known)}Options are embed_dim, quick_gelu, vision_cfg.NAME "
                "and text_cfg.NAME, with the names of open_clip's configs.",
            )
        part, dot, key = name.partition(".")
        if dot:
            made[part] = {**made[part], key: python_value(key, given)}
        else:
            made[name] = python_value(name, given)
    return made


@contextmanager
def quietly() -> Iterator[None]:
    """open_clip logs through the root logger, which sets itself up to print when nobody did."""
    root, nowhere = logging.getLogger(), logging.NullHandler()
    root.addHandler(nowhere)
    try:
        yield
    finally:
        root.removeHandler(nowhere)
