"""What the skeleton of a graph shows: attentions, what OpenVINO gets wrong, positions.

The picture is followed from the input through the nodes (picture_trail.py). A constant that meets
what was followed, with room for one row per token, is a set of positions, wherever the nodes
between them bring it from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from vitpe_deploy.inspection.onnx_skeleton import Skeleton, SkeletonNode, Weight
from vitpe_deploy.inspection.picture_trail import READS_FORM_ONLY, Met, follow, meetings
from vitpe_deploy.inspection.report import Evidence

FUSED = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "QAttention"})
_FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})


def attentions(skeleton: Skeleton) -> tuple[int, int]:
    """Attentions that are one node, and those spelled as product, softmax, product."""
    made_by = {name: node for node in skeleton.nodes for name in node.outputs}
    readers: dict[str, list[SkeletonNode]] = {}
    for node in skeleton.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    fused = sum(node.op_type in FUSED for node in skeleton.all_nodes())
    by_hand = 0
    for node in skeleton.nodes:
        if node.op_type == "Softmax" and node.inputs and node.outputs:
            before = _reaches(node.inputs[0], made_by)
            after = any(
                r.op_type in ("MatMul", "Einsum") for r in _behind(node.outputs[0], readers)
            )
            by_hand += before and after
    return fused, by_hand


_THROUGH = frozenset(
    {"Add", "Mul", "Div", "Cast", "Where", "Reshape", "Dropout", "Identity", "Sub", "Transpose"}
)


_AFTER = frozenset({"Add", "Cast", "Dropout", "Identity", "Reshape", "Transpose", "Where"})


def _reaches(name: str, made_by: Mapping[str, SkeletonNode], depth: int = 8) -> bool:
    """Whether a matrix product is behind a value, through what logits go through."""
    node = made_by.get(name)
    if node is None or depth == 0:
        return False
    if node.op_type in ("MatMul", "Einsum", "FusedMatMul"):
        return True
    return node.op_type in _THROUGH and any(_reaches(i, made_by, depth - 1) for i in node.inputs)


def _behind(name: str, readers: Mapping[str, list[SkeletonNode]]) -> Iterator[SkeletonNode]:
    for node in readers.get(name, ()):
        yield node
        if node.op_type in _AFTER:
            for output in node.outputs:
                yield from readers.get(output, ())


def wrong_in_openvino(skeleton: Skeleton) -> tuple[str, ...]:
    """Nodes whose result differs in OpenVINO, with what is known of each.

    Measured with OpenVINO 2026.3 and 2026.4 on the CPU: an antialiased ``Resize``, cubic or linear,
    is computed without antialiasing; the difference shows wherever an axis becomes smaller. A
    contrib ``RotaryEmbedding`` that is given the offset of its first row, and not a position for
    every row, is computed with other rows.
    """
    found = []
    for node in skeleton.all_nodes():
        if node.kind == "com.microsoft.RotaryEmbedding" and _has_one_offset(node, skeleton):
            found.append(
                f"{node}: one offset in place of a position for every row; OpenVINO turns by other "
                "rows of the table"
            )
        if node.op_type != "Resize" or not node.attributes.get("antialias"):
            continue
        if _never_shrinks(node, skeleton.weights):
            continue
        mode = node.attributes.get("mode", "nearest")
        found.append(
            f"{node}: a {mode} Resize with antialias; OpenVINO computes it without, which differs "
            "wherever the result is smaller than what is resized"
        )
    return tuple(found)


def _has_one_offset(node: SkeletonNode, skeleton: Skeleton) -> bool:
    """Whether the positions are [1], as a constant or as an input of the graph."""
    name = node.inputs[1] if len(node.inputs) > 1 else ""
    dims = {value.name: value.dims for value in skeleton.inputs}.get(name)
    if name in skeleton.weights:
        dims = skeleton.weights[name].dims
    return dims is not None and len(dims) == 1


def _never_shrinks(node: SkeletonNode, weights: Mapping[str, Weight]) -> bool:
    """Whether both sizes are in the file and no axis becomes smaller."""
    if len(node.inputs) < 4:
        return False
    table, sizes = weights.get(node.inputs[0]), weights.get(node.inputs[3])
    if table is None or sizes is None or sizes.integers is None:
        return False
    last = table.dims[len(table.dims) - len(sizes.integers) :]
    return all(new >= old for new, old in zip(sizes.integers, last, strict=False))


def positions(skeleton: Skeleton) -> tuple[Evidence, ...]:
    """Constants that meet the tokens, in the order of the graph, equal ones counted together."""
    made_by = {name: node for node in skeleton.nodes for name in node.outputs}
    counts: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    first: dict[tuple[str, tuple[int, ...], str], str] = {}
    for how, operand in _meetings(skeleton):
        for weight, resized in _origins(operand, made_by, skeleton.weights):
            if sum(n > 1 for n in weight.dims) < 2 or weight.dtype not in _FLOATS:
                continue
            says = how + (", resized in the graph" if resized else "")
            key = (says, weight.dims, "" if how.startswith("attend") else weight.name)
            counts[key] += 1
            first.setdefault(key, weight.name)
    return tuple(
        Evidence(
            kind="initializer", where=first[key] or "(no name)", shape=key[1], count=n, says=key[0]
        )
        for key, n in counts.items()
    )


def _meetings(skeleton: Skeleton) -> Iterator[tuple[str, str]]:
    """What meets the picture: how, in words, and the name of the value."""
    logits = _logits(skeleton)
    inputs = {v.name for v in skeleton.inputs if v.name not in skeleton.weights}
    for met in meetings(skeleton.nodes, follow(skeleton.nodes, inputs)):
        yield _in_words(met, logits), met.value


def _in_words(met: Met, logits: set[str]) -> str:
    if met.how == "attend":
        return "attend: bias of attention"
    if met.how == "multiply":
        return "rotates: multiplied with queries and keys"
    on_logits = any(o in logits for o in met.step.outputs)
    return "attend: added to logits" if on_logits else "added to tokens"


def _logits(skeleton: Skeleton) -> set[str]:
    """Values that a softmax reads, through casts and masks."""
    made_by = {name: node for node in skeleton.nodes for name in node.outputs}
    found: set[str] = set()
    waiting = [n.inputs[0] for n in skeleton.nodes if n.op_type == "Softmax" and n.inputs]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        node = made_by.get(name)
        if node is not None and node.op_type in ("Add", "Cast", "Where", "Reshape"):
            waiting += node.inputs
    return found


def _origins(
    name: str, made_by: Mapping[str, SkeletonNode], weights: Mapping[str, Weight]
) -> Iterator[tuple[Weight, bool]]:
    """Constants that a value is made of, and whether a Resize or products lie between."""
    waiting, seen = [(name, False)], {name}
    while waiting:
        current, resized = waiting.pop()
        weight = weights.get(current)
        if weight is not None:
            yield weight, resized
            continue
        node = made_by.get(current)
        if node is None or node.op_type in READS_FORM_ONLY:
            continue
        now = resized or node.op_type in ("Resize", "MatMul", "Einsum")
        for before in node.inputs:
            if before and before not in seen:
                seen.add(before)
                waiting.append((before, now))


def weight_dtypes(skeleton: Skeleton) -> tuple[str, ...]:
    """Types of constants by the elements they hold, most first."""
    counts: Counter[str] = Counter()
    for weight in skeleton.weights.values():
        counts[weight.dtype] += weight.count
    return tuple(kind for kind, n in counts.most_common() if n)


def parameters(skeleton: Skeleton) -> int:
    """Elements of constants that are numbers of a model: floats, and integers of 8 bits or less."""
    kinds = _FLOATS | {"int8", "uint8", "int4", "uint4"}
    return sum(w.count for w in skeleton.weights.values() if w.dtype in kinds)
