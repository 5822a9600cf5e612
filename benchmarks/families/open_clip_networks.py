"""open_clip: small configs in folders, and the towers that open_clip makes of them for a size."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import open_clip
import torch
from safetensors.torch import load_file, save_file

from benchmarks.families.base import Arrays, Library, Saved
from benchmarks.families.weights import redraw

_VISION: Mapping[str, Any] = {
    "image_size": 96, "patch_size": 16, "width": 32, "head_width": 16, "layers": 2,
}  # fmt: skip
_TEXT: Mapping[str, Any] = {
    "context_length": 20, "vocab_size": 99, "width": 32, "heads": 2, "layers": 2,
}  # fmt: skip

FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "vit": ("vision", {}),
    "vit-average": ("vision", {"pool_type": "avg", "final_ln_after_pool": True}),
    "vit-layer-scale": ("vision", {"ls_init_value": 0.1, "no_ln_pre": True}),
    "vit-sin-cos": ("vision", {"pos_embed_type": "sin_cos_2d"}),
    "vit-attentional-pool": ("vision", {"attentional_pool": True, "attn_pooler_heads": 2}),
    "timm-trunk": (
        "vision",
        {"image_size": 224, "timm_model_name": "vit_tiny_patch16_224",
         "timm_model_pretrained": False,
         "timm_pool": "token", "timm_proj": "linear"},
    ),
    "text": ("text", {}),
    "text-last": ("text", {"pool_type": "last", "no_causal_mask": True, "embed_cls": False}),
}  # fmt: skip
"""The tower, and values of its part of the config."""


class OpenClip(Library):
    """Folders with ``open_clip_config.json`` and weights."""

    name: ClassVar[str] = "open_clip"

    def names(self, *, others: bool = False) -> tuple[str, ...]:
        """Names of small configs."""
        return () if others else tuple(FAMILIES)

    def save(self, name: str, folder: Path) -> Saved:
        """A folder that open_clip itself reads."""
        tower, values = FAMILIES[name]
        path = folder / name
        path.mkdir()
        model = {
            "embed_dim": 24,
            "vision_cfg": {**_VISION, **(values if tower == "vision" else {})},
            "text_cfg": {**_TEXT, **(values if tower == "text" else {})},
        }
        config = {"model_cfg": model, "preprocess_cfg": {"size": model["vision_cfg"]["image_size"]}}
        (path / "open_clip_config.json").write_text(json.dumps(config))
        module = _create(path, load_weights=False)
        state = {n: t.contiguous() for n, t in redraw(module).items()}
        save_file(state, path / "open_clip_model.safetensors")
        return Saved(f"open_clip:{path}", {"tower": tower})

    def reference(
        self, name: str, saved: Saved, mode: str, size: tuple[int, int], inputs: Any
    ) -> Arrays:
        """The embedding, not normalised.

        Of pictures, the table is resampled as open_clip loads weights. Text shorter than the
        context has no forward: its network is one of that context, with the first rows.
        """
        tower, _ = FAMILIES[name]
        folder = Path(saved.model.removeprefix("open_clip:"))
        if tower == "text" and size[1] != _TEXT["context_length"]:
            folder = _shorter(folder, size[1])
        more = {} if tower == "text" or mode == "native" else {"force_image_size": size}
        module = _create(folder, **more)
        run = module.encode_text if tower == "text" else module.encode_image
        with torch.no_grad():
            return {"*": run(inputs).numpy()}


def _shorter(folder: Path, length: int) -> Path:
    """A folder whose text tower reads so many tokens."""
    found = folder.with_name(f"{folder.name}-{length}")
    if not found.is_dir():
        found.mkdir()
        config = json.loads((folder / "open_clip_config.json").read_text())
        config["model_cfg"]["text_cfg"]["context_length"] = length
        (found / "open_clip_config.json").write_text(json.dumps(config))
        state = load_file(folder / "open_clip_model.safetensors")
        state["positional_embedding"] = state["positional_embedding"][:length].contiguous()
        save_file(state, found / "open_clip_model.safetensors")
    return found


def _create(folder: Path, **more: Any) -> Any:
    """open_clip's model of a folder."""
    logging.getLogger().setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return open_clip.create_model(f"local-dir:{folder}", **more).eval()


LIBRARY = OpenClip
