"""The index of a pair of towers: ``<model>-pair-<precision>.onnx.pair.json``, and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.files import StagedFiles, finish_interrupted
from vitpe_deploy.index_file import read_index_file
from vitpe_deploy.manifest import Manifest, PairingRecord
from vitpe_deploy.pairing import Padding, TokenizerFile
from vitpe_deploy.results import Value

SUFFIX = ".pair.json"
TOKENIZER_SUFFIX = ".tokenizer.json"


class TokenizerRecord(Value):
    """How text becomes token ids.

    Attributes:
        file: JSON of the ``tokenizers`` library, in the folder of the index.
        max_length: tokens of the longest text.
        pad_token_id: what fills a text up.
        padding: to the longest text of a batch, or always to ``max_length``.
    """

    file: str
    max_length: int
    pad_token_id: int
    padding: Padding


class PairIndex(Value):
    """Two files that belong together.

    Attributes:
        vision: main file of the tower of pictures.
        text: main file of the tower of text.
        pairing: how embeddings are compared; null when the model does not say.
        tokenizer: null when the source had none.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=()
    )

    schema_: Literal["vitpe.pair/1"] = Field(default="vitpe.pair/1", alias="schema")
    version: str
    model: str
    format: Literal["onnx", "openvino", "ort"]
    vision: str
    text: str
    pairing: PairingRecord | None
    tokenizer: TokenizerRecord | None

    def as_json(self) -> str:
        """The document that is written."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


def is_pair(path: Path) -> bool:
    """Whether the name is that of the index of a pair."""
    return path.name.endswith(SUFFIX)


def write_pair(
    staging: StagedFiles,
    stem: str,
    vision: Manifest,
    text: Manifest,
    tokenizer: TokenizerFile | None,
) -> Path:
    """Stage the index of two files of one format, and the tokenizer beside it. Gives its path."""
    suffix = Path(vision.files[0]).suffix
    name, tokens = f"{stem}{suffix}{SUFFIX}", f"{stem}{suffix}{TOKENIZER_SUFFIX}"
    record = None
    if tokenizer is not None:
        staging.path(tokens).write_text(tokenizer.content, encoding="utf-8")
        record = TokenizerRecord(
            file=tokens,
            max_length=int(text.input_layout["max_length"]),
            pad_token_id=tokenizer.pad_token_id,
            padding=tokenizer.padding,
        )
    index = PairIndex(
        version=vision.version,
        model=vision.model,
        format=vision.format,
        vision=vision.files[0],
        text=text.files[0],
        pairing=vision.pairing or text.pairing,
        tokenizer=record,
    )
    staging.path(name).write_text(index.as_json(), encoding="utf-8")
    return staging.folder / name


def find_pair(path: Path, suffix: str) -> Path:
    """The index that ``path`` means: itself, or that of a folder; ``suffix`` breaks ties.

    Raises:
        ArtifactError: none there.
        UsageError: several.
    """
    if not path.is_dir():
        return path
    finish_interrupted(path)
    found = sorted(path.glob(f"*{SUFFIX}"))
    same = [f for f in found if f.name.endswith(f"{suffix}{SUFFIX}")] or found
    if not same:
        raise ArtifactError(
            f"{path} holds no pair of towers (no *{SUFFIX})",
            hint="Export a model with two towers with --tower both.",
        )
    if len(same) > 1:
        listed = ", ".join(file.name for file in same)
        raise UsageError(f"{path} holds several pairs: {listed}", hint="Name one of them.")
    return same[0]


def read_pair(path: Path) -> PairIndex:
    """An index from its file.

    Raises:
        ArtifactError: missing, damaged, or files that it lists are missing.
    """
    return read_index_file(
        path, PairIndex, what="a pair of towers", whole="the pair", files=_listed
    )


def _listed(index: PairIndex) -> tuple[str, ...]:
    tokenizer = () if index.tokenizer is None else (index.tokenizer.file,)
    return index.vision, index.text, *tokenizer
