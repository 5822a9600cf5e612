"""What a layout of files answers: where each file lies, and what else has to lie there."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import ClassVar

from vitpe_deploy.manifest import SUFFIX, Manifest, TensorRecord
from vitpe_deploy.request import Resolution

VERSION = "1"
"""Servers count the versions of a model; an export is the first of its name."""

MAX_BATCH = 8
"""Most inputs of one run where the batch is symbolic: servers want a bound, the file has none."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One artifact under the name by which clients ask for it."""

    name: str
    manifest: Manifest

    @classmethod
    def of(cls, manifest: Manifest) -> ServedModel:
        """Named after its main file."""
        return cls(model_name(manifest.files[0]), manifest)

    @property
    def input(self) -> TensorRecord:
        """The one input of the file."""
        return self.manifest.inputs[0]

    @property
    def batched(self) -> bool:
        """Whether the file takes any batch."""
        return isinstance(self.input.shape[0], str)

    def example_shape(self) -> tuple[int, ...]:
        """Shape of one input that the file was proved with, batch 1 where the batch is free."""
        manifest = self.manifest
        sizes = [row.resolution for row in manifest.parity if row.resolution is not None]
        chosen = manifest.resolution or (sizes[0] if sizes else manifest.native_resolution)
        fixed = tuple(1 if isinstance(n, str) else n for n in self.input.shape)
        if chosen is None:
            return fixed
        batch = manifest.batch or 1
        return manifest.layout().shape(Resolution(*chosen), batch)


class Layout(ABC):
    """One way of laying out the files of an export."""

    name: ClassVar[str]

    @abstractmethod
    def place(self, file_name: str) -> PurePosixPath:
        """Where a file of an artifact lies below the output folder."""

    @abstractmethod
    def texts(self, models: Sequence[ServedModel]) -> Mapping[PurePosixPath, str]:
        """Further files, by their path below the output folder."""


class PlainFiles(Layout):
    """All files in the output folder: ``--layout files``."""

    name: ClassVar[str] = "files"

    def place(self, file_name: str) -> PurePosixPath:
        """The name itself."""
        return PurePosixPath(file_name)

    def texts(self, models: Sequence[ServedModel]) -> Mapping[PurePosixPath, str]:
        """Nothing."""
        del models
        return {}


def model_name(file_name: str) -> str:
    """What a server calls an artifact: its file's stem in letters that are safe in an address.

    ``x+rope-2d-384x384-fp32.onnx`` -> ``x-rope-2d-384x384-fp32``; IR files end in ``-openvino``, so
    that both formats of one export can be served side by side.
    """
    plain = file_name.removesuffix(SUFFIX)
    for suffix, ending in (
        (".onnx", ""),
        (".onnx.data", ""),
        (".xml", "-openvino"),
        (".bin", "-openvino"),
    ):
        if plain.endswith(suffix):
            return re.sub(r"[^A-Za-z0-9_.-]", "-", plain.removesuffix(suffix)) + ending
    return re.sub(r"[^A-Za-z0-9_.-]", "-", plain)


def versioned(file_name: str) -> PurePosixPath:
    """``<model>/1/<file>``: what both servers expect."""
    return PurePosixPath(model_name(file_name), VERSION, file_name)
