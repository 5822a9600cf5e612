"""PyTorch's side of a benchmark: the model that an artifact's manifest records.

The one file of this folder that imports torch; only a torch child and the reference load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.errors import SourceError, UsageError
from vitpe_deploy.manifest import Manifest, read_manifest
from vitpe_deploy.request import Dynamic, Resolution
from vitpe_deploy.runtimes import Runtime

if TYPE_CHECKING:
    from torch import Tensor

    from vitpe_deploy.sources.base import LoadedModel


def load_recorded(path: Path) -> tuple[Manifest, LoadedModel]:
    """The manifest of an artifact and the model it was made from.

    Raises:
        UsageError: the export was given a module, so that nothing says how to build it.
        SourceError: the model cannot be loaded.
    """
    manifest = read_manifest(path)
    if manifest.source is None:
        raise UsageError(
            f"{path.name} was exported from a module passed in from Python: torch cannot build it",
            hint="Leave torch out of --runtime.",
        )
    from vitpe_deploy.sources import open_source

    loaded = open_source(manifest.source.to_request()).load()
    if loaded.weights_sha256() != manifest.weights_sha256:
        raise SourceError(
            f"{manifest.source.model} has other weights now than when {path.name} was written",
            hint="Random weights differ between torch versions.",
        )
    return manifest, loaded


def eager_runtime(path: Path, shape: tuple[int, int], threads: int) -> Runtime:
    """A fresh eager model for one size (height, width), computing what the artifact computes."""
    from vitpe_deploy.runtimes.torch_eager import TorchRuntime

    manifest, loaded = load_recorded(path)
    size = Resolution(*shape)
    module = loaded.fresh(size, symbolic=Dynamic(manifest.dynamic).size)
    names = tuple(o.name for o in manifest.outputs)

    def forward(batch: Tensor) -> Mapping[str, Tensor]:
        with loaded.reference_rule(batch):
            return loaded.read(module, batch, names)

    layout = manifest.layout()
    return TorchRuntime(
        forward,
        layout.name,
        threads=threads,
        output_names=names,
        input_shape=(None,) * len(layout.shape(size, 1)),
        input_dtype=layout.dtype,
    )
