"""``hf:DIR_OR_ID``: Vision Transformers of the transformers library.

Facts come from ``config.json`` alone, so that a size is refused before weights are read. The
network is run as its class wants it: with ``interpolate_pos_encoding=True`` where that is a
choice. Positions are the library's own calls of ``F.interpolate``, found by watching.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitpe_deploy.errors import MissingExtraError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.images import Preprocess
from vitpe_deploy.request import ModelRequest, Resolution, closest
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, SizeRule, Source

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Family:
    """What distinguishes one ``model_type``.

    Attributes:
        classes: architectures that can be loaded; the first is the bare encoder.
        prefix_tokens: cls, distillation; registers are added from the config.
        interpolate_flag: whether forward takes ``interpolate_pos_encoding``.
        pooler: whether the bare encoder has a ``pooler_output``.
    """

    classes: tuple[str, ...]
    prefix_tokens: int
    interpolate_flag: bool
    pooler: bool = True


FAMILIES: Mapping[str, Family] = {
    "vit": Family(("ViTModel", "ViTForImageClassification"), 1, True),
    "deit": Family(
        ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
        2,
        True,
    ),
    "dinov2": Family(("Dinov2Model", "Dinov2ForImageClassification"), 1, False),
    "dinov2_with_registers": Family(
        ("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"), 1, False
    ),
}

_PIL_FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}


class TransformersSource(Source):
    """A directory written by ``save_pretrained``, or a hub id."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.refuse_unused(
            pe=request.encoding,
            tower=request.tower,
            pos_embed=request.pos_embed,
            weights=request.weights,
            model_kwarg=dict(request.kwargs),
        )
        self.location = request.model.removeprefix("hf:")
        if not self.location:
            raise UsageError("MODEL 'hf:' names nothing", hint="Give hf:DIR or hf:OWNER/NAME.")
        self._config: dict[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        """Whether the location is a folder; only otherwise may the network be used."""
        path = Path(self.location)
        return path.is_dir() or path.is_absolute() or self.location.startswith((".", "~"))

    def config(self) -> dict[str, Any]:
        """``config.json`` as it is."""
        if self._config is None:
            found = _read_json(self._file("config.json"))
            if found is None:
                raise SourceError(
                    f"MODEL {self.request.model!r}: there is no config.json in {self.location}",
                    hint="Give a folder written by save_pretrained, or a hub id OWNER/NAME.",
                )
            self._config = found
        return self._config

    def _file(self, name: str) -> Path | None:
        """A local path of one file of the model, or None when the model has no such file."""
        if self.is_local:
            return Path(self.location).expanduser() / name
        try:
            from huggingface_hub import hf_hub_download
            from huggingface_hub.errors import EntryNotFoundError
        except ImportError as problem:
            raise MissingExtraError("transformers", "transformers") from problem
        try:
            return Path(hf_hub_download(self.location, name))
        except EntryNotFoundError:
            return None
        except Exception as problem:
            reason = str(problem).strip().splitlines() or [type(problem).__name__]
            raise SourceError(
                f"MODEL {self.request.model!r} could not be fetched: {reason[0][:200]}",
                hint="Is the name right and the network reachable? A local folder works offline.",
            ) from problem

    def facts(self) -> ModelFacts:
        """Read off the config; no torch."""
        config = self.config()
        named = (config.get("architectures") or [""])[0]
        name = Path(self.location).expanduser().resolve().name if self.is_local else self.location
        return config_facts(
            config,
            architecture_of(config, named, self.request.model),
            name=name.replace("/", "_"),
            spec=f"hf:{name}",
            preprocess=self._preprocess(),
        )

    def _preprocess(self) -> Preprocess:
        """From ``preprocessor_config.json`` when the model has one."""
        config = _read_json(self._file("preprocessor_config.json"))
        if config is None:
            return Preprocess()
        default = Preprocess()
        crop, size = config.get("crop_size"), config.get("size")
        fraction = 1.0
        if config.get("do_center_crop") and isinstance(crop, dict) and isinstance(size, dict):
            edge = size.get("shortest_edge") or size.get("height")
            fraction = float(crop.get("height", edge)) / float(edge) if edge else 1.0
        return Preprocess(
            mean=tuple(config.get("image_mean") or default.mean),
            std=tuple(config.get("image_std") or default.std),
            interpolation=_PIL_FILTERS.get(int(config.get("resample", 3)), "bicubic"),
            crop=min(fraction, 1.0),
        )

    def load(self) -> LoadedModel:
        """The network with the folder's weights; anything missing is an error."""
        try:
            import torch
            import transformers
        except ImportError as problem:
            raise MissingExtraError(problem.name or "transformers", "transformers") from problem
        config = self.config()
        named = (config.get("architectures") or [""])[0]
        architecture = architecture_of(config, named, self.request.model)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        cls: Any = getattr(transformers, architecture)
        options: dict[str, Any] = {"local_files_only": True} if self.is_local else {}
        location = str(Path(self.location).expanduser()) if self.is_local else self.location

        def read(**more: Any) -> tuple[nn.Module, Mapping[str, Any]]:
            try:
                module, report = cls.from_pretrained(
                    location,
                    output_loading_info=True,
                    attn_implementation="sdpa",
                    use_safetensors=None,
                    **options,
                    **more,
                )
            except (OSError, ValueError, RuntimeError, KeyError) as problem:
                lines = str(problem).strip().splitlines() or [type(problem).__name__]
                raise SourceError(
                    f"MODEL {self.request.model!r} cannot be loaded: {lines[0][:300]}"
                ) from problem
            return module.to(torch.float32), report

        module, report = read()
        facts = self.facts()
        missing = sorted(report["missing_keys"])
        if missing and all(".pooler." in f".{name}" for name in missing):
            # The checkpoint was saved without a pooler: transformers would draw a random one.
            module, report = read(add_pooling_layer=False)
            missing = sorted(report["missing_keys"])
            facts = _without(facts, "pooled")
        problems = [f"missing {n}" for n in missing]
        problems += [f"unexpected {n}" for n in sorted(report["unexpected_keys"])]
        problems += [f"wrong shape {n[0]}" for n in report.get("mismatched_keys", ())]
        if problems:
            shown = "; ".join(problems[:8])
            raise SourceError(
                f"the weights in {self.location} do not fit {architecture}: {shown}"
                + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
            )
        return _wrap(facts, module, f"from {facts.spec}", self.request, config)


class TransformersModuleSource(Source):
    """A transformers network that was built in Python."""

    anonymous: ClassVar[bool] = True

    def __init__(self, module: nn.Module, request: ModelRequest) -> None:
        super().__init__(request)
        self._module: Any = module
        self._config: dict[str, Any] = self._module.config.to_dict()

    def facts(self) -> ModelFacts:
        """Read off the module's own config."""
        name = type(self._module).__name__
        facts = config_facts(
            self._config,
            architecture_of(self._config, name, name),
            name=name.lower(),
            spec=name,
            preprocess=Preprocess(),
        )
        encoder = getattr(self._module, self._module.base_model_prefix, self._module)
        return facts if getattr(encoder, "pooler", True) is not None else _without(facts, "pooled")

    def load(self) -> LoadedModel:
        """The module itself; it is copied, never changed or run."""
        return _wrap(self.facts(), self._module, "of the module", self.request, self._config)


def family_of(config: Mapping[str, Any], model: str) -> Family:
    """The family of a config's ``model_type``.

    Raises:
        UnsupportedError: not a family that is known to export right.
    """
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise UnsupportedError(
            f"MODEL {model!r} is of type {kind!r}, which is not supported",
            hint=f"{closest(kind, FAMILIES)}Supported: {', '.join(FAMILIES)}.",
        )
    return FAMILIES[kind]


def architecture_of(config: Mapping[str, Any], named: str, model: str) -> str:
    """The class to load: the named one when it is supported, else the bare encoder."""
    classes = family_of(config, model).classes
    return named if named in classes else classes[0]


def config_facts(
    config: Mapping[str, Any], architecture: str, *, name: str, spec: str, preprocess: Preprocess
) -> ModelFacts:
    """What a ``config.json`` says about a network of a supported family."""
    family = family_of(config, spec)
    patch, size = _pair(config, "patch_size", 16), _pair(config, "image_size", 224)
    classifies = "ForImageClassification" in architecture
    pooled = () if classifies or not family.pooler else ("pooled",)
    return ModelFacts(
        name=name,
        spec=spec,
        native=Resolution(*size),
        size_rule=SizeRule(
            patch,
            f"patch size {patch[0]}" if patch[0] == patch[1] else f"patch size {patch}",
            remainder="floors",
        ),
        grid_divisor=patch,
        encoding="learned-1d",
        encoding_params={},
        prefix_tokens=family.prefix_tokens + int(config.get("num_register_tokens") or 0),
        outputs=(("logits",) if classifies else ()) + (*pooled, "cls", "tokens", "feature-map"),
        default_outputs=("logits",) if classifies else ("tokens", *pooled),
        depth=int(config.get("num_hidden_layers", 12)),
        channels=int(config.get("num_channels", 3)),
        preprocess=preprocess,
    )


def _wrap(
    facts: ModelFacts,
    module: nn.Module,
    weights: str,
    request: ModelRequest,
    config: Mapping[str, Any],
) -> LoadedModel:
    from vitpe_deploy.sources.transformers_model import TransformersModel

    return TransformersModel(
        facts,
        module,
        weights,
        request.resample,
        interpolate_flag=family_of(config, facts.spec).interpolate_flag,
    )


def _read_json(path: Path | None) -> dict[str, Any] | None:
    if path is None or not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as problem:
        raise SourceError(f"{path.name} in {path.parent} is not valid JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise SourceError(f"{path.name} in {path.parent} is not a JSON object")
    return content


def _pair(config: Mapping[str, Any], key: str, default: int) -> tuple[int, int]:
    value = config.get(key, default)
    pair = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise SourceError(f"config.json says {key} = {value!r}, which is not a size")
    return pair[0], pair[1]


def _without(facts: ModelFacts, output: str) -> ModelFacts:
    return replace(
        facts,
        outputs=tuple(n for n in facts.outputs if n != output),
        default_outputs=tuple(n for n in facts.default_outputs if n != output),
    )


SOURCE = TransformersSource
