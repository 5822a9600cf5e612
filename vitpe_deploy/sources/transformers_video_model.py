"""How a network of the transformers library is called with clips."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitpe_deploy.inputs import VideoInput
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import PositionFit
from vitpe_deploy.sources.transformers_model import PictureModel
from vitpe_deploy.sources.transformers_outputs import forward
from vitpe_deploy.sources.transformers_sizes import Outcome, run


def patch_of(network: nn.Module) -> tuple[int, int]:
    """Height and width of a patch: of the first convolution, whether it spans frames or not."""
    for child in network.modules():
        if isinstance(child, nn.Conv2d | nn.Conv3d):
            return int(child.stride[-2]), int(child.stride[-1])
    return 1, 1


def run_clip(probe: nn.Module, size: Resolution, layout: VideoInput) -> Outcome:
    """Run a network without data on a clip of one picture in every frame."""

    def still(module: nn.Module, pixels: Tensor) -> dict[str, Tensor]:
        clip = pixels.unsqueeze(1).expand(-1, layout.frames, -1, -1, -1)
        native = _native(module)
        return forward(module, clip, flag=native != (size.height, size.width))

    return run(probe, size, layout.channels, still)


def _native(module: Any) -> tuple[int, int]:
    size = module.config.image_size
    return tuple(size) if isinstance(size, (tuple, list)) else (size, size)


class VideoModel(PictureModel):
    """A network of clips, run as its library documents it."""

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """inputs: [B, T, C, H, W]; outputs by the names of the facts."""
        found = forward(module, inputs, flag=self.facts.size_rule.fixed is None)
        if "cls" in names:
            found["cls"] = found["tokens"][:, 0]
        return {name: found[name] for name in names}

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """The table of pictures on its way to a size; that of frames stays."""
        facts = self.facts
        assert facts.native is not None
        old = facts.grid(facts.native)
        new = facts.grid(size or facts.native)
        resamples = new[0] * new[1] != old[0] * old[1]
        return (PositionFit(facts.encoding or "", old, new, "nearest" if resamples else None),)
