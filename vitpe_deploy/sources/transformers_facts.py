"""What ``config.json`` and ``preprocessor_config.json`` say about plain ViTs of transformers.

Read without torch and without the library, so that what cannot be exported is refused at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vitpe_deploy.errors import SourceError, UnsupportedError
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import ModelFacts, SizeRule


@dataclass(frozen=True, slots=True)
class PlainFamily:
    """What distinguishes one ``model_type`` of plain ViTs.

    Attributes:
        classes: architectures that can be loaded; the first is the bare encoder.
        prefix_tokens: cls, distillation.
        registers: whether the config adds register tokens to them.
        interpolate_flag: whether forward takes ``interpolate_pos_encoding``.
    """

    classes: tuple[str, ...]
    prefix_tokens: int
    interpolate_flag: bool
    registers: bool = False


PLAIN_FAMILIES: Mapping[str, PlainFamily] = {
    "vit": PlainFamily(("ViTModel", "ViTForImageClassification"), 1, True),
    "deit": PlainFamily(
        ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
        2,
        True,
    ),
    "dinov2": PlainFamily(("Dinov2Model", "Dinov2ForImageClassification"), 1, False),
    "dinov2_with_registers": PlainFamily(
        ("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
        1,
        False,
        registers=True,
    ),
}

_PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


_BY_SHORTER_SIDE = (
    "CLIP",
    "ChineseCLIP",
    "Convnext",
    "ConvNext",
    "Levit",
    "MobileViT",
    "PoolFormer",
)
"""Processors for which a ``size`` of one number is the shorter side."""

_SQUASHED_FROM = 384


def named_architecture(config: Mapping[str, Any]) -> str:
    """The class that a config says it was saved from, or nothing."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def class_among(module: object, classes: tuple[str, ...]) -> str | None:
    """The supported class that a module is, or is derived from."""
    return next((c.__name__ for c in type(module).__mro__ if c.__name__ in classes), None)


def architecture_of(config: Mapping[str, Any], named: str) -> str:
    """The class to load: the named one when it is supported, else the bare encoder."""
    classes = PLAIN_FAMILIES[str(config.get("model_type"))].classes
    return named if named in classes else classes[0]


def config_facts(
    config: Mapping[str, Any], architecture: str, *, name: str, spec: str, preprocess: Preprocess
) -> ModelFacts:
    """What a ``config.json`` says about a network of a supported family."""
    family = PLAIN_FAMILIES[str(config.get("model_type"))]
    patch, size = _pair(config, "patch_size", 16), _pair(config, "image_size", 224)
    native = Resolution(*size)
    classifies = "ForImageClassification" in architecture
    registers = _count(config, "num_register_tokens", 4) if family.registers else 0
    pooled = () if classifies else ("pooled",)
    rule = _size_rule(config, family, native, patch, spec)
    return ModelFacts(
        name=name,
        spec=spec,
        native=native,
        size_rule=rule,
        no_dynamic=rule.fixed_reason,
        grid_divisor=patch,
        encoding="learned-1d",
        encoding_params={},
        prefix_tokens=family.prefix_tokens + registers,
        outputs=(("logits",) if classifies else ()) + (*pooled, "cls", "tokens", "feature-map"),
        default_outputs=("logits",) if classifies else ("tokens", *pooled),
        depth=_count(config, "num_hidden_layers", 12),
        input=ImageInput(_count(config, "num_channels", 3)),
        preprocess=preprocess,
        labels=labels_of(config) if classifies else (),
    )


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the classes in the order of the logits; the library's placeholders are none."""
    names = config.get("id2label")
    if not isinstance(names, Mapping):
        return ()
    by_number = {int(k): str(v) for k, v in names.items() if str(k).isdigit()}
    if sorted(by_number) != list(range(len(by_number))):
        return ()
    if all(v == f"LABEL_{k}" for k, v in by_number.items()):
        return ()
    return tuple(by_number[k] for k in range(len(by_number)))


