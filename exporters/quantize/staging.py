"""Between a finished float32 graph and the file: the precision that was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from exporters.plan import PlannedGraph
from exporters.proof import SpelledGraph
from exporters.quantize.job import QuantizeJob
from vitpe_deploy.calibration import RANDOM, CalibrationData, calibration_data
from vitpe_deploy.request import ExportRequest, Precision
from vitpe_deploy.results import CandidateRecord

if TYPE_CHECKING:
    from vitpe_deploy.sources.base import LoadedModel

IrChange: TypeAlias = Callable[[Any, Callable[[], Any]], Any]


class Precise:
    """The precision of one artifact, and afterwards what was done for it."""

    def __init__(self, request: ExportRequest, outputs: tuple[str, ...], artifact: str) -> None:
        self._request = request
        self._outputs = outputs
        self._artifact = str(request.output_dir / artifact)
        self._method: str | None = None
        self._candidates: tuple[CandidateRecord, ...] = ()

    def onnx(self, spelled: SpelledGraph, graph: PlannedGraph, loaded: LoadedModel) -> SpelledGraph:
        """The graph in the precision of the request; in fp32 the one given."""
        if self._request.precision is Precision.FP32:
            return spelled
        from exporters.quantize.onnx_graph import quantize_graph

        made = quantize_graph(spelled.model, self._job(graph, loaded))
        self._method, self._candidates = made.method, made.candidates
        present = {v.name for n in made.model.graph for v in n.outputs}
        kept = tuple(name for name in spelled.layer_values if name in present)
        return dataclasses.replace(spelled, model=made.model, layer_values=kept)

    def ir_change(self, graph: PlannedGraph, loaded: LoadedModel) -> IrChange | None:
        """What is to be done to an OpenVINO model before it is saved."""
        if not self._request.precision.by_agreement:
            return None
        from exporters.quantize.int8_openvino import quantize_ir

        job = self._job(graph, loaded)

        def change(model: Any, read_again: Callable[[], Any]) -> Any:
            made, self._method, self._candidates = quantize_ir(model, read_again, job)
            return made

        return change

    def manifest_fields(self) -> dict[str, Any]:
        """What the manifest says of it."""
        request = self._request
        return {
            "method": self._method,
            "candidates": self._candidates,
            "calibration": request.calibration,
            "min_agreement": request.min_agreement if request.precision.by_agreement else None,
        }

    def _job(self, graph: PlannedGraph, loaded: LoadedModel) -> QuantizeJob:
        request = self._request
        size, batch = graph.cases[0]
        data = CalibrationData((), (), 0, 0)
        if request.precision is not Precision.INT8_WEIGHTS:
            data = calibration_data(
                request.calibration or RANDOM,
                loaded.facts.input,
                size,
                batch,
                loaded.facts.preprocess,
            )
        return QuantizeJob(
            artifact=self._artifact,
            precision=request.precision,
            outputs=self._outputs,
            data=data,
            floor=request.min_agreement,
            method=request.int8_method,
            threads=request.threads,
        )
