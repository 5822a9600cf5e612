"""``hf:DIR_OR_ID``: Vision Transformers of the transformers library.

Facts come from ``config.json`` alone, so that a size is refused before weights are read. The
network is run as its class wants it: with ``interpolate_pos_encoding=True`` where that is a
choice. Positions are the library's own calls of ``F.interpolate``, found by watching.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitpe_deploy.errors import MissingExtraError, SourceError, UsageError
from vitpe_deploy.images import Preprocess
from vitpe_deploy.request import ModelRequest
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, Source
from vitpe_deploy.sources.transformers_facts import (
    architecture_of,
    class_among,
    config_facts,
    family_of,
    named_architecture,
    preprocess_of,
    without_output,
)

if TYPE_CHECKING:
    from torch import nn

_PLAIN_OUTPUTS = {"return_dict": True, "output_attentions": False, "output_hidden_states": False}
"""A config may ask for more; it would change what the class returns and how it attends."""


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
        named = named_architecture(config)
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
        try:
            return preprocess_of(config)
        except (TypeError, ValueError, ZeroDivisionError, UsageError) as problem:
            raise SourceError(
                f"preprocessor_config.json in {self.location} cannot be read: {problem}"
            ) from problem

    def load(self) -> LoadedModel:
        """The network with the folder's weights; anything missing is an error."""
        config, facts = self.config(), self.facts()
        named = named_architecture(config)
        architecture = architecture_of(config, named, self.request.model)
        module, report = self._read(architecture)
        missing = sorted(report["missing_keys"])
        if missing and all(".pooler." in f".{name}" for name in missing):
            # The checkpoint was saved without a pooler: transformers would draw a random one.
            module, report = self._read(architecture, add_pooling_layer=False)
            missing = sorted(report["missing_keys"])
            facts = without_output(facts, "pooled")
        problems = [f"missing {n}" for n in missing]
        problems += [f"unexpected {n}" for n in sorted(report["unexpected_keys"])]
        problems += sorted(_other_shape(key) for key in report["mismatched_keys"])
        if problems:
            shown = "; ".join(problems[:8])
            shown += f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
            raise SourceError(
                f"the weights in {self.location} do not fit {architecture}: {shown}",
                hint="config.json and the weights must be of one model, saved by save_pretrained.",
            )
        return _wrap(facts, module, f"from {facts.spec}", self.request, config)

    def _read(self, architecture: str, **more: Any) -> tuple[nn.Module, Mapping[str, Any]]:
        """The network, and the library's report on what did not fit."""
        try:
            import torch
            import transformers
        except ImportError as problem:
            raise MissingExtraError(problem.name or "transformers", "transformers") from problem
        cls: Any = getattr(transformers, architecture)
        try:
            with _silenced(transformers.utils.logging):
                module, report = cls.from_pretrained(
                    str(Path(self.location).expanduser()) if self.is_local else self.location,
                    local_files_only=self.is_local,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # listed in the report, with everything else
                    attn_implementation="sdpa",
                    **_PLAIN_OUTPUTS,
                    **more,
                )
        except Exception as problem:  # torch's, safetensors' and the library's own errors
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            raise SourceError(
                f"MODEL {self.request.model!r} cannot be loaded: {lines[0][:300]}",
                hint="Are config.json and the weight files complete and undamaged?",
            ) from problem
        return module.to(torch.float32), report


class TransformersModuleSource(Source):
    """A transformers network that was built in Python."""

    anonymous: ClassVar[bool] = True

    def __init__(self, module: nn.Module, request: ModelRequest) -> None:
        super().__init__(request)
        self._module: Any = module
        config: Any = module.config
        self._config: dict[str, Any] = config.to_dict()

    def facts(self) -> ModelFacts:
        """Read off the module's own config."""
        name = type(self._module).__name__
        known = class_among(self._module, family_of(self._config, name).classes)
        facts = config_facts(
            self._config,
            architecture_of(self._config, known or name, name),
            name=name.lower(),
            spec=name,
            preprocess=Preprocess(),
        )
        encoder = getattr(self._module, self._module.base_model_prefix, self._module)
        has_pooler = getattr(encoder, "pooler", True) is not None
        return facts if has_pooler else without_output(facts, "pooled")

    def load(self) -> LoadedModel:
        """The module itself; it is copied, never changed or run."""
        from vitpe_deploy.sources.inspection import detached

        module = detached(self._module)
        return _wrap(self.facts(), module, "of the module", self.request, self._config)


def _other_shape(key: str | tuple[str, Sequence[int], Sequence[int]]) -> str:
    """One mismatch in words; transformers 4 gives the name alone, 5 both shapes too."""
    if isinstance(key, str):
        return f"{key} has another shape"
    name, given, wanted = key
    return f"{name} is {list(given)}, the model has {list(wanted)}"


@contextmanager
def _silenced(logging: Any) -> Iterator[None]:
    """No warnings and bars of the library inside; its settings are the user's afterwards."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


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
        interpolate_flag=family_of(config, facts.spec).interpolate_flag
        and facts.size_rule.fixed is None,
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


SOURCE = TransformersSource
