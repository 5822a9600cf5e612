"""Which tower of a model that reads pictures and text is exported.

One file is one network with one input, so a model with two towers needs ``--tower``: ``vision``,
``text``, or ``both`` for two files. What belongs to pictures goes to the vision tower and what
belongs to text to the text tower; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitpe_deploy.errors import UnsupportedError, UsageError
from vitpe_deploy.pairing import EMBEDDING, NORMALIZED
from vitpe_deploy.request import Dynamic, ExportRequest, ModelRequest, ResampleOverride, closest

if TYPE_CHECKING:
    from vitpe_deploy.results import ExportReport

VISION, TEXT, BOTH = "vision", "text", "both"
TOWERS = (VISION, TEXT, BOTH)


def check_tower(value: str | None) -> str | None:
    """``value`` as given.

    Raises:
        UsageError: unknown, with the closest one.
    """
    if value is not None and value not in TOWERS:
        raise UsageError(
            f"--tower {value!r} is not known",
            hint=f"{closest(value, TOWERS)}Choose from: {', '.join(TOWERS)}.",
        )
    return value


def chosen_tower(request: ModelRequest, *, has: Sequence[str] = (VISION, TEXT)) -> str:
    """The one tower that a request asks for.

    Args:
        request: of a model with two towers.
        has: those of its towers that can be exported.

    Raises:
        UsageError: none is named, or both where one is needed.
        UnsupportedError: the model has no such tower.
    """
    if request.tower not in (VISION, TEXT):
        raise UsageError(
            f"{request.model} has two towers, {VISION} and {TEXT}, and none was chosen",
            hint=f"Add --tower {VISION}, --tower {TEXT}, or --tower {BOTH} for two files.",
        )
    if request.tower not in has:
        raise UnsupportedError(
            f"{request.model} has no {request.tower} tower that can be exported",
            hint=f"Choose from: {', '.join(has)}.",
        )
    if request.tower == VISION and request.max_length is not None:
        raise UnsupportedError(
            "--max-length has no meaning for a vision tower", hint="Leave it out."
        )
    if request.tower == TEXT and request.resample:
        raise UnsupportedError(
            "--interpolation, --antialias and --align-corners have no meaning for a text tower",
            hint="Leave them out.",
        )
    return request.tower


def split(request: ExportRequest) -> tuple[ExportRequest, ...]:
    """The exports that a request means: one, or one for each tower under ``--tower both``."""
    model = request.model
    if model.tower != BOTH:
        return (request,)
    request = replace(request, outputs=request.outputs or (EMBEDDING, NORMALIZED))
    vision = replace(
        request,
        model=replace(model, tower=VISION, max_length=None),
        dynamic=Dynamic.NONE if request.dynamic is Dynamic.LENGTH else request.dynamic,
    )
    text = replace(
        request,
        model=replace(model, tower=TEXT, resample=ResampleOverride()),
        dynamic=Dynamic.NONE if request.dynamic is Dynamic.SIZE else request.dynamic,
        resolutions=(),
        buckets=(),
        size_range=None,
        verify=replace(request.verify, resolutions=(), images=None),
    )
    return vision, text


def merged(reports: Sequence[ExportReport], pairs: Sequence[str] = ()) -> ExportReport:
    """One report on the files of all towers; encoding and rule are those of the first."""
    first = reports[0]
    if len(reports) == 1:
        return first
    verdicts = [r.verdict for r in reports]
    worst = next((v for v in ("failed", "unverified") if v in verdicts), "passed")
    steps = [r.steps_s.model_dump() for r in reports]
    return first.model_copy(
        update={
            "artifacts": tuple(a for r in reports for a in r.artifacts),
            "indexes": (*(i for r in reports for i in r.indexes), *pairs),
            "parity": tuple(p for r in reports for p in r.parity),
            "layers": tuple(v for r in reports for v in r.layers),
            "passes": tuple(p for r in reports for p in r.passes),
            "candidates": tuple(c for r in reports for c in r.candidates),
            "steps_s": first.steps_s.model_copy(
                update={k: round(sum(s[k] for s in steps), 4) for k in steps[0]}
            ),
            "verdict": worst,
        }
    )


def merged_plans(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One ``vitpe.plan/1`` document on the files of all towers."""
    files = [file for document in documents for file in document["files"]]
    shared = [path for document in documents for path in document["shared"]]
    return {**documents[0], "files": files, "shared": shared}
