"""Text to token ids, by a tokenizer that lies beside the files as data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vitpe_deploy.errors import ArtifactError, MissingExtraError, SizeError, UsageError

if TYPE_CHECKING:
    from vitpe_deploy.pair_index import TokenizerRecord


class Tokens:
    """A tokenizer of the ``tokenizers`` library (extra ``text``)."""

    def __init__(self, folder: Path, record: TokenizerRecord) -> None:
        try:
            import tokenizers
        except ImportError:
            raise MissingExtraError("tokenizers", "text") from None
        self._record = record
        path = folder / record.file
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as problem:  # the library raises Exception itself
            raise ArtifactError(
                f"{path} is not a tokenizer: {str(problem).splitlines()[0][:200]}",
                hint="Export the pair again.",
            ) from problem
        # What a length means is said by the index, not by settings that were saved along.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def __call__(self, texts: Sequence[str], length: int | None) -> npt.NDArray[np.int64]:
        """Token ids [B, L].

        Args:
            texts: what to read.
            length: of a file that takes one length; None where it takes any.

        Raises:
            SizeError: a text is too long; names both numbers.
            UsageError: no text, or something else.
        """
        if not texts or not all(isinstance(text, str) for text in texts):
            raise UsageError("texts must be strings, at least one", hint="Give a list of prompts.")
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        most = self._record.max_length if length is None else length
        for text, row in zip(texts, rows, strict=True):
            if len(row) > most:
                raise SizeError(
                    f"the text {text[:40]!r} has {len(row)} tokens, this file takes {most}",
                    hint="Shorten it, or export with a larger --max-length.",
                )
        if length is not None:
            width = length
        elif self._record.padding == "max-length":
            width = self._record.max_length
        else:
            width = max(map(len, rows))
        ids = np.full((len(rows), width), self._record.pad_token_id, dtype=np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
        return ids
