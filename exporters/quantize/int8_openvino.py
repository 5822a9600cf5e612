"""Int8 for OpenVINO IR, by NNCF on the graph in standard operators.

Never on the graph with fused contrib attention: NNCF has to see the products to quantise around
them. Its transformer settings keep softmax, LayerNorm, GELU and residual adds float. SmoothQuant's
alpha is searched; its default costs Swin more than a point.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.quantize.candidates import FLOAT, Candidate, choose
from exporters.quantize.job import QuantizeJob
from vitpe_deploy.errors import MissingExtraError
from vitpe_deploy.request import Precision
from vitpe_deploy.results import CandidateRecord
from vitpe_deploy.runtimes.openvino import import_openvino

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALPHAS: dict[str, float] = {"nncf": -1.0, "nncf-smooth-0.15": 0.15, "nncf-smooth-0.5": 0.5}
"""SmoothQuant's alpha by the name of the method; negative is off."""


def quantize_ir(
    model: Any, read_again: Callable[[], Any], job: QuantizeJob
) -> tuple[Any, str, tuple[CandidateRecord, ...]]:
    """An OpenVINO model in int8, how it was made, and what else was tried.

    Args:
        model: a float32 ``openvino.Model``.
        read_again: gives a fresh one; NNCF may change the one it is given.
        job: precision, data and floor.

    Raises:
        MissingExtraError: nncf is not installed.
    """
    nncf = _import_nncf()
    if job.precision is Precision.INT8_WEIGHTS:
        with _quiet():
            compressed = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
        return compressed, "int8-weights", ()
    openvino = import_openvino()
    methods = tuple(_ALPHAS) if job.method not in _ALPHAS else (job.method,)
    made = {m: _quantize(nncf, read_again(), _ALPHAS[m], job) for m in methods}
    with tempfile.TemporaryDirectory(prefix="vitpe-int8-") as folder:

        def save(name: str, graph: Any) -> tuple[Path, ...]:
            xml = Path(folder) / f"{name}.xml"
            openvino.save_model(graph, str(xml), compress_to_fp16=False)
            return (xml, xml.with_suffix(".bin"))

        plain = Candidate(FLOAT, save(FLOAT, model))
        candidates = [Candidate(m, save(m, graph)) for m, graph in made.items()]
        chosen, records = choose(plain, candidates, "openvino", job)
    return made[chosen], chosen, records


def _quantize(nncf: Any, model: Any, alpha: float, job: QuantizeJob) -> Any:
    name = model.input(0).get_any_name()
    data = nncf.Dataset([{name: batch} for batch in job.data.calibrate])
    advanced = nncf.AdvancedQuantizationParameters(
        smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=alpha)
    )
    with _quiet():
        return nncf.quantize(
            model,
            data,
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(job.data.calibrate),
            advanced_parameters=advanced,
        )


def require_nncf() -> None:
    """Refuse early, without importing it.

    Raises:
        MissingExtraError: nncf is not installed.
    """
    if importlib.util.find_spec("nncf") is None:
        raise MissingExtraError("nncf", "int8")


def _import_nncf() -> Any:
    require_nncf()
    import_openvino()  # first, so that it is imported without telemetry
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("nncf")


@contextmanager
def _quiet() -> Iterator[None]:
    """NNCF's log lines and bars go nowhere: stdout and stderr are ours."""
    import contextlib
    import io
    import warnings

    logger = logging.getLogger("nncf")
    level, noise = logger.level, io.StringIO()
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(noise),
            contextlib.redirect_stderr(noise),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
