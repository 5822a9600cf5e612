"""What a precision is made from, and what comes of it: frozen values."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from vitpe_deploy.calibration import CalibrationData
from vitpe_deploy.request import Precision
from vitpe_deploy.results import CandidateRecord


@dataclass(frozen=True, slots=True)
class QuantizeJob:
    """How one graph is to be made smaller or faster.

    Attributes:
        artifact: how records name the file.
        outputs: names of the outputs whose agreement counts.
        data: batches of the file's input, those that calibrate and those that judge.
        floor: smallest agreement that a chosen candidate should have.
        method: one way of making int8, or ``auto``.
    """

    artifact: str
    precision: Precision
    outputs: tuple[str, ...]
    data: CalibrationData
    floor: float
    method: str
    threads: int | None


@dataclass(frozen=True, slots=True)
class QuantizedGraph:
    """A graph in another precision, how it was made, and what else was tried."""

    model: ir.Model
    method: str
    candidates: tuple[CandidateRecord, ...]