def _size_rule(
    config: Mapping[str, Any],
    family: PlainFamily,
    native: Resolution,
    patch: tuple[int, int],
    spec: str,
) -> SizeRule:
    """Which sizes the library runs rightly: it resamples square grids only.

    Raises:
        UnsupportedError: the class resamples at its native size already, and wrongly.
    """
    grid = (native.height // patch[0], native.width // patch[1])
    if grid[0] != grid[1]:
        reason = (
            f"transformers reads the positions of {config.get('model_type')} as a square grid, "
            f"and those of {spec} are {grid[0]}x{grid[1]}"
        )
    elif family.interpolate_flag and not isinstance(config.get("patch_size", 16), int):
        reason = f"transformers cannot resample positions when patch_size is a list, as in {spec}"
    else:
        return SizeRule.for_patches(patch, "floors")
    if not family.interpolate_flag:
        raise UnsupportedError(reason, hint="No size of it can be exported.")
    return SizeRule.for_patches(patch, "floors", fixed=native, fixed_reason=reason)


def preprocess_of(config: Mapping[str, Any]) -> Preprocess:
    """What a ``preprocessor_config.json`` says, in either of its generations.

    Raises:
        TypeError: a value of the wrong kind.
        ValueError: text in place of a number.
        UsageError: numbers that make no sense.
    """
    default = Preprocess()
    fit, crop = _fit(config)
    normalises = config.get("do_normalize", True)
    mean = tuple(config.get("image_mean") or default.mean) if normalises else (0.0, 0.0, 0.0)
    std = tuple(config.get("image_std") or default.std) if normalises else (1.0, 1.0, 1.0)
    filtered = config.get("resample")
    rescales = config.get("do_rescale", True)
    return Preprocess(
        mean=mean * 3 if len(mean) == 1 else mean,
        std=std * 3 if len(std) == 1 else std,
        interpolation=_PIL_FILTERS.get(3 if filtered is None else int(filtered), "bicubic"),
        crop=crop,
        fit=fit,
        scale=float(config.get("rescale_factor", default.scale)) if rescales else 1.0,
    )


def _fit(config: Mapping[str, Any]) -> tuple[str, float]:
    """How a processor brings a picture to the input, and the share of the side that it keeps.

    A ``size`` of older files is one number, which processors read differently: most as height and
    width, those of CLIP's kind as the shorter side.
    """
    size = config.get("size")
    named = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    if config.get("do_resize") is False or size is None:
        return Preprocess().fit, 1.0
    if isinstance(size, Mapping) and size.get("longest_edge") and not size.get("shortest_edge"):
        return ("pad", 1.0) if config.get("do_pad") else ("squash", 1.0)
    shorter = (
        bool(size.get("shortest_edge"))
        if isinstance(size, Mapping)
        else named.startswith(_BY_SHORTER_SIDE)
    )
    edge, cut = _edge(size), _edge(config.get("crop_size"))
    if config.get("crop_pct") and shorter:  # ConvNeXt's: cropped below 384 pixels, squashed above
        small = edge is not None and edge < _SQUASHED_FROM
        return ("center-crop", float(config["crop_pct"])) if small else ("squash", 1.0)
    crop = min(cut / edge, 1.0) if config.get("do_center_crop") and cut and edge else 1.0
    return ("center-crop" if shorter else "squash"), crop


def _edge(value: Any) -> float | None:
    """The side in pixels that a ``size`` means: a number, or a mapping of newer files."""
    if isinstance(value, Mapping):
        value = value.get("shortest_edge") or value.get("height")
    return None if value is None else float(value)


def _pair(config: Mapping[str, Any], key: str, default: int) -> tuple[int, int]:
    value = config.get(key, default)
    pair = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise SourceError(f"config.json says {key} = {value!r}, which is not a size")
    return pair[0], pair[1]


def _count(config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key, default)
    if not isinstance(value, int) or value < 0:
        raise SourceError(f"config.json says {key} = {value!r}, which is not a number")
    return value


def without_output(facts: ModelFacts, output: str) -> ModelFacts:
    """The same network without one of its outputs."""
    return replace(
        facts,
        outputs=tuple(n for n in facts.outputs if n != output),
        default_outputs=tuple(n for n in facts.default_outputs if n != output),
    )
