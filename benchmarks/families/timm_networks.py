"""timm: names of its registry, shallow, and the networks that timm makes for a size."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import timm
import torch
from safetensors.torch import save_file

from benchmarks.families.base import Arrays, Library, Saved
from benchmarks.families.weights import redraw

_CLASSES = {"num_classes": 10}
_FLAT = {"depth": 2, **_CLASSES}
_STAGES = {"depths": (1, 1, 1, 1), **_CLASSES}

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "vit_tiny_patch16_224": _FLAT,
    "deit_tiny_distilled_patch16_224": _FLAT,
    "deit3_small_patch16_224": _FLAT,
    "beit_base_patch16_224": _FLAT,
    "eva02_tiny_patch14_224": {"depth": 2},
    "vit_small_patch14_dinov2": _FLAT,
    "vit_small_patch14_reg4_dinov2": _FLAT,
    "vit_small_patch16_dinov3": {"depth": 2},
    "vit_relpos_small_patch16_224": _FLAT,
    "vit_relpos_medium_patch16_rpn_224": _FLAT,
    "vit_srelpos_small_patch16_224": _FLAT,
    "swin_tiny_patch4_window7_224": {**_STAGES, "depths": (2, 1, 1, 1)},
    "swinv2_tiny_window8_256": {**_STAGES, "depths": (2, 1, 1, 1)},
    "twins_pcpvt_small": _STAGES,
    "twins_svt_small": {**_STAGES, "depths": (2, 2, 2, 2)},
    "samvit_base_patch16_224": {**_FLAT, "global_attn_indexes": (1,)},
    "vit_base_patch16_siglip_224": {"depth": 2},
    "vit_small_patch16_rope_224": _FLAT,
    "vit_small_patch16_rope_mixed_224": _FLAT,
    "convit_tiny": {**_FLAT, "local_up_to_layer": 1},
    "cait_xxs24_224": {**_FLAT, "depth_token_only": 1},
    "levit_128s": {"depth": (1, 1, 1), **_CLASSES},
    "hiera_tiny_224": {"stages": (1, 1, 1, 1), **_CLASSES},
    "mvitv2_tiny": _CLASSES,
    "pit_ti_224": _CLASSES,
    "maxvit_tiny_tf_224": _STAGES,
    "flexivit_small": _FLAT,
    "tiny_vit_5m_224": _STAGES,
    "davit_tiny": _STAGES,
    "pvt_v2_b0": _STAGES,
    "vit_base_patch16_clip_224": _FLAT,
}  # fmt: skip

OTHERS: Mapping[str, Mapping[str, Any]] = {
    "vit_small_patch32_224": _FLAT,
    "vit_tiny_r_s16_p8_224": _FLAT,
    "vit_small_r26_s32_224": _FLAT,
    "vit_so150m_patch16_reg4_map_256": _FLAT,
    "vit_xsmall_patch16_clip_224": _FLAT,
    "vit_pwee_patch16_reg1_gap_256": _FLAT,
    "vit_mediumd_patch16_rope_reg1_gap_256": _FLAT,
    "vit_small_patch16_rope_ape_224": _FLAT,
    "vit_small_patch16_rope_mixed_ape_224": _FLAT,
    "vit_intern300m_patch14_448": _FLAT,
    "vit_small_patch16_18x2_224": _FLAT,
    "vit_relpos_base_patch16_cls_224": _FLAT,
    "vit_relpos_base_patch16_clsgap_224": _FLAT,
    "vit_srelpos_medium_patch16_224": _FLAT,
    "vit_pe_core_tiny_patch16_384": _FLAT,
    "vit_pe_spatial_tiny_patch16_512": _FLAT,
    "vit_base_mci_224": _FLAT,
    "test_vit3": _FLAT,
    "beitv2_base_patch16_224": _FLAT,
    "beit3_base_patch16_224": _FLAT,
    "eva_large_patch14_196": _FLAT,
    "eva02_base_patch16_clip_224": _FLAT,
    "aimv2_large_patch14_224": _FLAT,
    "vit_small_plus_patch16_dinov3": _FLAT,
    "swin_s3_tiny_224": {**_STAGES, "depths": (2, 1, 1, 1)},
    "swinv2_cr_tiny_224": {**_STAGES, "depths": (2, 1, 1, 1)},
    "swinv2_cr_tiny_ns_224": {**_STAGES, "depths": (2, 1, 1, 1)},
    "swinv2_base_window12_192": {**_STAGES, "depths": (2, 1, 1, 1)},
    "maxvit_nano_rw_256": _STAGES,
    "maxxvit_rmlp_nano_rw_256": _STAGES,
    "coatnet_0_rw_224": _STAGES,
    "coatnet_rmlp_nano_rw_224": _STAGES,
    "coatnext_nano_rw_224": _STAGES,
    "pvt_v2_b2_li": _STAGES,
    "davit_small": _STAGES,
    "nextvit_small": _CLASSES,
    "fastvit_t8": _CLASSES,
    "fastvit_sa12": _CLASSES,
    "edgenext_xx_small": _STAGES,
    "poolformer_s12": _CLASSES,
    "caformer_s18": _CLASSES,
    "mambaout_femto": _STAGES,
    "gcvit_xxtiny": _CLASSES,
    "efficientformer_l1": _STAGES,
    "efficientformerv2_s0": _STAGES,
    "efficientvit_b0": _STAGES,
    "efficientvit_m0": _CLASSES,
    "inception_next_tiny": _STAGES,
    "focalnet_tiny_srf": _CLASSES,
    "mobilenetv4_hybrid_medium": _CLASSES,
    "swiftformer_xs": _CLASSES,
    "cait_s24_224": _FLAT,
    "xcit_nano_12_p16_224": _FLAT,
    "crossvit_tiny_240": _CLASSES,
    "crossvit_9_dagger_240": _CLASSES,
    "mvitv2_small": _CLASSES,
    "hiera_small_abswin_256": _CLASSES,
    "nest_tiny": _CLASSES,
    "volo_d1_224": _CLASSES,
    "tnt_s_patch16_224": _FLAT,
    "tnt_s_legacy_patch16_224": _FLAT,
    "levit_conv_128s": _CLASSES,
    "pit_s_distilled_224": _CLASSES,
    "visformer_tiny": _FLAT,
    "coat_tiny": _CLASSES,
    "coat_lite_tiny": _CLASSES,
    "mixer_s32_224": _CLASSES,
    "resmlp_12_224": _CLASSES,
    "mobilevit_xxs": _CLASSES,
    "mobilevitv2_050": _CLASSES,
    "repvit_m0_9": _CLASSES,
    "sam2_hiera_tiny": _CLASSES,
    "vitamin_small_224": _CLASSES,
    "naflexvit_base_patch16_gap": _CLASSES,
    "botnet26t_256": _CLASSES,
    "halonet26t": _CLASSES,
    "tiny_vit_11m_224": _CLASSES,
    "convmixer_768_32": _CLASSES,
}
"""Further names of the same mechanisms."""


class Timm(Library):
    """``timm.create_model`` with the weights as a pretrained file of the native size."""

    name: ClassVar[str] = "timm"

    def names(self, *, others: bool = False) -> tuple[str, ...]:
        """Names of timm's registry."""
        return tuple(OTHERS if others else FAMILIES)

    def options(self, name: str) -> Mapping[str, Any]:
        """Arguments of the constructor that make it small."""
        return {**OTHERS, **FAMILIES}.get(name, {})

    def save(self, name: str, folder: Path) -> Saved:
        """A safetensors file."""
        return save(name, self.options(name), folder)

    def reference(
        self, name: str, saved: Saved, mode: str, size: tuple[int, int], inputs: Any
    ) -> Arrays:
        """timm's own answer."""
        options, weights = saved.options["model_kwargs"], saved.options["weights"]
        module = network(name, options, weights, mode, size)
        with torch.no_grad():
            return {"*": module(inputs).numpy()}


