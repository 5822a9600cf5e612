"""Logits as ranked classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.results import Value


class Prediction(Value):
    """One class of one picture.

    Attributes:
        index: place of the class in the logits.
        label: its name; null when the artifact does not know names.
        probability: softmax over all classes.
        logit: the number itself.
    """

    index: int
    label: str | None
    probability: float
    logit: float


def top(
    logits: npt.NDArray[np.floating[Any]], count: int, labels: Sequence[str] = ()
) -> list[list[Prediction]]:
    """The ``count`` most likely classes of each row, best first; ties keep the order of classes.

    Args:
        logits: ``[B, classes]``.
        count: classes to give; all when there are fewer.
        labels: names in the order of the logits, or nothing.

    Raises:
        UsageError: ``count`` below 1.
        ArtifactError: not a matrix, or values that are not numbers.
    """
    if count < 1:
        raise UsageError(f"--top must be at least 1, got {count}")
    if logits.ndim != 2:
        raise ArtifactError(f"logits must be [B, classes], got {list(logits.shape)}")
    if not np.isfinite(logits).all():
        raise ArtifactError(
            "the logits hold NaN or infinity", hint="Check the file with vitpe-verify."
        )
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    named = len(labels) == logits.shape[1]
    order = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    return [
        [
            Prediction(
                index=int(k),
                label=labels[k] if named else None,
                probability=float(probabilities[row, k]),
                logit=float(logits[row, k]),
            )
            for k in places
        ]
        for row, places in enumerate(order)
    ]


def top_of(
    outputs: Mapping[str, npt.NDArray[Any]], count: int, labels: Sequence[str], file: str
) -> list[list[Prediction]]:
    """The same from all outputs of a file.

    Raises:
        UsageError: there are no logits among them.
    """
    if "logits" not in outputs:
        raise UsageError(
            f"{file} gives no logits but {', '.join(outputs)}",
            hint="Export with --outputs logits, or read the outputs themselves.",
        )
    return top(outputs["logits"], count, labels)
