"""``py:module:callable``: whatever network a function or class of the user's own code builds.

The module is looked up as Python does it, and in the current folder, which a console script does
not search by itself. The callable gets the options of ``--model-kwarg`` and gives an ``nn.Module``
that takes pixel values [B, C, H, W]; the rest is :mod:`vitpe_deploy.sources.module`. A network that
runs at one size only is built again for another one when the callable takes ``img_size``,
``image_size`` or ``input_size``: :mod:`vitpe_deploy.sources.rebuilt`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitpe_deploy.errors import MissingExtraError, UnsupportedError, UsageError
from vitpe_deploy.request import ModelRequest, Resolution, closest
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, Source
from vitpe_deploy.sources.options import python_value

if TYPE_CHECKING:
    from torch import nn

    from vitpe_deploy.sources.module import ModuleSource
    from vitpe_deploy.sources.module_sizes import ModuleSizes
    from vitpe_deploy.sources.rebuilt import Rebuild

PREFIX = "py:"


class PythonSource(Source):
    """A callable that builds a network."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.refuse_unused(pe=request.encoding, tower=request.tower, max_length=request.max_length)
        where, colon, name = request.model.removeprefix(PREFIX).partition(":")
        if not colon or not where or not name:
            raise UsageError(
                f"MODEL {request.model!r} is not py:module:callable",
                hint="For example py:mymodule:build, with mymodule.py in the current folder.",
            )
        try:
            import torch  # noqa: F401  asked for before the user's code asks for it
        except ImportError as problem:
            raise MissingExtraError("torch", "export") from problem
        self._callable = _attribute(_module(where, request.model), name, request.model)
        self._name = f"{where.rpartition('.')[2]}-{name.rpartition('.')[2]}"
        self._options = {k: python_value(k, v) for k, v in request.kwargs.items()}
        self._inner: ModuleSource | None = None
        self._built_with: dict[str, Any] = {}
        self._found: ModuleSizes | None = None
        self._rebuild: Rebuild | None = None

    def facts(self) -> ModelFacts:
        """Of the network that the callable builds, before any weight file is read."""
        from vitpe_deploy.sources.module import module_facts

        source = self._open()
        sizes = self._sizes()
        return module_facts(source.module, sizes, name=self._name, spec=self.request.model)

    def load(self) -> LoadedModel:
        """Seeded random weights, or those of ``--weights``."""
        source = self._open()
        self._sizes()
        loaded = source.load() if self._rebuild is None else self._rebuilt(source, self._rebuild)
        loaded.facts = self.facts()
        if self.request.weights is None:
            loaded.weights = f"of {self.request.model}, seed {self.request.seed}"
        return loaded

    def _rebuilt(self, source: ModuleSource, rebuild: Rebuild) -> LoadedModel:
        from vitpe_deploy.sources.rebuilt import RebuiltModel

        module, origin = source.weighted()
        resample = self.request.resample
        return RebuiltModel(self.facts(), module, origin, resample, self._sizes(), rebuild)

    def _sizes(self) -> ModuleSizes:
        """Sizes of the network by itself, or of those that the callable builds."""
        if self._found is None:
            source = self._open()
            try:
                self._found = source.sizes()
                alone = self._found.rule.fixed is not None
            except UnsupportedError:
                # Which tensors belong to a size shows when the callable builds another one.
                option = self._size_option()
                if option is None or self.request.pos_embed is not None:
                    raise
                self._found, alone = None, True
            found = self._by_rebuilding(source.module) if alone else None
            if found is None and self._found is None:
                self._found = source.sizes()  # raises again
            self._found = found or self._found
        assert self._found is not None
        return self._found

    def _by_rebuilding(self, module: nn.Module) -> ModuleSizes | None:
        """Sizes that the callable can build the network for; None when it takes no size."""
        from vitpe_deploy.sources.inspection import patch_convolution
        from vitpe_deploy.sources.module_sizes import stated_size
        from vitpe_deploy.sources.rebuilt import rebuild_of

        option = self._size_option()
        native = self._default_size(option) or stated_size(module)
        convolution = patch_convolution(module)
        if option is None or native is None or convolution is None:
            return None
        as_pair = isinstance(self._default(option), (tuple, list))

        def make(size: Resolution) -> nn.Module:
            square = size.height == size.width and not as_pair
            value = size.height if square else (size.height, size.width)
            return self._build({**self._built_with, option: value})

        rebuild = rebuild_of(module, make, option, native)
        found = None if rebuild is None else rebuild.sizes(module, int(convolution.in_channels))
        self._rebuild = None if found is None else rebuild
        return found

    def _size_option(self) -> str | None:
        """The argument by which the callable is told the size; None where the user gave it."""
        from vitpe_deploy.sources.rebuilt import SIZE_OPTIONS

        known = _parameters(self._callable)
        return next((n for n in SIZE_OPTIONS if n in known and n not in self._options), None)

    def _default(self, option: str | None) -> Any:
        return (
            None if option is None else inspect.signature(self._callable).parameters[option].default
        )

    def _default_size(self, option: str | None) -> Resolution | None:
        """The size that the callable builds by itself."""
        value = self._default(option)
        if isinstance(value, int) and value > 0:
            return Resolution(value, value)
        pair = isinstance(value, (tuple, list)) and len(value) == 2
        return Resolution(*value) if pair and all(isinstance(n, int) for n in value) else None

    def _open(self) -> ModuleSource:
        from vitpe_deploy.sources.module import ModuleSource

        if self._inner is None:
            options = dict(self._options)
            if self.request.weights is not None:
                options |= self._class_count(options)
            self._built_with = options
            self._inner = ModuleSource(self._build(options), self.request, None)
        return self._inner

    def _class_count(self, options: dict[str, Any]) -> dict[str, Any]:
        """``num_classes`` of the weight file, when the callable takes it and nobody said it."""
        if "num_classes" in options or "num_classes" not in _parameters(self._callable):
            return {}
        from vitpe_deploy.sources.weights import class_count, read_state_dict

        path = self.request.weights
        assert path is not None
        count = class_count(read_state_dict(path).tensors, self._build(options))
        return {} if count is None else {"num_classes": count}

    def _build(self, options: dict[str, Any]) -> nn.Module:
        import torch
        from torch import nn

        model = self.request.model
        known = _parameters(self._callable)
        unknown = [n for n in options if known and n not in known and "**" not in known]
        if unknown:
            raise UsageError(
                f"--model-kwarg {unknown[0]} is not an argument of {model}",
                hint=f"{closest(unknown[0], known)}Choose from: {', '.join(known) or 'none'}.",
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.request.seed)
            try:
                built = self._callable(**options)
            except Exception as problem:
                raise UsageError(
                    f"{model} does not build a network: {_reason(problem)}",
                    hint="Its arguments are given with --model-kwarg KEY=VALUE.",
                ) from problem
        if not isinstance(built, nn.Module):
            raise UsageError(
                f"{model} gives {type(built).__name__}, not a torch.nn.Module",
                hint="The callable has to build the network and return it.",
            )
        return built.eval()


