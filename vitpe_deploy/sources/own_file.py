"""A file of ours with its manifest, whose graph is respelled and not changed otherwise.

Everything that a manifest says of the model stays true of the new file, so the model itself is not
needed: its facts are read from there, and the referee is the original file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from vitpe_deploy.errors import ArtifactError, UnsupportedError
from vitpe_deploy.manifest import Manifest, manifest_path, read_manifest
from vitpe_deploy.request import Dynamic, ExportRequest, Format, ModelRequest, Precision, Resolution
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, SizeRule, Source
from vitpe_deploy.sources.file_flags import refuse_model_flags


class OwnFile(Source):
    """``path/to/ours.onnx`` as it is."""

    def __init__(self, request: ModelRequest, manifest: Manifest) -> None:
        super().__init__(request)
        refuse_model_flags(request)
        self.path = Path(request.model)
        self.manifest = manifest

    def facts(self) -> ModelFacts:
        """What the manifest says."""
        said = self.manifest
        size = said.size()
        native = None if said.native_resolution is None else Resolution(*said.native_resolution)
        names = tuple(output.name for output in said.outputs)
        return ModelFacts(
            name=self.path.stem,
            spec=self.request.model,
            native=size or native,
            size_rule=SizeRule.for_patches(
                said.patch_size, "refuses", fixed=size, fixed_reason="the file has one size"
            ),
            grid_divisor=said.patch_size,
            encoding=said.encoding,
            encoding_params=said.encoding_params,
            prefix_tokens=said.prefix_tokens,
            outputs=names,
            default_outputs=names,
            depth=0,
            input=said.layout(),
            preprocess=said.preprocessing(),
            labels=said.labels,
            resample_rule=said.resample_rule,
        )

    def load(self) -> LoadedModel:
        """Refused: nothing is traced.

        Raises:
            UnsupportedError: always.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(
            f"{self.path.name} is an ONNX file and holds no PyTorch module",
            hint="Name the source model instead.",
        )


def own_file(request: ExportRequest) -> OwnFile | None:
    """The file to respell, when that is all the request asks for.

    None for another source, for files without a manifest of ours, and when the graph itself must
    change: another size, batch, precision or format.

    Raises:
        UsageError: flags that describe a network.
    """
    path = Path(request.model.model)
    if path.suffix != ".onnx" or not manifest_path(path).is_file():
        return None
    try:
        manifest = read_manifest(path)
    except ArtifactError:
        return None
    size = manifest.size()
    asks_for_change = (
        any(wanted != size for wanted in request.resolutions)
        or bool(request.buckets)
        or request.dynamic not in (Dynamic.NONE, Dynamic(manifest.dynamic))
        or request.size_range is not None
        or request.batch not in (1, manifest.batch)
        or request.precision not in (Precision.FP32, Precision(manifest.precision))
        or request.calibration is not None
        or request.formats != (Format.ONNX,)
        or bool(request.outputs)
    )
    return None if asks_for_change else OwnFile(request.model, manifest)
