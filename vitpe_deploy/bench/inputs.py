"""Inputs and expected outputs as files that children read: prepared outside every clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


def save_inputs(path: Path, inputs: Sequence[Array]) -> Path:
    """Write batches of inputs. Gives the path."""
    arrays: dict[str, Any] = {f"in{k}": array for k, array in enumerate(inputs)}
    np.savez(path, **arrays)
    return path


def save_expected(path: Path, outputs: Sequence[Mapping[str, Array]]) -> Path:
    """Write the right outputs, one mapping per batch of inputs. Gives the path."""
    arrays: dict[str, Any] = {
        f"out{k}:{name}": array for k, named in enumerate(outputs) for name, array in named.items()
    }
    np.savez(path, **arrays)
    return path
