"""Flags that describe a network, and what a file that is the source says to them."""

from __future__ import annotations

from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import ModelRequest


def refuse_model_flags(request: ModelRequest) -> None:
    """Refuse what decides how a network is made: a file holds one that was.

    Raises:
        UsageError: names the first such flag.
    """
    for flag, given in (
        ("--pe", request.encoding is not None),
        ("--weights", request.weights is not None),
        ("--model-kwarg", bool(request.kwargs)),
        ("--seed", request.seed != 0),
        ("--tower", request.tower is not None),
        ("--pos-embed", request.pos_embed is not None),
        ("--max-length", request.max_length is not None),
    ):
        if given:
            raise UsageError(
                f"{flag} contradicts {request.model}: the file has its own",
                hint="Leave it out, or name the source model instead of the file.",
            )
