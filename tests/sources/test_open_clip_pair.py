"""open_clip: both towers as one export, its tokenizer as data, its own scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch

import vitpe_deploy
from vitpe_deploy.deploy.tokens import Tokens
from vitpe_deploy.pair_index import TokenizerRecord
from vitpe_deploy.sources.open_clip_tokenizer import clip_tokenizer

CONFIG: dict[str, Any] = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 64, "patch_size": 16, "width": 32, "head_width": 16, "layers": 1},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}
PROMPTS = ["a photo of a cat", "It's 2 dogs, isn't it?", "naïve café, über\n  alles", "1234 x-ray"]


def test_the_tokenizer_gives_open_clips_ids(tmp_path: Path) -> None:
    found = clip_tokenizer()
    assert found is not None
    (tmp_path / "t.json").write_text(found.content, encoding="utf-8")
    record = TokenizerRecord(
        file="t.json", max_length=77, pad_token_id=found.pad_token_id, padding=found.padding
    )
    given = Tokens(tmp_path, record)(PROMPTS, 77)
    right = open_clip.tokenizer.SimpleTokenizer()(PROMPTS).numpy()
    np.testing.assert_array_equal(given, right)


def test_scores_equal_open_clips(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = open_clip.CLIP(**CONFIG).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
            elif name == "logit_scale":
                parameter.fill_(3.0)
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    torch.save({"state_dict": network.state_dict()}, tmp_path / "w.pt")
    report = vitpe_deploy.export(
        f"open_clip:{tmp_path / 'tiny.json'}", tower="both", weights=tmp_path / "w.pt",
        output_dir=tmp_path / "out",
    )  # fmt: skip
    assert report.verdict == "passed"
    generator = np.random.default_rng(0)
    picture = generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    with vitpe_deploy.load_pair(tmp_path / "out") as pair, torch.no_grad():
        values = torch.from_numpy(pair.vision.prepare([picture]))
        ids = open_clip.tokenizer.SimpleTokenizer()(PROMPTS)
        image = network.encode_image(values, normalize=True)
        text = network.encode_text(ids, normalize=True)
        right = (network.logit_scale.exp() * image @ text.T).softmax(dim=-1).numpy()
        assert np.ptp(right) > 0.01
        assert np.abs(pair.scores([picture], PROMPTS) - right).max() <= 1e-4
