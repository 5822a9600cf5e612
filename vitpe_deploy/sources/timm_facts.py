"""What a timm network is, found by looking at it and running it once without data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from vitpe_deploy.errors import SourceError
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.preprocess import FILTERS, Preprocess
from vitpe_deploy.sources.base import ModelFacts, SizeRule
from vitpe_deploy.sources.timm_library import Library
from vitpe_deploy.sources.timm_sizes import NoRuleError, Sizes
from vitpe_deploy.sources.timm_steps import channels_of, patch_size, run

_BLOCK_PATH = re.compile(r"(?:^|\.)(?:blocks|layers\.\d+\.blocks)(?:\.\d+)+$")


def library_facts(library: Library, sizes: Sizes) -> ModelFacts:
    """Facts of a timm name, without weights.

    Raises:
        SourceError: the network does not run on pictures at its own size.
    """
    probe: Any = sizes.probe
    outcome = run(probe, sizes.native, all_outputs)
    if outcome.reason:
        raise SourceError(
            f"timm's {library.name} does not run on pictures of {sizes.native}: {outcome.reason}",
            hint="Only networks that take pixel values [B, 3, H, W] can be exported.",
        )
    found: Mapping[str, Tensor] = outcome.outputs
    prefix = prefix_tokens(probe, found)
    divisor = _grid_divisor(probe, sizes, found, prefix)
    names = [n for n in found if n != "feature-map"]
    if "feature-map" in found or _is_grid(found, sizes, prefix, divisor):
        names.append("feature-map")
    rule = sizes.static_rule()
    dynamic_rule: SizeRule | None = None
    no_dynamic = ""
    try:
        dynamic_rule = sizes.symbolic_rule()
    except NoRuleError as problem:
        no_dynamic = rule.fixed_reason if rule.fixed is not None else str(problem)
    return ModelFacts(
        name=library.name.replace(".", "_"),
        spec=f"timm:{library.name}",
        native=sizes.native,
        size_rule=rule,
        grid_divisor=divisor,
        encoding=encoding_of(probe),
        encoding_params={},
        prefix_tokens=prefix,
        outputs=tuple(names),
        default_outputs=("logits",) if "logits" in found else tuple(names[:1]),
        depth=len(block_paths(probe)),
        input=ImageInput(channels=channels_of(probe)),
        preprocess=preprocess_of(probe.pretrained_cfg),
        dynamic_rule=dynamic_rule,
        no_dynamic=no_dynamic,
    )


def all_outputs(
    module: nn.Module, pixels: Tensor, names: tuple[str, ...] = ("logits", "pooled")
) -> dict[str, Tensor]:
    """What a network gives: features, and those of logits and pooled that are named."""
    network: Any = module
    features = network.forward_features(pixels)
    found: dict[str, Tensor] = {}
    if "logits" in names and getattr(network, "num_classes", 0) > 0:
        found["logits"] = network.forward_head(features)
    if "pooled" in names:
        pooled = network.forward_head(features, pre_logits=True)
        if isinstance(pooled, Tensor) and pooled.dim() == 2:
            found["pooled"] = pooled
    if isinstance(features, Tensor) and features.dim() == 3:
        if has_class_token(network):
            found["cls"] = features[:, 0]
        found["tokens"] = features
    elif isinstance(features, Tensor) and features.dim() == 4:
        found["feature-map"] = channels_first(network, features)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def has_class_token(network: Any) -> bool:
    """Whether the first token is a class token."""
    return isinstance(getattr(network, "cls_token", None), Tensor)


def channels_first(network: Any, features: Tensor) -> Tensor:
    """[B, C, h, w] of a map in timm's own layout."""
    if str(getattr(network, "output_fmt", "NCHW")).endswith("NHWC"):
        return features.permute(0, 3, 1, 2)
    return features


def prefix_tokens(network: Any, found: Mapping[str, Tensor]) -> int:
    """Tokens in front of the patches in the last features."""
    if "tokens" not in found:
        return 0
    counted = getattr(network, "num_prefix_tokens", None)
    return int(counted) if isinstance(counted, int) else int(has_class_token(network))


