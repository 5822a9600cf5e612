"""``vitpe_deploy.load_pair``: pictures and texts compared, with prompts embedded once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vitpe_deploy.deploy.choice import choose_runtime
from vitpe_deploy.deploy.loader import LoadedArtifact, load
from vitpe_deploy.deploy.opened import Opened
from vitpe_deploy.deploy.tokens import Tokens
from vitpe_deploy.errors import UnsupportedError, UsageError
from vitpe_deploy.manifest import PairingRecord
from vitpe_deploy.pair_index import PairIndex, find_pair, read_pair
from vitpe_deploy.pairing import EMBEDDING, NORMALIZED

if TYPE_CHECKING:
    Array: TypeAlias = npt.NDArray[Any]

MAX_PROMPTS = 4096
"""Prompts whose embeddings are kept; the ones used longest ago go first."""


def load_pair(
    path: str | Path,
    *,
    device: str = "CPU",
    runtime: str | None = None,
    threads: int | None = None,
    cache: str | Path | bool | None = None,
) -> LoadedPair:
    """Load both towers of a model that was exported with ``--tower both``.

        with vitpe_deploy.load_pair("out") as pair:
            pair.scores("cat.jpg", ["a photo of a cat", "a photo of a dog"])   # [1, 2]

    Args:
        path: the index of a pair, or the folder of one.
        device: in the engine's own words: CPU, GPU.1, NPU, AUTO.
        runtime: onnxruntime or openvino; what the files and the device go with for None.
        threads: threads of each engine.
        cache: as :func:`vitpe_deploy.load` takes it.

    Raises:
        ArtifactError: a file is missing, damaged or not ours.
        DeviceError: no such device here.
        UsageError: several pairs in the folder, or no such engine.
    """
    engine = choose_runtime(Path("x.onnx"), device, runtime)
    index = find_pair(Path(path), ".onnx" if engine == "onnxruntime" else ".xml")
    return LoadedPair(
        index,
        read_pair(index),
        {"device": device, "runtime": runtime, "threads": threads, "cache": cache},
    )


class LoadedPair(Opened):
    """Two towers in their engines.

    Attributes:
        path: the index.
        index: what it says.
        vision: the tower of pictures.
        text: the tower of text.
    """

    def __init__(self, path: Path, index: PairIndex, options: dict[str, Any]) -> None:
        self.path = path
        self.index = index
        self._tokens: Tokens | None = None
        self._prompts: dict[str, Array] = {}
        self.vision = _tower(path.with_name(index.vision), options)
        try:
            self.text = _tower(path.with_name(index.text), options)
        except BaseException:
            self.vision.close()
            raise

    def close(self) -> None:
        """Let go of both engines and of the prompts; a second call does nothing."""
        self.vision.close()
        self.text.close()
        self._prompts.clear()

    def embed_pictures(self, pictures: Any, **options: Any) -> Array:
        """Embeddings of length 1, [B, D]; pictures and options as an artifact takes them."""
        return _unit(self.vision(pictures, **options))

    def embed_texts(self, texts: str | Sequence[str]) -> Array:
        """Embeddings of length 1, [B, D]; every text is run once and kept.

        Raises:
            SizeError: a text is longer than the tower takes.
            UnsupportedError: the source of the model had no tokenizer.
        """
        wanted = [texts] if isinstance(texts, str) else list(texts)
        fresh = [text for text in dict.fromkeys(wanted) if text not in self._prompts]
        found = dict(
            zip(fresh, self.embed_tokens(self.tokens(fresh)), strict=True) if fresh else ()
        )
        rows = [self._prompts[t] if t in self._prompts else found[t] for t in wanted]
        if not rows:
            raise UsageError("there are no texts", hint="Give at least one.")
        for text, row in zip(wanted, rows, strict=True):
            self._prompts.pop(text, None)
            self._prompts[text] = row
        while len(self._prompts) > MAX_PROMPTS:
            self._prompts.pop(next(iter(self._prompts)))
        return np.stack(rows)

    def embed_tokens(self, ids: Array) -> Array:
        """Embeddings of length 1 of token ids [B, L], for a tokenizer of your own."""
        return _unit(self.text(ids))

    def tokens(self, texts: Sequence[str]) -> Array:
        """Token ids [B, L], padded as the tower wants them."""
        record = self.index.tokenizer
        if record is None:
            raise UnsupportedError(
                f"{self.index.model} came without a tokenizer",
                hint="Tokenize with your own, and pass the ids to embed_tokens.",
            )
        if self._tokens is None:
            self._tokens = Tokens(self.path.parent, record)
        size = self.text.size
        return self._tokens(texts, None if size is None else size.width)

    def logits(self, pictures: Any, texts: str | Sequence[str], **options: Any) -> Array:
        """``scale * cosine + bias``, [pictures, texts], as the model was trained.

        Raises:
            UnsupportedError: the model does not say how its embeddings are compared.
        """
        pairing = self._pairing()
        cosine = self.embed_pictures(pictures, **options) @ self.embed_texts(texts).T
        values: Array = cosine * np.float32(pairing.scale) + np.float32(pairing.bias)
        return values

    def scores(self, pictures: Any, texts: str | Sequence[str], **options: Any) -> Array:
        """Probabilities [pictures, texts]: over the texts of a picture, or of each by itself."""
        return self.scores_of(self.logits(pictures, texts, **options))

    def scores_of(self, logits: Array) -> Array:
        """What :meth:`scores` makes of :meth:`logits`."""
        wide = logits.astype(np.float64)
        if self._pairing().scores == "sigmoid":
            return _float32(np.exp(-np.logaddexp(0, -wide)))
        shifted = np.exp(wide - wide.max(axis=1, keepdims=True))
        return _float32(shifted / shifted.sum(axis=1, keepdims=True))

    def _pairing(self) -> PairingRecord:
        if self.index.pairing is None:
            raise UnsupportedError(
                f"{self.index.model} does not say how its embeddings are compared",
                hint="Compare embed_pictures and embed_texts yourself.",
            )
        return self.index.pairing


def _tower(path: Path, options: dict[str, Any]) -> LoadedArtifact:
    loaded = load(path, **options)
    if not isinstance(loaded, LoadedArtifact):
        raise UsageError(f"{path} lists buckets, a pair has one file per tower")
    return loaded


def _unit(outputs: dict[str, Array]) -> Array:
    """The normalised embedding, computed here where the file gives it as it is.

    Raises:
        UsageError: the file gives no embedding.
    """
    if NORMALIZED in outputs:
        return outputs[NORMALIZED]
    if EMBEDDING not in outputs:
        raise UsageError(
            f"the file gives no embedding but {', '.join(outputs)}",
            hint=f"Export with --outputs {NORMALIZED}.",
        )
    values = outputs[EMBEDDING]
    normalized: Array = values / np.linalg.norm(values, axis=-1, keepdims=True)
    return normalized


def _float32(array: Array) -> Array:
    return array.astype(np.float32)
