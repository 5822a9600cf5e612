"""``timm:NAME``: Vision Transformers of the timm library, by mechanism.

timm answers every question itself: which sizes a network takes is found by making and running it
without data, the network of a size is the one that timm creates for it (``img_size``), with the
native weights resampled by timm's own loader, and the network of a dynamic file is the one that
timm has for any size (``dynamic_img_size``, or the native one where nothing belongs to a size).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitpe_deploy.errors import MissingExtraError, SourceError, UsageError
from vitpe_deploy.request import ModelRequest
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, Source

if TYPE_CHECKING:
    from torch import Tensor

    from vitpe_deploy.sources.timm_library import Library
    from vitpe_deploy.sources.timm_sizes import Sizes


class TimmSource(Source):
    """A name of timm's registry."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.refuse_unused(pe=request.encoding, tower=request.tower, pos_embed=request.pos_embed)
        name = request.model.removeprefix("timm:")
        if not name:
            raise UsageError("MODEL 'timm:' names nothing", hint="Give timm:NAME.")
        try:
            from vitpe_deploy.sources.timm_library import Library
        except ImportError as problem:
            raise MissingExtraError(problem.name or "torch", "timm") from problem
        self._library = Library.open(name, request.kwargs)
        self._known: tuple[Sizes, ModelFacts] | None = None

    def facts(self) -> ModelFacts:
        """Found on a network without data."""
        return self._look(self._library)[1]

    def _look(self, library: Library) -> tuple[Sizes, ModelFacts]:
        from vitpe_deploy.sources.timm_facts import library_facts
        from vitpe_deploy.sources.timm_sizes import Sizes

        if library == self._library and self._known is not None:
            return self._known
        sizes = Sizes.of(library)
        found = sizes, library_facts(library, sizes)
        if library == self._library:
            self._known = found
        return found

    def load(self) -> LoadedModel:
        """Seeded random weights of the native size, or those of ``--weights``."""
        from vitpe_deploy.sources.timm_model import TimmModel

        library, origin = self._library, f"random, seed {self.request.seed}"
        if self.request.weights is None:
            state = _random(library, self.request.seed)
        else:
            state, origin = self._read(self.request.weights)
            library = self._for_classes(library, state)
        sizes, facts = self._look(library)
        module = _native(library, state, self.request.weights)
        return TimmModel(
            facts, module, origin, self.request.resample, library=library, sizes=sizes, state=state
        )

    def outline(self) -> LoadedModel:
        """timm's network without data: the one for any size where there is one."""
        from vitpe_deploy.sources.timm_model import Outline

        sizes, facts = self._look(self._library)
        probe = sizes.probe if facts.no_dynamic else sizes.symbolic_probe()
        return Outline(facts, probe.eval(), "none", self.request.resample)

    def _read(self, path: Path) -> tuple[Mapping[str, Tensor], str]:
        from vitpe_deploy.sources.weights import read_state_dict, without_prefixes

        sizes, _ = self._look(self._library)
        given = read_state_dict(path)
        tensors, prefixes = without_prefixes(given.tensors, sizes.probe.state_dict())
        return tensors, given.origin(path, prefixes)

    def _for_classes(self, library: Library, state: Mapping[str, Tensor]) -> Library:
        """The network with as many classes as the weights have, unless the user named a number."""
        sizes, _ = self._look(library)
        probe: Any = sizes.probe
        heads = probe.pretrained_cfg.get("classifier")
        head = heads[0] if isinstance(heads, (tuple, list)) and heads else heads
        rows = state.get(f"{head}.weight")
        if rows is None or "num_classes" in library.options or rows.shape[0] == probe.num_classes:
            return library
        options = {**library.options, "num_classes": int(rows.shape[0])}
        return dataclasses.replace(library, options=options)


def _random(library: Library, seed: int) -> Mapping[str, Tensor]:
    """Weights as timm initialises them."""
    import torch

    from vitpe_deploy.sources.timm_library import CreationError

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return library.create().state_dict()
        except CreationError as problem:
            raise SourceError(f"timm cannot make {library.name}: {problem}") from problem


def _native(library: Library, state: Mapping[str, Tensor], path: Path | None) -> Any:
    """The network of the native size with all weights in it.

    Raises:
        SourceError: lists names that are missing or unexpected and shapes that differ.
    """
    from vitpe_deploy.sources.timm_library import CreationError

    try:
        module = library.create(state=state)
    except CreationError as problem:
        raise SourceError(
            f"--weights {path} does not fit {library.name}: {problem}",
            hint="Weights must be of the model's own size; set --model-kwarg to match them.",
        ) from problem
    names = module.state_dict().keys()
    # timm's loader renames the keys of foreign checkpoints; with its own names, all must be there.
    extra = [n for n in state if n not in names and not _recomputed(n)]
    missing = [n for n in names if n not in state]
    if extra and not missing:
        shown = "; ".join(f"unexpected {n}" for n in extra[:8])
        raise SourceError(
            f"--weights {path} does not fit {library.name}: {shown}",
            hint="Weights must be of this very network; set --model-kwarg to match them.",
        )
    return module


def _recomputed(name: str) -> bool:
    """Tables that timm computes and old checkpoints carry."""
    return name.endswith(
        ("relative_position_index", "attn_mask", "relative_coords_table", "k_bias")
    )


SOURCE = TimmSource