def _grid_divisor(
    network: Any, sizes: Sizes, found: Mapping[str, Tensor], prefix: int
) -> tuple[int, int]:
    """Pixels per token of the last features."""
    native = sizes.native
    if "feature-map" in found:
        rows, columns = found["feature-map"].shape[-2:]
        return max(native.height // int(rows), 1), max(native.width // int(columns), 1)
    patch = patch_size(network)
    if "tokens" in found:
        count = int(found["tokens"].shape[1]) - prefix
        step = patch[0]
        while step <= native.height:
            if (native.height // step) * (native.width // step) == count:
                return step, step * patch[1] // patch[0]
            step *= 2
    return patch


def _is_grid(
    found: Mapping[str, Tensor], sizes: Sizes, prefix: int, divisor: tuple[int, int]
) -> bool:
    """Whether the last tokens are the patches of a grid, row by row.

    Tokens of a pyramid may be in the order of its windows (Hiera); only those of a network with
    one resolution are known to be in order.
    """
    if "tokens" not in found or divisor != patch_size(sizes.probe):
        return False
    rows, columns = sizes.native.height // divisor[0], sizes.native.width // divisor[1]
    return int(found["tokens"].shape[1]) - prefix == rows * columns


def block_paths(module: nn.Module) -> tuple[str, ...]:
    """Blocks of all stages, in order: what timm keeps in lists called ``blocks``."""
    found: list[str] = []
    for path, child in module.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if not inside and _BLOCK_PATH.search(path) and not isinstance(child, nn.ModuleList):
            found.append(path)
    return tuple(found)


_KINDS = (
    ("sincos-2d", r"(^|\.)pos_embe?d\.token_projection\."),
    ("rope-mixed", r"(^|\.)rope\.freqs$"),
    ("rope-2d", r"(^|\.)rope(\.|$)"),
    ("log-cpb", r"(cpb_mlp|rel_pos\.mlp|meta_mlp)\."),
    ("decomposed", r"\.rel_pos_[hw]$"),
    ("conditional", r"(^|\.)(pos_block|cpe\d*|pos_conv|pos_emb|local_conv|dwconv)\."),
)
_ADDED_TABLE = re.compile(r"(^|\.)(pos_embed(_?\d)?|patch_pos|pixel_pos)$")
"""A parameter; modules of the same name compute what they add."""


def encoding_of(module: nn.Module) -> str:
    """Kinds of positions, joined by ``+``, by the names that timm gives them."""
    parameters = [n for n, _ in module.named_parameters()]
    names = parameters + [n for n, _ in module.named_modules()]
    kinds = ["learned-1d"] if any(map(_ADDED_TABLE.search, parameters)) else []
    kinds += [kind for kind, pattern in _KINDS if any(re.search(pattern, n) for n in names)]
    if "rope-mixed" in kinds:
        kinds.remove("rope-2d")
    tables = [n for n in names if re.search(r"(bias_table|attention_biases)$", n)]
    if tables and "log-cpb" not in kinds:
        windowed = any(
            hasattr(module.get_submodule(t.rpartition(".")[0]), "window_size") for t in tables
        )
        staged = any(t.startswith(("layers.", "stages.")) for t in tables)
        kinds.append("window-bias" if windowed and staged else "relative-2d")
    return "+".join(kinds) or "none"


def preprocess_of(config: Mapping[str, Any]) -> Preprocess:
    """What timm's pretrained config says about pixels."""
    default = Preprocess()
    mean, std = tuple(config.get("mean") or ()), tuple(config.get("std") or ())
    kernel = str(config.get("interpolation", default.interpolation))
    return Preprocess(
        mean=mean if len(mean) == 3 else default.mean,
        std=std if len(std) == 3 else default.std,
        interpolation=kernel if kernel in FILTERS else default.interpolation,
        crop=float(config.get("crop_pct") or 1.0),
        fit="squash" if config.get("crop_mode") == "squash" else "center-crop",
    )
