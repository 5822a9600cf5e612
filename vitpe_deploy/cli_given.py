"""Which flags stand on the command line: a flag that would do nothing is refused, not ignored."""

from __future__ import annotations

from collections.abc import Collection

import typer

from vitpe_deploy.errors import UsageError


def given_flags(context: typer.Context) -> dict[str, str]:
    """Parameters that the user gave, by their names in Python, each as ``--help`` calls it."""
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            flag = parameter.opts[0].startswith("-")
            found[str(parameter.name)] = parameter.opts[0] if flag else "WHAT"
    return found


def refuse_beside(
    context: typer.Context, what: str, *, apart_from: Collection[str], hint: str
) -> None:
    """Refuse every flag that has no meaning beside another.

    Args:
        context: of the command.
        what: that makes the others meaningless, as the message begins.
        apart_from: parameters that go with it.
        hint: what to do.

    Raises:
        UsageError: names the first of them.
    """
    for name, flag in given_flags(context).items():
        if name not in apart_from:
            raise UsageError(f"{what}: {flag} has no meaning beside it", hint=hint)


__all__ = ["given_flags", "refuse_beside"]
