"""How pictures come to the input: what an image processor's file says, against the processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitpe_deploy.images import load_image, prepare
from vitpe_deploy.sources.transformers_facts import preprocess_of

PADDED = {"height": 64, "width": 64}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ViTImageProcessor", {"size": {"height": 64, "width": 64}}),
        ("ViTImageProcessor", {"size": {"height": 64, "width": 96}, "resample": 2}),
        ("CLIPImageProcessor", {"size": {"shortest_edge": 64}, "crop_size": 64}),
        ("BitImageProcessor", {"size": {"shortest_edge": 72}, "crop_size": 64}),
        ("DeiTImageProcessor", {"size": {"height": 72, "width": 72}, "crop_size": 64}),
        ("SamImageProcessor", {"size": {"longest_edge": 64}, "pad_size": PADDED}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 64}, "crop_pct": 0.875}),
    ],
)
def test_preprocessing_equals_the_image_processor(
    tmp_path: Path, photographs: Path, kind: str, options: dict[str, Any]
) -> None:
    """Photographs through ours and through the library's own class, which wrote the file."""
    import transformers
    from PIL import Image

    # The Pillow processors; version 5 gives that name to those of torchvision.
    name = f"{kind}Pil" if hasattr(transformers, f"{kind}Pil") else kind
    processor = getattr(transformers, name)(**options)
    processor.save_pretrained(tmp_path)
    rule = preprocess_of(json.loads((tmp_path / "preprocessor_config.json").read_text()))
    for path in sorted(photographs.iterdir())[:3]:
        image = Image.open(path).convert("RGB")
        right = np.asarray(processor(image, return_tensors="np")["pixel_values"][0])
        given = prepare(load_image(path), *right.shape[1:], rule)
        np.testing.assert_allclose(given, right, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "fit", "crop"),
    [
        ({"size": 224, "image_processor_type": "ViTImageProcessor"}, "squash", 1.0),
        ({"size": 224, "feature_extractor_type": "CLIPFeatureExtractor"}, "center-crop", 1.0),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, "center-crop", 0.875),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, "squash", 1.0),
        ({"size": {"longest_edge": 1024}, "do_pad": True}, "pad", 1.0),
        ({"do_resize": False, "size": 224}, "box", 1.0),
    ],
)
def test_how_a_picture_comes_to_the_input(config: dict[str, Any], fit: str, crop: float) -> None:
    rule = preprocess_of(config)
    assert (rule.fit, rule.crop) == (fit, crop)
