"""What makes two towers a pair: how their embeddings are compared, and how text becomes token ids.

Plain data: sources give it, manifests and the index of a pair carry it, the loader uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

EMBEDDING = "embedding"
"""The output that towers are compared by, as their library gives it."""

NORMALIZED = "normalized"
"""The same divided by its Euclidean length; every model with an ``embedding`` has it."""

Scores: TypeAlias = Literal["softmax", "sigmoid"]
Padding: TypeAlias = Literal["longest", "max-length"]


@dataclass(frozen=True, slots=True)
class Pairing:
    """``logits = scale * cosine + bias``, and what makes scores of them.

    Attributes:
        scale: the learned temperature as a factor, not as the logarithm that checkpoints hold.
        bias: added to every logit; 0 for models without one.
        scores: ``softmax`` over the texts of a picture (CLIP), or ``sigmoid`` of each (SigLIP).
    """

    scale: float
    bias: float
    scores: Scores


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer as data.

    Attributes:
        content: JSON as the ``tokenizers`` library writes and reads it.
        pad_token_id: what fills a text up.
        padding: ``longest`` where padding is never read, ``max-length`` where the model was trained
            on texts of one length.
    """

    content: str
    pad_token_id: int
    padding: Padding
