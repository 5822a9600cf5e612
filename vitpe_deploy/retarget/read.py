"""An ONNX file of anybody's, read with care: its picture input, patch, declared size and graph."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from vitpe_deploy.errors import ArtifactError, SourceError, UnsupportedError
from vitpe_deploy.request import Resolution
from vitpe_deploy.runtimes.onnx_file import check_onnx_file

LARGEST_PICTURE = 1 << 16
"""Pixels of an axis above which a declared size is taken for damage."""

_THROUGH = frozenset({"Cast", "Sub", "Div", "Mul", "Add", "Identity", "BatchNormalization", "Pad"})


@dataclass(frozen=True, slots=True)
class PictureGraph:
    """A graph that takes pictures.

    Attributes:
        path: where it was read from.
        model: the graph; external data stays where it is until it is used.
        source: its one input [B, C, H, W].
        batch: declared batch, None when symbolic.
        channels: channels of a picture.
        declared: declared size, None when an axis is symbolic.
        patch: pixels of one patch.
        opset: version of the default operators.
        own: whether we wrote the file.
    """

    path: Path
    model: ir.Model
    source: ir.Value
    batch: int | None
    channels: int
    declared: Resolution | None
    patch: tuple[int, int]
    opset: int
    own: bool


def read_graph(path: Path) -> PictureGraph:
    """Read a file that takes pictures and cuts them into patches.

    Raises:
        SourceError: missing, damaged, not ONNX, or its weights are not in its folder.
        UnsupportedError: it does not take one batch of pictures, or has no patch embedding.
    """
    try:
        check_onnx_file(path)
        # Changed graphs are written elsewhere, where a data file beside this one is not found.
        model = ir.external_data.load_to_model(ir.load(path))
        onnx.checker.check_model(str(path))
    except ArtifactError as problem:
        raise SourceError(problem.message, hint=problem.hint) from problem
    except Exception as problem:  # parsers of onnx share no base class
        said = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:160]
        raise SourceError(f"{path} is not an ONNX model: {said}") from problem
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    if len(inputs) != 1:
        names = ", ".join(str(v.name) for v in inputs)
        raise UnsupportedError(
            f"{path.name} takes {len(inputs)} inputs ({names}), not one batch of pictures",
            hint="Only models of one picture input can change their size.",
        )
    source = inputs[0]
    dims = [d if isinstance(d, int) else None for d in source.shape or ()]
    if len(dims) != 4 or source.dtype != ir.DataType.FLOAT:
        kind = "?" if source.dtype is None else source.dtype.name.lower()
        raise UnsupportedError(
            f"{path.name} takes {source.name} {kind} of {len(dims)} dimensions, "
            "not float32 pictures [B, C, H, W]"
        )
    if any(d is not None and not 0 < d <= LARGEST_PICTURE for d in dims):
        raise SourceError(f"{path.name} declares an impossible input: {source.shape}")
    if model.functions:
        from onnx_ir.passes.common import InlinePass

        InlinePass()(model)
    patch, channels = _patch(path, source)
    height, width = dims[2], dims[3]
    if (height is not None and height < patch[0]) or (width is not None and width < patch[1]):
        raise SourceError(f"{path.name} declares an input smaller than its patch: {source.shape}")
    return PictureGraph(
        path=path,
        model=model,
        source=source,
        batch=dims[0],
        channels=dims[1] if dims[1] is not None else channels,
        declared=None if height is None or width is None else Resolution(height, width),
        patch=patch,
        opset=model.opset_imports.get("", 1),
        own=any(key.startswith("vitpe.") for key in model.metadata_props),
    )


def _patch(path: Path, source: ir.Value) -> tuple[tuple[int, int], int]:
    """Patch size and channels, from the first convolution or the Reshape that cuts patches."""
    queue, seen = deque([source]), {source}
    looked: list[str] = []
    while queue:
        value = queue.popleft()
        for node, _ in value.uses():
            if node.op_type == "Conv":
                found = _conv_patch(node)
                if found is not None:
                    return found
                looked.append(f"Conv {node.name!r} does not step by its own kernel")
            elif node.op_type == "Reshape":
                cut = _reshape_patch(node)
                if cut is not None:
                    return cut
                looked.append(f"Reshape {node.name!r} does not cut patches")
            elif node.op_type in _THROUGH:
                fresh = [v for v in node.outputs if v not in seen]
                seen.update(fresh)
                queue.extend(fresh)
            elif node.op_type != "Shape":
                looked.append(f"{node.op_type} {node.name!r}")
    raise UnsupportedError(
        f"{path.name} has no patch embedding: behind {source.name} there is "
        f"{'; '.join(looked) or 'nothing'}",
        hint="Only Vision Transformers whose first layer cuts patches can change their size.",
    )


def _conv_patch(node: ir.Node) -> tuple[tuple[int, int], int] | None:
    weight = node.inputs[1]
    strides = node.attributes.get("strides")
    if weight is None or weight.shape is None or len(weight.shape) != 4 or strides is None:
        return None
    _, channels, *kernel = [int(n) for n in weight.shape.numpy()]
    steps = list(strides.as_ints())
    padded = node.attributes.get("pads")
    if kernel != steps or (padded is not None and any(padded.as_ints())):
        return None
    return (steps[0], steps[1]), channels


def _reshape_patch(node: ir.Node) -> tuple[tuple[int, int], int] | None:
    """[B, C, H, W] -> [B, C, h, p, w, q] with C first, as patches are cut by hand."""
    target = node.inputs[1]
    tensor = None if target is None else target.const_value
    if tensor is None and target is not None and target.producer() is not None:
        maker = target.producer()
        attribute = None if maker is None else maker.attributes.get("value")
        tensor = None if attribute is None else attribute.as_tensor()
    if tensor is None:
        return None
    numbers = [int(n) for n in tensor.numpy()]
    if len(numbers) != 6 or numbers[3] < 2 or numbers[5] < 2:
        return None
    return (numbers[3], numbers[5]), numbers[1]
