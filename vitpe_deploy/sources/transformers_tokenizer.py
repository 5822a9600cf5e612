"""The tokenizer of a transformers folder as one JSON file; no code of it is needed to read that."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitpe_deploy.errors import SourceError
from vitpe_deploy.pairing import Padding, TokenizerFile

_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")


def read_tokenizer(
    location: str, model_type: str, file: Callable[[str], Path | None], *, local: bool
) -> TokenizerFile | None:
    """``tokenizer.json`` where there is one, else what the library makes of older files.

    Args:
        location: folder or hub id.
        model_type: of the config; SigLIP is trained on text of one length.
        file: gives the local path of one file of the model.
        local: whether only the disk may be used.

    Returns:
        None when the model has no tokenizer, or one that is code (sentencepiece alone).

    Raises:
        SourceError: files that cannot be read.
    """
    if not any((path := file(name)) is not None and path.is_file() for name in _FILES):
        return None
    path = file("tokenizer.json")
    if path is not None and path.is_file():
        content = path.read_text(encoding="utf-8")
    else:
        converted = _converted(location, local=local)
        if converted is None:
            return None
        content = converted
    padding: Padding = "max-length" if model_type.startswith("siglip") else "longest"
    return TokenizerFile(content, _pad_token_id(content, file), padding)


def _converted(location: str, *, local: bool) -> str | None:
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(location, local_files_only=local)
    except Exception as problem:  # whatever the files make the library raise
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        raise SourceError(
            f"the tokenizer in {location} cannot be read: {lines[0][:200]}",
            hint="Save it again with save_pretrained, or remove its files.",
        ) from problem
    backend = getattr(loaded, "backend_tokenizer", None)
    return None if backend is None else str(backend.to_str())


def _pad_token_id(content: str, file: Callable[[str], Path | None]) -> int:
    """The id of the token that the folder pads with; 0 where it says none."""
    token = None
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = file(name)
        if token is None and path is not None and path.is_file():
            token = _json(path).get("pad_token")
    if isinstance(token, Mapping):
        token = token.get("content")
    try:
        document = json.loads(content)
        known = {t["content"]: int(t["id"]) for t in document.get("added_tokens", ())}
        vocabulary = document["model"].get("vocab", {})
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise SourceError(f"tokenizer.json is not a tokenizer: {problem}") from problem
    if isinstance(vocabulary, Mapping):
        known = {**vocabulary, **known}
    return int(known.get(token, 0))


def _json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise SourceError(f"{path} cannot be read: {problem}") from problem
    return document if isinstance(document, Mapping) else {}
