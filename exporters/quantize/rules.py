"""What of a precision can be refused from the flags and the facts of the model alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import INT8_METHODS, ExportRequest, Format, Precision

if TYPE_CHECKING:
    from vitpe_deploy.inputs import InputLayout


def check_precision(request: ExportRequest, layout: InputLayout) -> None:
    """Refuse contradictory flags, missing calibration data and missing packages.

    Raises:
        UsageError: flags that contradict, or int8 without calibration data.
        ArtifactError: calibration data that cannot be used.
        MissingExtraError: int8 for OpenVINO IR without NNCF.
    """
    precision, method = request.precision, request.int8_method
    if precision is Precision.FP32 and request.calibration is not None:
        raise UsageError(
            "--calibration has no meaning for --precision fp32",
            hint="Leave it out, or ask for --precision int8 or fp16.",
        )
    if method != "auto" and precision is not Precision.INT8:
        raise UsageError(
            f"--int8-method {method} is for --precision int8, got {precision}",
            hint="Leave it out, or add --precision int8.",
        )
    if precision is Precision.INT8 and request.calibration is None:
        raise UsageError(
            "--precision int8 needs calibration data",
            hint="Give --calibration DIR of pictures like those it will see, or an .npz of inputs. "
            "--calibration random takes noise instead; its agreement says little.",
        )
    for kind in request.formats if method != "auto" else ():
        if method not in INT8_METHODS[kind]:
            raise UsageError(
                f"--int8-method {method} is not for --format {kind}",
                hint=f"Choose from: auto, {', '.join(INT8_METHODS[kind])}.",
            )
    if Format.OPENVINO in request.formats and precision.by_agreement:
        from exporters.quantize.int8_openvino import require_nncf

        require_nncf()
    if request.calibration is not None:
        from vitpe_deploy.calibration import check_calibration

        check_calibration(request.calibration, layout)
