"""``open_clip:NAME``: one tower of a model of open_clip, chosen with ``--tower``.

NAME is a config of open_clip, a JSON file of one, or a folder with ``open_clip_config.json`` and
weights; ``--model-kwarg vision_cfg.layers=2`` changes a value of it. What comes out of a tower is
its embedding, not normalised, as ``encode_image`` and ``encode_text`` give it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.errors import MissingExtraError, UsageError
from vitpe_deploy.pairing import Pairing, TokenizerFile
from vitpe_deploy.request import ModelRequest
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, Source
from vitpe_deploy.towers import VISION, chosen_tower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from vitpe_deploy.sources.open_clip_text import TextTower
    from vitpe_deploy.sources.open_clip_vision import VisionTower

PREFIX = "open_clip:"


class OpenClipSource(Source):
    """A config of open_clip and one of its towers."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.refuse_unused(pe=request.encoding, pos_embed=request.pos_embed)
        name = request.model.removeprefix(PREFIX)
        if not name:
            raise UsageError("MODEL 'open_clip:' names nothing", hint="Give open_clip:NAME.")
        try:
            from vitpe_deploy.sources.open_clip_library import Library
        except ImportError as problem:
            raise MissingExtraError(problem.name or "open_clip", "open-clip") from problem
        self._library = Library.open(name, request.kwargs)
        self._opened: VisionTower | TextTower | None = None
        self._pairing: Pairing | None = None

    def facts(self) -> ModelFacts:
        """Found on a tower without data."""
        return self._tower().facts

    def _tower(self) -> VisionTower | TextTower:
        """The tower that is asked for, looked at once."""
        if self._opened is None:
            named = self.request.model
            if chosen_tower(self.request) == VISION:
                from vitpe_deploy.sources.open_clip_vision import open_vision

                self._opened = open_vision(self._library, named)
            else:
                from vitpe_deploy.sources.open_clip_text import TextTower

                self._opened = TextTower.open(self._library, named, self.request.max_length)
        return self._opened

    def load(self) -> LoadedModel:
        """Seeded random weights of the native size, those of the folder, or of ``--weights``."""
        tower = self._tower()
        path = self.request.weights or self._library.weights
        if path is None:
            state, origin = self._random(), f"random, seed {self.request.seed}"
        else:
            state, origin = self._read(path)
        loaded = tower.load(state, origin, self.request.resample)
        loaded.pairing = self._pairing
        return loaded

    def tokenizer(self) -> TokenizerFile | None:
        """CLIP's own, unless the config names another."""
        if self._library.text.get("hf_tokenizer_name") or self._library.text.get(
            "tokenizer_kwargs"
        ):
            return None
        from vitpe_deploy.sources.open_clip_tokenizer import clip_tokenizer

        return clip_tokenizer()

    def _random(self) -> Mapping[str, Tensor]:
        """Weights as open_clip initialises them."""
        import torch

        from vitpe_deploy.sources.open_clip_library import of_tower

        tower = chosen_tower(self.request)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.request.seed)
            whole = self._library.make(tower, device="cpu").state_dict()
        self._pairing = _pairing(whole)
        return {n: t for n, t in whole.items() if of_tower(n, tower)}

    def _read(self, path: Path) -> tuple[Mapping[str, Tensor], str]:
        from vitpe_deploy.sources.weights import read_state_dict, without_prefixes

        tower = chosen_tower(self.request)
        given = read_state_dict(path)
        expected = self._library.make(tower, device="meta").state_dict()
        tensors, prefixes = without_prefixes(given.tensors, expected)
        self._pairing = _pairing(tensors)
        return self._library.tower_state(tower, tensors, path), given.origin(path, prefixes)


def _pairing(tensors: Mapping[str, Tensor]) -> Pairing | None:
    """From the logarithm of the scale, and the bias of models that have one."""
    scale, bias = tensors.get("logit_scale"), tensors.get("logit_bias")
    if scale is None or scale.numel() != 1:
        return None
    return Pairing(
        scale=math.exp(float(scale.detach())),
        bias=0.0 if bias is None else float(bias.detach()),
        scores="softmax" if bias is None else "sigmoid",
    )


SOURCE = OpenClipSource
