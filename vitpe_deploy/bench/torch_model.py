"""PyTorch's side of a benchmark: the model that an artifact's manifest records.

The one file of this folder that imports torch; only a torch child and the reference load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.errors import SourceError, UsageError
from vitpe_deploy.manifest import Manifest, read_manifest
from vitpe_deploy.pixels import PixelInput
from vitpe_deploy.preprocess import Preprocess
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


def eager_runtime(path: Path, shape: tuple[int, int], threads: int, device: str = "CPU") -> Runtime:
    """A fresh eager model for one size (height, width), computing what the artifact computes.

    Raises:
        DeviceError: the device is not here.
    """
    from vitpe_deploy.runtimes.torch_eager import TorchRuntime, device_name

    device_name(device)  # refuses before the model is loaded
    manifest, loaded = load_recorded(path)
    size = Resolution(*shape)
    module = loaded.fresh(size, symbolic=Dynamic(manifest.dynamic).size).to(device.lower())
    names = tuple(o.name for o in manifest.outputs)

    layout = manifest.layout()

    def forward(batch: Tensor) -> Mapping[str, Tensor]:
        if isinstance(layout, PixelInput):
            batch = normalised(batch, layout, manifest.preprocessing())
        with loaded.reference_rule(batch):
            return loaded.read(module, batch, names)

    return TorchRuntime(
        forward,
        layout.name,
        threads=threads,
        output_names=names,
        input_shape=(None,) * len(layout.shape(size, 1)),
        input_dtype=layout.dtype,
        device=device,
    )


def normalised(pixels: Tensor, layout: PixelInput, preprocess: Preprocess) -> Tensor:
    """uint8 pixels of ``layout`` as the model reads them: float32 [B, C, H, W]."""
    x = (pixels.permute(0, 3, 1, 2) if layout.order == "nhwc" else pixels).float()
    if preprocess.color_order == "BGR":
        x = x.flip(1)
    mean, std = (
        x.new_tensor(v[: layout.channels]).view(1, -1, 1, 1)
        for v in (preprocess.mean, preprocess.std)
    )
    return (x * preprocess.scale - mean) / std
