"""Three ways to read a text that is longer than a text tower takes. No torch: this runs on devices.

* :func:`truncate_tail` drops what comes after the limit;
* :func:`keep_spans` drops something else than the parts that matter;
* :func:`split_chunks`, :func:`encode_chunks` encode everything in pieces and average.

None happens by itself: :meth:`TextWindow.pad`, the plain way, refuses a long text. Token ids come
from a tokenizer with start and end tokens, without padding: ``[start, word, ..., word, end]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitpe_deploy.errors import SizeError, UsageError
from vitpe_deploy.text_length import too_long

TokenIds: TypeAlias = NDArray[np.int64]
Embeddings: TypeAlias = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class TextWindow:
    """What a text tower reads at once.

    Attributes:
        max_length: tokens, start and end included.
        start_id: first token of every text; None for tokenizers without one.
        end_id: last token of every text, where the tower reads it.
        pad_id: fills up behind the end; 0 in the original CLIP, the end token in transformers.
    """

    max_length: int = 77
    start_id: int | None = 49406
    end_id: int = 49407
    pad_id: int = 0

    def __post_init__(self) -> None:
        if self.room < 1:
            raise UsageError(
                f"max_length {self.max_length} leaves no room between start and end token"
            )

    @property
    def _start(self) -> list[int]:
        return [] if self.start_id is None else [self.start_id]

    @property
    def room(self) -> int:
        """Tokens between start and end."""
        return self.max_length - len(self._start) - 1

    def words(self, ids: Sequence[int]) -> list[int]:
        """The tokens between start and end.

        Raises:
            UsageError: the text does not begin with the start or finish with the end token.
        """
        start = len(self._start)
        if len(ids) <= start or list(ids[:start]) != self._start or ids[-1] != self.end_id:
            frame = ", ".join(str(token) for token in [*self._start, "...", self.end_id])
            raise UsageError(
                f"token ids must be [{frame}], got {_excerpt(ids)}",
                hint="Tokenize with special tokens and without padding.",
            )
        return [int(token) for token in ids[start:-1]]

    def pad(self, ids: Sequence[int]) -> TokenIds:
        """A text that fits, padded to ``max_length``: int64 [max_length].

        Raises:
            SizeError: it does not fit; the message has both lengths.
        """
        self.words(ids)
        if len(ids) > self.max_length:
            raise too_long(len(ids), self.max_length)
        return np.array([*ids] + [self.pad_id] * (self.max_length - len(ids)), dtype=np.int64)

    def frame(self, words: Sequence[int]) -> TokenIds:
        """Words that fit, between start and end token, padded: int64 [max_length]."""
        return self.pad([*self._start, *words, self.end_id])


def truncate_tail(ids: Sequence[int], window: TextWindow) -> TokenIds:
    """The first tokens and the end token, as CLIP's own loader with ``truncate=True``.

    Returns:
        int64 [max_length].
    """
    return window.frame(window.words(ids)[: window.room])


def keep_spans(
    ids: Sequence[int], spans: Iterable[tuple[int, int]], window: TextWindow
) -> TokenIds:
    """The given spans, and as much of the beginning as still fits, in the order of the text.

    Args:
        ids: the whole text.
        spans: half-open ranges of indices into ``ids``, as a tokenizer's ``char_to_token`` counts
            them; they may overlap and may include the start or end token.
        window: what the tower reads.

    Returns:
        int64 [max_length].

    Raises:
        UsageError: a span that is empty or outside the text.
        SizeError: the spans alone do not fit; the message has both numbers.
    """
    words = window.words(ids)
    offset = len(ids) - 1 - len(words)  # index of the first word in ids
    kept: set[int] = set()
    for first, last in spans:
        if not 0 <= first < last <= len(ids):
            raise UsageError(f"span ({first}, {last}) is not inside a text of {len(ids)} tokens")
        kept.update(range(first - offset, last - offset))
    kept &= set(range(len(words)))
    if len(kept) > window.room:
        raise SizeError(
            f"the spans hold {len(kept)} tokens, more than the {window.room} that fit",
            hint="Give fewer spans, or encode in chunks.",
        )
    others = (index for index in range(len(words)) if index not in kept)
    filling = [index for index, _ in zip(others, range(window.room - len(kept)), strict=False)]
    return window.frame([words[index] for index in sorted([*kept, *filling])])


def split_chunks(
    ids: Sequence[int], window: TextWindow, *, overlap: int = 0
) -> tuple[TokenIds, NDArray[np.float64]]:
    """Consecutive pieces of a text, each with its own start and end token.

    Args:
        ids: the whole text.
        window: what the tower reads.
        overlap: words that a piece repeats from the one before.

    Returns:
        The pieces, int64 [K, max_length], and the share of the words that each is first to show,
        [K], which sums to 1.

    Raises:
        UsageError: the overlap leaves nothing new for the next piece.
    """
    if not 0 <= overlap < window.room:
        raise UsageError(f"overlap must be 0..{window.room - 1}, got {overlap}")
    words = window.words(ids)
    step = window.room - overlap
    starts = range(0, max(len(words) - overlap, 1), step)
    pieces = np.stack([window.frame(words[i : i + window.room]) for i in starts])
    seen = np.array([0, *(min(i + window.room, len(words)) for i in starts)], dtype=np.float64)
    new = np.diff(seen)
    return pieces, new / new.sum() if new.sum() else np.ones(len(new))


def encode_chunks(
    encode: Callable[[TokenIds], Embeddings],
    ids: Sequence[int],
    window: TextWindow,
    *,
    overlap: int = 0,
) -> Embeddings:
    """Encode a text of any length in pieces and average, each weighted by its share of the words.

    A text that fits in one piece gives exactly what ``encode`` gives.

    Args:
        encode: int64 [K, max_length] -> pooled embeddings [K, P]; any runtime.
        ids: the whole text.
        window: what the tower reads.
        overlap: words that a piece repeats from the one before.

    Returns:
        [P]
    """
    pieces, weights = split_chunks(ids, window, overlap=overlap)
    embeddings = np.asarray(encode(pieces))
    if embeddings.ndim != 2 or len(embeddings) != len(pieces):
        raise UsageError(
            f"encode must return [{len(pieces)}, P] for {len(pieces)} pieces, "
            f"got {list(embeddings.shape)}"
        )
    if len(pieces) == 1:
        only: Embeddings = embeddings[0]
        return only
    mean: Embeddings = (weights @ embeddings.astype(np.float64)).astype(embeddings.dtype)
    return mean


def _excerpt(ids: Sequence[int]) -> str:
    shown = ", ".join(str(int(token)) for token in ids[:4])
    return f"[{shown}, ... ] of {len(ids)} tokens" if len(ids) > 4 else f"[{shown}]"
