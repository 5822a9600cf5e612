"""From a finished graph to the files of one artifact, in the staging folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from exporters.clock import Clock
from exporters.embed_preprocess import embed_preprocess
from exporters.onnx_file import write_onnx
from exporters.plan import OPERATORS_SUFFIX, Plan, PlannedGraph
from exporters.proof import SpelledGraph, StagedArtifact
from exporters.quantize.staging import IrChange, Precise
from exporters.records import make_manifest
from exporters.shared_weights import SharedWeights, share_ir_weights, write_sharing_onnx
from vitpe_deploy.files import StagedFiles, sha256_of, total_size
from vitpe_deploy.limits import KEY as LIMITS_KEY
from vitpe_deploy.limits import limits_to_text
from vitpe_deploy.manifest import Manifest
from vitpe_deploy.pixels import PixelInput
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import ExportRequest, Format, Precision, Target
from vitpe_deploy.runtimes.ir_file import WEIGHTS_KEY

if TYPE_CHECKING:
    from concurrent.futures import Future

    from vitpe_deploy.sources.base import LoadedModel, Source


def target_of(kind: Format, request: ExportRequest) -> Target:
    """Whose kernels a format is spelled for: an IR always for OpenVINO."""
    return Target.OPENVINO if kind is Format.OPENVINO else request.target


class ArtifactWriter:
    """Writes the artifacts of one export."""

    def __init__(
        self,
        request: ExportRequest,
        source: Source,
        plan: Plan,
        clock: Clock,
        weights_sha256: Future[str],
    ) -> None:
        self._request = request
        self._source = source
        self._plan = plan
        self._clock = clock
        self._weights_sha256 = weights_sha256
        self._shared: Mapping[Format, SharedWeights] = {}

    @contextmanager
    def sharing(self, staging: StagedFiles) -> Iterator[None]:
        """Inside, files of one format share one data file, where the plan has buckets."""
        files = self._plan.buckets
        if files is None:
            yield
            return
        with ExitStack() as stack:
            self._shared = {
                kind: stack.enter_context(SharedWeights(staging.path(files.data_name(kind.value))))
                for kind in self._request.formats
            }
            yield
        self._shared = {}

    def stage(
        self,
        kind: Format,
        graph: PlannedGraph,
        loaded: LoadedModel,
        spelled: dict[Target, SpelledGraph],
        rule: str | None,
        staging: StagedFiles,
    ) -> tuple[StagedArtifact, Manifest]:
        """Write one artifact. Gives it with its unproved manifest."""
        request = self._request
        target = target_of(kind, request)
        chosen = spelled[target]
        name = graph.file_name(kind, request.target)
        precise = Precise(request, self._plan.outputs, name)
        if kind is Format.ORT:  # nothing reads values inside such a file
            chosen = dataclasses.replace(chosen, layer_values=())
        if kind is not Format.OPENVINO and request.precision is not Precision.FP32:
            with self._clock.step("quantize"):
                chosen = precise.onnx(chosen, graph, loaded)
        layout = self._plan.layout(request, loaded.facts)
        if isinstance(layout, PixelInput):
            with self._clock.step("optimise"):
                chosen = self._taking_pixels(chosen, layout, loaded.facts.preprocess)
        with self._clock.step("write"):
            manifest = make_manifest(
                request,
                self._source,
                loaded,
                chosen,
                kind=kind,
                target=target,
                size=graph.size,
                layout=layout,
                rule=rule,
                weights_sha256=self._weights_sha256.result(),
            )
            props = manifest.metadata_props()
            if self._plan.limits:
                props[LIMITS_KEY] = limits_to_text(self._plan.limits)
            if kind is Format.ONNX:
                staged = self._onnx(target, name, chosen, props, staging)
            elif kind is Format.ORT:
                staged = self._ort(target, name, chosen, props, staging)
            else:
                change = precise.ir_change(graph, loaded)
                staged = self._ir(target, name, chosen, props, staging, change)
            manifest = manifest.model_copy(
                update={
                    "files": tuple(p.name for p in staged.files),
                    "sha256": staged.sha256,
                    "size_bytes": total_size(staged.files),
                    **precise.manifest_fields(),
                }
            )
        return staged, manifest

    def _taking_pixels(
        self, chosen: SpelledGraph, layout: PixelInput, preprocess: Preprocess
    ) -> SpelledGraph:
        """A copy that takes pixels: another format may be made of the same graph."""
        model = chosen.model.clone()
        fp32 = self._request.precision is Precision.FP32
        run = embed_preprocess(model, layout, preprocess, may_fold=fp32)
        return dataclasses.replace(chosen, model=model, runs=(*chosen.runs, run))

    def _onnx(
        self,
        target: Target,
        name: str,
        chosen: SpelledGraph,
        props: dict[str, str],
        staging: StagedFiles,
    ) -> StagedArtifact:
        shared = self._shared.get(Format.ONNX)
        if shared is None:
            written = write_onnx(chosen.model, staging.path(name), props)
        else:
            written = write_sharing_onnx(chosen.model, staging.path(name), props, shared)
        for extra in written.paths[1:]:
            staging.path(extra.name)
        return StagedArtifact(
            Format.ONNX,
            target,
            written.paths[0],
            written.paths,
            written.sha256,
            chosen,
            len(chosen.model.graph),
        )

    def _ort(
        self,
        target: Target,
        name: str,
        chosen: SpelledGraph,
        props: dict[str, str],
        staging: StagedFiles,
    ) -> StagedArtifact:
        from exporters.ort_format import write_operators, write_ort

        path = staging.path(name)
        onnx_path = path.with_suffix(".onnx.tmp")
        written = write_onnx(chosen.model, onnx_path, props)
        try:
            write_ort(onnx_path, path)
        finally:
            for part in written.paths:
                part.unlink(missing_ok=True)
        write_operators(path, staging.path(f"{name}{OPERATORS_SUFFIX}"))
        return StagedArtifact(
            Format.ORT, target, path, (path,), sha256_of(path), chosen, len(chosen.model.graph)
        )

    def _ir(
        self,
        target: Target,
        name: str,
        chosen: SpelledGraph,
        props: dict[str, str],
        staging: StagedFiles,
        change: IrChange | None,
    ) -> StagedArtifact:
        from exporters.openvino_ir import convert

        xml = staging.path(name)
        shared = self._shared.get(Format.OPENVINO)
        if shared is not None:
            props = props | {WEIGHTS_KEY: shared.path.name}
        onnx_path = xml.with_suffix(".onnx.tmp")
        written = write_onnx(chosen.model, onnx_path, {})
        try:
            files, operations = convert(
                onnx_path,
                xml,
                props,
                change=change,
                half_weights=self._request.precision is Precision.FP16,
                limits=self._plan.limits,
            )
        finally:
            for path in written.paths:
                path.unlink(missing_ok=True)
        if shared is not None:
            share_ir_weights(xml, shared)
            files = (xml, shared.path)
        staging.path(files[1].name)
        return StagedArtifact(
            Format.OPENVINO, target, xml, files, sha256_of(xml), chosen, operations
        )
