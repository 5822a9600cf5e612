"""Networks of transformers that read clips [B, T, C, H, W]: VideoMAE, TimeSformer, ViViT.

What is recognised is a config with ``num_frames``. The number of frames is the config's; sizes are
found by running without data, as for pictures. The three differ there:

* VideoMAE checks the size, and its sinusoidal table counts the tubelets of one size;
* ViViT resamples its table of T*h*w rows as one square picture, so only its own size runs;
* TimeSformer resamples its table of h*w rows to the nearest one, and its layers cut all patches
  into rows as long as those of the native size: the number of patches must be a multiple of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vitpe_deploy.errors import SizeError, SourceError, UnsupportedError
from vitpe_deploy.inputs import VideoInput
from vitpe_deploy.request import Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, SizeRule
from vitpe_deploy.sources.transformers_facts import labels_of
from vitpe_deploy.sources.transformers_family import Given
from vitpe_deploy.sources.transformers_pictures import Pictures, native_size

if TYPE_CHECKING:
    from torch import nn

    from vitpe_deploy.sources.transformers_sizes import Outcome


@dataclass(frozen=True, slots=True)
class PatchCountRule(SizeRule):
    """Sizes whose number of patches is a multiple of something.

    Attributes:
        multiple: of the number of patches, h * w.
        why: where the library asks for it.
    """

    multiple: int = 1
    why: str = ""

    def check(self, size: Resolution, *, allow_floor: bool = False, flag: str = "--res") -> None:
        """Refuse sizes of which patches would be left over."""
        # slots=True makes a new class, which super() without arguments does not know
        SizeRule.check(self, size, allow_floor=allow_floor, flag=flag)
        rows, columns = size.height // self.divisor[0], size.width // self.divisor[1]
        if rows * columns % self.multiple:
            step = self.multiple * self.divisor[0]
            height = max(round(size.height / step), 1) * step
            raise SizeError(
                f"{flag} {size} gives {rows}x{columns} = {rows * columns} patches, which is no "
                f"multiple of {self.multiple}: {self.why}",
                hint=f"Use for example {height}x{size.width}.",
            )


class Video(Pictures):
    """Any class whose forward takes pixel values [B, T, C, H, W]."""

    def takes_module(self, module: nn.Module) -> bool:
        """A network of pictures whose config counts frames."""
        return super().takes_module(module) and hasattr(module.config, "num_frames")

    def facts(self, given: Given) -> ModelFacts:
        """Found on a network without data."""
        from vitpe_deploy.sources.transformers_look import block_paths
        from vitpe_deploy.sources.transformers_outputs import own_outputs
        from vitpe_deploy.sources.transformers_video_model import patch_of, run_clip

        probe: Any = self.probe(given, self.config(given))
        config = probe.config
        layout = VideoInput(int(config.num_channels), int(config.num_frames), frames_first=True)
        native, patch = native_size(config), patch_of(probe)
        if given.request.resample:
            raise UnsupportedError(
                "--interpolation, --antialias and --align-corners have no meaning for "
                f"{given.spec}, whose class has one rule for clips",
                hint="Leave them out.",
            )

        def attempt(rows: int, columns: int) -> Outcome:
            return run_clip(probe, Resolution(rows * patch[0], columns * patch[1]), layout)

        outcome = run_clip(probe, native, layout)
        if outcome.reason:
            raise SourceError(
                f"{given.spec} does not run on clips of {native}: {outcome.reason}",
                hint="Only networks that take pixel values [B, T, C, H, W] can be exported.",
            )
        found = outcome.outputs
        rows, columns = native.height // patch[0], native.width // patch[1]
        tokens = int(found["tokens"].shape[1]) if "tokens" in found else 0
        prefix = tokens % (rows * columns)
        names = [*found, *(("cls",) if prefix == 1 else ())]
        rule = _rule(attempt, native, patch)
        logits = found.get("logits")
        return ModelFacts(
            name=given.name,
            spec=given.spec,
            native=native,
            size_rule=rule,
            grid_divisor=patch,
            encoding=given.family.encoding or "learned-1d",
            encoding_params={"frames": layout.frames},
            prefix_tokens=prefix,
            outputs=tuple(names),
            default_outputs=own_outputs(found),
            depth=len(block_paths(probe)),
            input=layout,
            preprocess=given.preprocess,
            labels=labels_of(given.config) if logits is not None and logits.dim() == 2 else (),
            no_dynamic=rule.fixed_reason or _of_count(rule),
        )

    def model(
        self, given: Given, facts: ModelFacts, module: nn.Module, weights: str
    ) -> LoadedModel:
        """Called as the library documents it."""
        from vitpe_deploy.sources.transformers_video_model import VideoModel

        return VideoModel(facts, self.inside(given, module), weights, given.request.resample)


def _of_count(rule: SizeRule) -> str:
    if not isinstance(rule, PatchCountRule):
        return "how its class gets to another size is not known to be right at every size"
    return rule.why


def _rule(
    attempt: Callable[[int, int], Outcome], native: Resolution, patch: tuple[int, int]
) -> SizeRule:
    """Sizes that the library runs, by the number of patches."""
    whole = SizeRule.for_patches(patch, "floors")
    columns = native.width // patch[1]
    other = attempt(columns + 1, columns + 2)  # in neither is a multiple of the native row
    if not other.reason:
        return whole
    if not attempt(columns, columns + 1).reason and not attempt(columns + 1, 2 * columns).reason:
        return PatchCountRule(
            patch,
            whole.reason,
            "floors",
            multiple=columns,
            why="transformers' layers cut the patches into rows of the native size "
            f"({native.width} // {patch[1]}, TimesformerLayer.forward)",
        )
    return replace(
        whole, fixed=native, fixed_reason=f"transformers' forward fails there ({other.reason})"
    )


KIND = Video()
