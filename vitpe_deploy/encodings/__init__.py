"""Positional encodings, one file each; see :mod:`vitpe_deploy.encodings.base` for the contract.

An encoding is found by its file: ``learned_1d.py`` holds ``learned-1d`` and names its class
``ENCODING``. Listing the names reads the folder and imports nothing, so ``--pe`` can be checked
without torch.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from vitpe_deploy.errors import UsageError
from vitpe_deploy.request import closest

if TYPE_CHECKING:
    from vitpe_deploy.encodings.base import Network, PositionEncoding

_NOT_ENCODINGS = frozenset(
    {
        "base",
        "geometric_grid",
        "relative_bias",
        "relative_index",
        "resample",
        "rotary",
        "sinusoid",
        "text_table",
    }
)


def names() -> tuple[str, ...]:
    """All values of ``--pe``, sorted."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(n.replace("_", "-") for n in found if n not in _NOT_ENCODINGS))


def check_name(name: str) -> str:
    """``name`` if it is an encoding.

    Raises:
        UsageError: unknown; the hint has the closest name and the list.
    """
    known = names()
    if name not in known:
        raise UsageError(
            f"--pe {name!r} is not a positional encoding",
            hint=f"{closest(name, known)}Choose from: {', '.join(known)}.",
        )
    return name


def get(name: str) -> type[PositionEncoding]:
    """The class behind a ``--pe`` name."""
    module = importlib.import_module(f"{__name__}.{check_name(name).replace('-', '_')}")
    encoding: type[PositionEncoding] = module.ENCODING
    return encoding


def networks_of(name: str) -> tuple[str, ...]:
    """The reference networks that can carry an encoding, read from its file, not imported."""
    path = Path(__path__[0]) / f"{check_name(name).replace('-', '_')}.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.AnnAssign)
            and ast.unparse(node.target) == "networks"
            and node.value
        ):
            return tuple(ast.literal_eval(node.value))
    return ("vit",)


def check_network(name: str, network: str) -> str:
    """``name`` if ``network`` can carry it.

    Raises:
        UsageError: unknown encoding, or it lives in other networks; the message says in which.
    """
    homes = networks_of(name)
    if network not in homes:
        carried = ", ".join(n for n in names() if network in networks_of(n))
        raise UsageError(
            f"--pe {name} does not fit the {network} network, it lives in: {', '.join(homes)}",
            hint=f"The {network} network carries: {carried}.",
        )
    return name


def get_for(name: str, network: Network) -> type[PositionEncoding]:
    """The class that answers for a ``--pe`` name in ``network``.

    Raises:
        UsageError: it lives in other networks; the message says in which.
    """
    return get(check_network(name, network)).placed_in(network)
