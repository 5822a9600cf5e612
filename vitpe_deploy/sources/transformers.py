"""``hf:DIR_OR_ID``: Vision Transformers of the transformers library.

Facts come from ``config.json`` alone, so that a size is refused before weights are read: of plain
ViTs without torch, of others by making the library's class without data and looking at it
(transformers_family.py says which is which). The network is run as its class wants it: with
``interpolate_pos_encoding=True`` where that is a choice. Positions are the library's own calls of
``F.interpolate``, found by watching.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitpe_deploy.errors import MissingExtraError, SourceError, UsageError
from vitpe_deploy.pairing import TokenizerFile
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import ModelRequest
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, Source
from vitpe_deploy.sources.transformers_facts import preprocess_of, without_output
from vitpe_deploy.sources.transformers_family import Given, Kind, kind_of

if TYPE_CHECKING:
    from torch import nn


class TransformersSource(Source):
    """A directory written by ``save_pretrained``, or a hub id."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.refuse_unused(pe=request.encoding, pos_embed=request.pos_embed)
        self.location = request.model.removeprefix("hf:")
        if not self.location:
            raise UsageError("MODEL 'hf:' names nothing", hint="Give hf:DIR or hf:OWNER/NAME.")
        self._config: dict[str, Any] | None = None
        self._given: Given | None = None
        self._facts: ModelFacts | None = None

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
            from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
        except ImportError as problem:
            raise MissingExtraError("transformers", "transformers") from problem
        try:
            return Path(hf_hub_download(self.location, name))
        except Exception as problem:
            # Offline it is a kind of "no such entry" too, and says nothing about the model.
            offline = isinstance(problem, LocalEntryNotFoundError)
            if isinstance(problem, EntryNotFoundError) and not offline:
                return None
            reason = str(problem).strip().splitlines() or [type(problem).__name__]
            raise SourceError(
                f"MODEL {self.request.model!r} could not be fetched: {reason[0][:200]}",
                hint="Is the name right and the network reachable? A local folder works offline.",
            ) from problem

    def given(self) -> Given:
        """The model as its files describe it, with the user's values in the config."""
        if self._given is None:
            config = self.config()
            if self.request.kwargs:
                from vitpe_deploy.sources.transformers_library import overridden

                config = overridden(config, self.request.kwargs)
            local = Path(self.location).expanduser().resolve().name
            name = local if self.is_local else self.location
            self._given = Given(
                config, self.request, name.replace("/", "_"), f"hf:{name}", self._preprocess()
            )
        return self._given

    @property
    def _kind(self) -> Kind:
        return kind_of(self.given().model_type, self.given().config)

    def facts(self) -> ModelFacts:
        """Read off the config, or off a network without data."""
        if self._facts is None:
            if not self._kind.towers:
                self.refuse_unused(tower=self.request.tower)
            if not self._kind.reads_text:
                self.refuse_unused(max_length=self.request.max_length)
            self._facts = self._kind.facts(self.given())
        return self._facts

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

    def tokenizer(self) -> TokenizerFile | None:
        """The folder's own, as data."""
        from vitpe_deploy.sources.transformers_tokenizer import read_tokenizer

        location = str(Path(self.location).expanduser()) if self.is_local else self.location
        return read_tokenizer(location, self.given().model_type, self._file, local=self.is_local)

    def load(self) -> LoadedModel:
        """The network with the folder's weights; anything missing is an error."""
        kind, given, facts = self._kind, self.given(), self.facts()
        architecture = kind.architecture(given)
        if self.request.weights is not None:
            from vitpe_deploy.sources.transformers_library import with_weights

            module, origin = with_weights(
                architecture, kind.config(given), self.request.weights, facts.spec
            )
            return kind.model(given, facts, module, origin)
        module, report = self._read(architecture, kind.config(given))
        missing = sorted(report["missing_keys"])
        if missing and all(".pooler." in f".{name}" for name in missing):
            # The checkpoint was saved without a pooler: transformers would draw a random one.
            module, report = self._read(architecture, kind.config(given), add_pooling_layer=False)
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
        return kind.model(given, facts, module, f"from {facts.spec}")

    def outline(self) -> LoadedModel:
        """The library's class made of the config, without weights."""
        from vitpe_deploy.sources.transformers_library import class_of, make

        kind, given = self._kind, self.given()
        module = make(class_of(kind.architecture(given)), kind.config(given))
        return kind.model(given, self.facts(), module, "none")

    def _read(
        self, architecture: str, config: Mapping[str, Any], **more: Any
    ) -> tuple[nn.Module, Mapping[str, Any]]:
        """The network, and the library's report on what did not fit."""
        try:
            import torch
            import transformers
        except ImportError as problem:
            raise MissingExtraError(problem.name or "transformers", "transformers") from problem
        from vitpe_deploy.sources.transformers_library import attention_of, config_object

        cls: Any = getattr(transformers, architecture)
        try:
            with _silenced(transformers.utils.logging):
                module, report = cls.from_pretrained(
                    str(Path(self.location).expanduser()) if self.is_local else self.location,
                    local_files_only=self.is_local,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # listed in the report, with everything else
                    config=config_object(config),
                    attn_implementation=attention_of(cls),
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

    def given(self) -> Given:
        """The module and its own config."""
        name = type(self._module).__name__
        return Given(self._config, self.request, name.lower(), name, module=self._module)

    def facts(self) -> ModelFacts:
        """Read off the module's own config."""
        given = self.given()
        facts = kind_of(given.model_type, given.config).facts(given)
        encoder = getattr(self._module, self._module.base_model_prefix, self._module)
        has_pooler = getattr(encoder, "pooler", True) is not None
        return facts if has_pooler else without_output(facts, "pooled")

    def load(self) -> LoadedModel:
        """The module itself; it is copied, never changed or run."""
        from vitpe_deploy.sources.inspection import detached

        given = self.given()
        module = detached(self._module)
        return kind_of(given.model_type, given.config).model(
            given, self.facts(), module, "of the module"
        )


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


def _read_json(path: Path | None) -> dict[str, Any] | None:
    if path is None or not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as problem:
        raise SourceError(f"{path.name} in {path.parent} is not valid JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise SourceError(f"{path.name} in {path.parent} is not a JSON object")
    return content


SOURCE = TransformersSource
