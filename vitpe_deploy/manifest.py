"""What travels with an artifact: ``<file>.manifest.json`` beside it, and ``vitpe.*`` inside it.

The model file says what it is, the manifest also how it was proved. Neither holds a date or a host
name; the model file holds no path and no verdict, so that the same input gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from vitpe_deploy.errors import ArtifactError
from vitpe_deploy.files import finish_interrupted
from vitpe_deploy.inputs import InputLayout, layout_from_dict
from vitpe_deploy.pairing import Scores
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import ModelRequest, ResampleOverride, Resolution
from vitpe_deploy.results import CandidateRecord, LayerVerdict, ParityRow, Value, Verdict

SUFFIX = ".manifest.json"
PREFIX = "vitpe."


class TensorRecord(Value):
    """Name, shape and type of an input or output; symbolic dimensions are text."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str


class SourceRecord(Value):
    """How to build the PyTorch model again."""

    model: str
    encoding: str | None = None
    weights: str | None = None
    kwargs: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    interpolation: str | None = None
    antialias: bool | None = None
    align_corners: bool | None = None
    tower: str | None = None
    max_length: int | None = None
    pos_embed: str | None = None

    @classmethod
    def from_request(cls, request: ModelRequest) -> SourceRecord:
        """The record of a request."""
        return cls(
            model=request.model,
            encoding=request.encoding,
            weights=None if request.weights is None else str(request.weights),
            kwargs=dict(request.kwargs),
            seed=request.seed,
            interpolation=request.resample.interpolation,
            antialias=request.resample.antialias,
            align_corners=request.resample.align_corners,
            tower=request.tower,
            max_length=request.max_length,
            pos_embed=request.pos_embed,
        )

    def to_request(self) -> ModelRequest:
        """The request that was recorded."""
        return ModelRequest(
            model=self.model,
            encoding=self.encoding,
            weights=None if self.weights is None else Path(self.weights),
            kwargs=self.kwargs,
            seed=self.seed,
            resample=ResampleOverride(self.interpolation, self.antialias, self.align_corners),
            tower=self.tower,
            max_length=self.max_length,
            pos_embed=self.pos_embed,
        )


class PairingRecord(Value):
    """How the embeddings of two towers are compared; see :class:`~vitpe_deploy.pairing.Pairing`."""

    scale: float
    bias: float
    scores: Scores


class Manifest(Value):
    """Everything known of one artifact.

    Attributes:
        files: names of the files of the artifact, the main one first; all in one folder.
        source: how to build the PyTorch model again; null for a module passed in from Python.
        reference: what parity compared with: PyTorch, or what stands in for it where the source
            is a file.
        resolution: null when height and width are symbolic.
        verified_resolutions: every size with a parity row.
        pairing: how the embedding is compared with that of the other tower, when there is one.
        labels: names of the classes in the order of the logits; empty when not known.
        method: how the precision was made, when there are several ways.
        candidates: the ways that were measured.
        calibration: where the calibration data were.
        min_agreement: least agreement of an int8 file; null where parity is by tolerance.
        layer_values: values of the graph that hold block outputs, for ``--layers``.
        kept_tokens: start and end of the tokens that the last block computes, when not all.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=()
    )

    schema_: Literal["vitpe.manifest/1"] = Field(default="vitpe.manifest/1", alias="schema")
    version: str
    files: tuple[str, ...]
    format: Literal["onnx", "openvino", "ort"]
    sha256: str
    size_bytes: int
    model: str
    source: SourceRecord | None
    weights: str
    weights_sha256: str
    reference: str = "pytorch"
    encoding: str | None
    encoding_params: dict[str, Any]
    resample_rule: str | None
    native_resolution: tuple[int, int] | None
    resolution: tuple[int, int] | None
    resolution_range: tuple[int, int, int] | None = None
    patch_size: tuple[int, int]
    prefix_tokens: int
    dynamic: str
    batch: int | None
    precision: str
    method: str | None = None
    candidates: tuple[CandidateRecord, ...] = ()
    calibration: str | None = None
    min_agreement: float | None = None
    target: str
    opset: int
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    layer_values: tuple[str, ...] = ()
    kept_tokens: tuple[int, int] | None = None
    preprocess: dict[str, Any]
    labels: tuple[str, ...] = ()
    pairing: PairingRecord | None = None
    input_layout: dict[str, Any]
    tolerance: dict[str, float]
    verdict: Verdict
    parity: tuple[ParityRow, ...] = ()
    layers: tuple[LayerVerdict, ...] = ()

    def metadata_props(self) -> dict[str, str]:
        """What is written into the model file itself, as text."""
        facts: Mapping[str, Any] = {
            "schema": self.schema_,
            "version": self.version,
            "model": self.model,
            "weights_sha256": self.weights_sha256,
            "encoding": self.encoding or "",
            "encoding_params": self.encoding_params,
            "resample_rule": self.resample_rule or "",
            "native_resolution": self.native_resolution,
            "resolution": self.resolution,
            "resolution_range": self.resolution_range,
            "patch_size": self.patch_size,
            "prefix_tokens": self.prefix_tokens,
            "dynamic": self.dynamic,
            "precision": self.precision,
            "outputs": [o.name for o in self.outputs],
            "preprocess": self.preprocess,
            "input": self.input_layout,
        }
        return {
            f"{PREFIX}{key}": value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            for key, value in facts.items()
        }

    def as_json(self) -> str:
        """The document that is written."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"

    def preprocessing(self) -> Preprocess:
        """How pixels become inputs."""
        return Preprocess.from_dict(self.preprocess)

    def layout(self) -> InputLayout:
        """What the artifact takes."""
        return layout_from_dict(self.input_layout)

    def size(self) -> Resolution | None:
        """The one size of a static artifact."""
        return None if self.resolution is None else Resolution(*self.resolution)


def manifest_path(artifact: Path) -> Path:
    """``x.onnx`` -> ``x.onnx.manifest.json``."""
    return artifact.with_name(artifact.name + SUFFIX)


def read_manifest(artifact: Path) -> Manifest:
    """The manifest beside an artifact.

    Raises:
        ArtifactError: the artifact or its manifest is missing, damaged, or incomplete.
    """
    finish_interrupted(artifact.parent)
    if not artifact.is_file():
        raise ArtifactError(f"{artifact} does not exist")
    path = manifest_path(artifact)
    if not path.is_file():
        raise ArtifactError(
            f"{artifact.name} has no manifest: {path} is missing",
            hint="Keep the files of an export together.",
        )
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as problem:
        lines = str(problem).splitlines()
        raise ArtifactError(f"{path} is not a manifest: {' '.join(lines[:3])[:200]}") from problem
    for name in manifest.files:
        if Path(name).name != name:
            raise ArtifactError(f"{path} names a file outside its folder: {name!r}")
        if not (artifact.parent / name).is_file():
            raise ArtifactError(
                f"{artifact.name} is incomplete: {name} is missing in {artifact.parent}",
                hint=f"Move {name} along with {artifact.name}.",
            )
    return manifest
