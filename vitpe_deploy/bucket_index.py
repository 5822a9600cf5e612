"""The index of buckets: ``<model>-buckets-<precision>.onnx.buckets.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from vitpe_deploy.buckets import SUFFIX
from vitpe_deploy.files import finish_interrupted
from vitpe_deploy.index_file import read_index_file
from vitpe_deploy.request import Resolution
from vitpe_deploy.results import Value


class Bucket(Value):
    """One static file, by its name in the folder of the index."""

    resolution: tuple[int, int]
    file: str

    @property
    def size(self) -> Resolution:
        """Height and width in pixels."""
        return Resolution(*self.resolution)


class BucketIndex(Value):
    """What ``vitpe_deploy.load`` needs to choose among buckets.

    Attributes:
        weights: the data file that all of them point into.
        choice: how a bucket is chosen for a picture, see :func:`vitpe_deploy.buckets.nearest`.
        fit: how a picture is brought to it, a name of :data:`vitpe_deploy.preprocess.FITS`.
        buckets: smallest first.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=()
    )

    schema_: Literal["vitpe.buckets/1"] = Field(default="vitpe.buckets/1", alias="schema")
    version: str
    model: str
    format: Literal["onnx", "openvino", "ort"]
    precision: str
    weights: str
    choice: Literal["nearest-shape-then-area"] = "nearest-shape-then-area"
    fit: str
    buckets: tuple[Bucket, ...] = Field(min_length=1)

    def as_json(self) -> str:
        """The document that is written."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


def find_indexes(folder: Path) -> list[Path]:
    """Every index of buckets in a folder."""
    finish_interrupted(folder)
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_index(path: Path) -> BucketIndex:
    """An index from its file.

    Raises:
        ArtifactError: missing, damaged, or files that it lists are missing.
    """
    return read_index_file(
        path,
        BucketIndex,
        what="an index of buckets",
        whole="the buckets",
        files=lambda index: (index.weights, *(bucket.file for bucket in index.buckets)),
    )


def bucket_files(path: Path) -> list[Path]:
    """The main file of every bucket of an index."""
    return [path.with_name(bucket.file) for bucket in read_index(path).buckets]
