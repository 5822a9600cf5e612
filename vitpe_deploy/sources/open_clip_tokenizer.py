"""open_clip's own tokenizer as one JSON file of the ``tokenizers`` library.

The merges are those that open_clip ships; ids, the end-of-word mark, lower case and the pattern of
words are those of its class. What it does to damaged text before (ftfy, HTML entities) is left to
the caller: on plain text both give the same ids, which a test compares.
"""

from __future__ import annotations

import gzip
from typing import Any

from vitpe_deploy.pairing import TokenizerFile

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_WORD_END = "</w>"


def clip_tokenizer() -> TokenizerFile | None:
    """The tokenizer of CLIP with open_clip's ids; None where ``tokenizers`` is not installed."""
    try:
        from tokenizers import (
            AddedToken,
            Regex,
            Tokenizer,
            models,
            normalizers,
            pre_tokenizers,
            processors,
        )
    except ImportError:
        return None
    import open_clip.tokenizer as library

    own: Any = library.SimpleTokenizer()
    merges = _merges(library.default_bpe(), len(own.bpe_ranks))
    start, end = own.sot_token_id, own.eot_token_id
    names = {v: k for k, v in own.encoder.items()}
    built = Tokenizer(
        models.BPE(
            vocab=dict(own.encoder),
            merges=merges,
            unk_token=names[end],
            continuing_subword_prefix="",
            end_of_word_suffix=_WORD_END,
        )
    )
    built.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.post_processor = processors.TemplateProcessing(
        single=f"{names[start]} $A {names[end]}",
        special_tokens=[(names[start], start), (names[end], end)],
    )
    built.add_special_tokens([AddedToken(names[k], normalized=False) for k in (start, end)])
    return TokenizerFile(built.to_str(), pad_token_id=0, padding="max-length")


def _merges(path: str, count: int) -> list[tuple[str, str]]:
    """The merges of the file that open_clip ships, as many as its class uses."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")[1 : count + 1]
    return [(first, second) for first, second in (line.split() for line in lines)]
