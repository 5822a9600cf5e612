"""``torchvision:NAME``: Vision Transformers of torchvision, made by its own registry.

Weights are random, or those of ``--weights``: nothing is downloaded. What the published weights say
about pixels and class names is known without them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from vitpe_deploy.errors import MissingExtraError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.preprocess import FILTERS, Preprocess
from vitpe_deploy.request import ModelRequest, Resolution, closest
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, Source
from vitpe_deploy.sources.options import python_value

if TYPE_CHECKING:
    from torch import nn

    from vitpe_deploy.sources.torchvision_model import Family

PREFIX = "torchvision:"
_FRAMES = "frames"
"""Not of torchvision: how many frames the clips of an exported file have."""


class TorchvisionSource(Source):
    """A name of torchvision's registry."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.refuse_unused(
            pe=request.encoding,
            tower=request.tower,
            pos_embed=request.pos_embed,
            max_length=request.max_length,
        )
        self._name = request.model.removeprefix(PREFIX)
        try:
            from torchvision import models
        except ImportError as problem:
            raise MissingExtraError(problem.name or "torchvision", "torchvision") from problem
        known = models.list_models()
        if self._name not in known:
            raise UsageError(
                f"MODEL {request.model!r}: torchvision has no model {self._name!r}",
                hint=closest(self._name, known).strip()
                or "python -c 'import torchvision; print(torchvision.models.list_models())' "
                "lists them.",
            )
        self._options = {k: python_value(k, v) for k, v in request.kwargs.items()}
        self._frames = self._options.pop(_FRAMES, None)
        self._known: tuple[Family, ModelFacts] | None = None

    def facts(self) -> ModelFacts:
        """Found on a network without data."""
        return self._look(self._options)[1]

    def _look(self, options: dict[str, Any]) -> tuple[Family, ModelFacts]:
        from vitpe_deploy.inputs import VideoInput
        from vitpe_deploy.sources.torchvision_model import (
            FRAMES,
            block_paths,
            family_of,
            output_names,
        )

        if self._known is not None and options == self._options:
            return self._known
        probe = self._create(options, device="meta")
        crop, preprocess, labels = self._published()
        family = family_of(probe, crop, int(self._frames or FRAMES))
        if family is None:
            raise UnsupportedError(
                f"torchvision's {self._name} is a {type(probe).__name__}, not a Vision Transformer",
                hint="Choose a vit_*, swin_*, swin_v2_*, swin3d_* or maxvit_* model.",
            )
        if self._frames is not None and not isinstance(family.layout, VideoInput):
            raise UsageError(
                f"--model-kwarg {_FRAMES} has no meaning for {self.request.model}, "
                "which takes pictures",
                hint="Leave it out.",
            )
        classes = _classes(probe)
        facts = ModelFacts(
            name=self._name,
            spec=self.request.model,
            native=family.native,
            size_rule=family.rule,
            grid_divisor=family.divisor,
            encoding=family.encoding,
            encoding_params={},
            prefix_tokens=family.prefix,
            outputs=output_names(family),
            default_outputs=("logits",),
            depth=len(block_paths(probe)),
            input=family.layout,
            preprocess=preprocess,
            labels=labels if len(labels) == classes else (),
            no_dynamic=family.no_dynamic,
        )
        if options == self._options:
            self._known = family, facts
        return family, facts

    def load(self) -> LoadedModel:
        """Seeded random weights of the native size, or those of ``--weights``."""
        import torch

        from vitpe_deploy.sources.torchvision_model import TorchvisionModel
        from vitpe_deploy.sources.weights import class_count, load_checkpoint, read_state_dict

        self._look(self._options)
        options, path = dict(self._options), self.request.weights
        if path is not None and "num_classes" not in options:
            probe = self._create(options, device="meta")
            count = class_count(read_state_dict(path).tensors, probe)
            options |= {} if count is None else {"num_classes": count}
        family, facts = self._look(options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.request.seed)
            module = self._create(options)
        origin = f"random, seed {self.request.seed}"
        if path is not None:
            origin = load_checkpoint(module, path)
            if options != self._options:
                origin += f", {options['num_classes']} classes"

        def create(size: Resolution) -> nn.Module:
            return self._create({**options, **family.option(size)}, device="meta")

        return TorchvisionModel(
            facts, module, origin, self.request.resample, family=family, create=create
        )

    def _create(self, options: dict[str, Any], *, device: str = "cpu") -> nn.Module:
        """The network as torchvision makes it, in eval mode.

        Raises:
            UsageError: an option that the class does not take.
            SourceError: torchvision cannot make it.
        """
        import torch
        from torchvision import models

        try:
            with torch.device(device):
                module: nn.Module = models.get_model(self._name, **options)
        except Exception as problem:  # assertions, type errors and torch's own errors alike
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            named = next((k for k in options if f"'{k}'" in lines[0]), None)
            if isinstance(problem, TypeError) and named is not None:
                raise UsageError(
                    f"--model-kwarg {named} is not an option of torchvision's {self._name}",
                    hint="Options are arguments of the class in torchvision that its builder does "
                    "not set itself, e.g. num_classes=10.",
                ) from problem
            raise SourceError(
                f"torchvision cannot make {self._name}: {lines[0][:300]}"
            ) from problem
        return module.eval().requires_grad_(False)

    def _published(self) -> tuple[Resolution | None, Preprocess, tuple[str, ...]]:
        """Size, pixels and class names of the published weights; nothing is downloaded."""
        from torchvision import models

        try:
            weights: Any = next(iter(models.get_model_weights(self._name)))
        except (ValueError, RuntimeError, StopIteration):
            return None, Preprocess(), ()
        labels = tuple(map(str, weights.meta.get("categories") or ()))
        return *_preprocess_of(weights.transforms), labels


def _preprocess_of(transforms: partial[Any]) -> tuple[Resolution | None, Preprocess]:
    """What torchvision's evaluation preset says about pixels."""
    preset: Any = transforms()
    default = Preprocess()
    try:
        crop = [int(n) for n in preset.crop_size]
        resize = [int(n) for n in preset.resize_size]
    except (AttributeError, TypeError):
        return None, default
    size = Resolution(crop[0], crop[-1])
    kernel = str(getattr(preset.interpolation, "value", preset.interpolation))
    return size, Preprocess(
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=kernel if kernel in FILTERS else default.interpolation,
        crop=min(crop[0] / resize[0], 1.0),
        fit="center-crop",
    )


def _classes(network: nn.Module) -> int:
    """Outputs of the last linear layer."""
    from torch import nn

    heads = [m for m in network.modules() if isinstance(m, nn.Linear)]
    return int(heads[-1].out_features) if heads else 0


SOURCE = TorchvisionSource