def _module(name: str, model: str) -> Any:
    """Import a module; the current folder is searched when nothing else has it."""
    here = str(Path.cwd())
    try:
        if _missing(name) and here not in sys.path:
            sys.path.insert(0, here)
            importlib.invalidate_caches()
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        missing = str(problem.name)
        own = name == missing or name.startswith(f"{missing}.")
        raise UsageError(
            f"MODEL {model!r}: there is no module {missing!r}"
            if own
            else f"MODEL {model!r}: {name} needs {missing!r}, which is not installed",
            hint="Modules are looked up in the current folder and on PYTHONPATH."
            if own
            else f"Install {missing}.",
        ) from problem
    except Exception as problem:
        raise UsageError(
            f"MODEL {model!r}: importing {name} fails: {_reason(problem)}",
            hint=f'python -c "import {name}" shows the whole traceback.',
        ) from problem


def _missing(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError, AttributeError):
        return True


def _attribute(module: Any, name: str, model: str) -> Callable[..., Any]:
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n in dir(found) if not n.startswith("_") and callable(getattr(found, n))]
            raise UsageError(
                f"MODEL {model!r}: {getattr(found, '__name__', found)} has no {part!r}",
                hint=f"{closest(part, known)}It has: {', '.join(known[:12]) or 'no callables'}.",
            )
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(
            f"MODEL {model!r}: {name} is {type(found).__name__}, which cannot be called",
            hint="Name a function or a class that builds the network.",
        )
    return found  # type: ignore[no-any-return]


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names of arguments; ``**`` stands for any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ["**"]
    return ["**" if p.kind is p.VAR_KEYWORD else p.name for p in parameters]


def _reason(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).strip().splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0][:200]}" if lines else type(problem).__name__


SOURCE = PythonSource