def save(name: str, options: Mapping[str, Any], folder: Path) -> Saved:
    """Draw the weights of a network of the native size."""
    with _quiet():
        module = timm.create_model(name, **options).eval()
    path = folder / "weights.safetensors"
    save_file({n: t.contiguous() for n, t in redraw(module).items()}, path)
    return Saved(f"timm:{name}", {"weights": path, "model_kwargs": dict(options)})


def network(
    name: str, options: Mapping[str, Any], weights: Path, mode: str, size: tuple[int, int]
) -> Any:
    """timm's own model for a size, with the file's weights put in by timm's own loader."""

    def create(**more: Any) -> Any:
        given = {**options, **more}
        number = given.get("num_classes", timm.get_pretrained_cfg(name).num_classes)
        overlay = {"file": str(weights), "custom_load": False, "num_classes": number}
        with _quiet():
            module = timm.create_model(
                name, pretrained=True, pretrained_cfg_overlay=overlay, **given
            )
        return module.eval()

    if mode == "native":
        return create()
    wanted = {"dynamic_img_size": True} if mode == "dynamic" else {"img_size": size}
    try:
        return create(**wanted)
    except (TypeError, RuntimeError, AssertionError):
        module = create()  # the class has no such option, or resamples its tables while it runs
    try:
        with torch.no_grad():
            module(torch.zeros(1, int(options.get("in_chans", 3)), *size))
    except (RuntimeError, AssertionError):
        return create(img_size=size)  # timm has no network for any size, but one for each
    return module


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logging.getLogger("timm").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


LIBRARY = Timm
