"""What the picture becomes on its way through an ONNX graph, and what it meets there.

The one reading that ``vitpe-inspect`` and ``vitpe-plot`` share: follow the input through the nodes
and note each operand of another origin. ``Shape`` and ``Size`` break the trail, they read no
values. Positions are among what is met, whether an initializer or made by nodes, named or not.

(What a graph needs for another size, :mod:`vitpe_deploy.retarget`, is another question: it thinks
dimensions through at several sizes and does not look at operators by kind.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

READS_FORM_ONLY = frozenset({"Shape", "Size"})

How: TypeAlias = Literal["add", "multiply", "attend"]

_BIAS_INPUT: Mapping[str, int] = {"MultiHeadAttention": 5, "Attention": 3}
"""Which input of a fused attention node is added to its logits."""


class Step(Protocol):
    """A node, by whatever library it was read."""

    @property
    def op_type(self) -> str:
        """Operator."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of what it reads; empty for an input that is left out."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of what it gives."""


@dataclass(frozen=True, slots=True)
class Met:
    """An operand that does not depend on the picture, where it meets a value that does.

    Attributes:
        how: added, multiplied (cosines and sines), or added to the logits of a fused attention.
        value: name of the operand.
        step: the node where they meet.
    """

    how: How
    value: str
    step: Step


def follow(steps: Iterable[Step], start: Iterable[str]) -> set[str]:
    """Names of all values that depend on the values of ``start``."""
    marked = set(start)
    for step in steps:
        if step.op_type not in READS_FORM_ONLY and any(i in marked for i in step.inputs):
            marked.update(step.outputs)
    return marked


def meetings(steps: Iterable[Step], followed: Set[str]) -> Iterator[Met]:
    """What meets the picture, in the order of the graph."""
    for step in steps:
        if not any(i in followed for i in step.inputs):
            continue
        how, operands = _operands(step)
        for name in operands:
            if name and name not in followed:
                yield Met(how, name, step)


def _operands(step: Step) -> tuple[How, Sequence[str]]:
    """How an operator takes what may be positions, and which of its inputs they are."""
    bias = _BIAS_INPUT.get(step.op_type)
    if bias is not None:
        return "attend", step.inputs[bias : bias + 1]
    if step.op_type in ("Add", "Sum"):
        return "add", step.inputs
    if step.op_type == "Mul":
        return "multiply", step.inputs
    if step.op_type == "RotaryEmbedding":
        return "multiply", step.inputs[1:]
    return "add", ()
