"""From a torch module to an ONNX graph in which attention and positions are explicit.

The one place that calls ``torch.onnx.export``. While it runs, a mode of this thread watches the
torch functions that are called (nothing is patched, so nothing can be left behind):

* ``scaled_dot_product_attention`` becomes one node ``vitpe::Attention`` (query, key, value[,
  bias]) that the attention pass spells for the target, that inside ``nn.MultiheadAttention`` too;
* an ``argmax`` says which of several largest it means (the first, as torch does): the winner of
  ties is an engine's own choice;
* an interpolation of a position table becomes two matrix products, constant for a static size.

A dynamic model is traced at a size that is neither native nor square, with batch 2: any of those
would let torch specialise on it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exporters.multi_head import written_out
from exporters.trim import forget_rewritten_graph
from vitpe_deploy.encodings.resample import (
    resample_grid,
    resample_grid_in_graph,
    resample_rows_in_graph,
)
from vitpe_deploy.errors import ExportFailedError, VitpeError
from vitpe_deploy.request import Dynamic, ResampleOverride, Resolution
from vitpe_deploy.sources.base import BLOCK, LoadedModel
from vitpe_deploy.sources.observe import TableResample, TableWatcher

ATTENTION_DOMAIN = "vitpe"
ATTENTION_OP = "Attention"


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A graph fresh from the tracer.

    Attributes:
        model: the graph; its outputs are the ones asked for.
        layer_values: ``block:k`` values that exist inside the graph, for per-layer parity.
    """

    model: ir.Model
    layer_values: tuple[str, ...]


class ExplicitMode(TableWatcher):
    """Writes positions as matrix products and attention as one node while a model is traced."""

    def __init__(self, inputs: Tensor, override: ResampleOverride) -> None:
        super().__init__(inputs, self._write_table)
        self._override = override

    def _write_table(self, call: TableResample) -> Tensor:
        rule = call.rule.overridden(self._override)
        table = call.table[0].permute(1, 2, 0)  # [h, w, D]
        if all(isinstance(n, int) for n in call.size):
            out = resample_grid(table, call.size, rule)
        elif call.one_axis:
            out = resample_rows_in_graph(table[0], call.size[1], rule).unsqueeze(0)
        else:
            out = resample_grid_in_graph(table, *call.size, rule)
        return out.permute(2, 0, 1).unsqueeze(0)  # [1, D, h', w']

    def call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Attention becomes one node; everything else runs as it is."""
        if func is F.scaled_dot_product_attention:
            return _explicit_attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            written = written_out(_explicit_attention, args, kwargs)
            if written is not None:
                return written
        if func in (torch.argmax, Tensor.argmax):
            return _first_largest(*args, **kwargs)
        return func(*args, **kwargs)


def _first_largest(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """``argmax`` as the smallest index among the largest."""
    x = input.flatten() if dim is None else input
    axis = 0 if dim is None else dim % x.dim()
    index = torch.arange(x.shape[axis]).view(-1, *(1,) * (x.dim() - 1 - axis))
    largest = x == x.amax(axis, keepdim=True)
    first = torch.where(largest, index, x.shape[axis]).amin(
        axis, keepdim=keepdim and dim is not None
    )
    return first


def _explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """One ``vitpe::Attention`` node for [..., N, D/M] tensors of any rank from 3."""
    del dropout_p  # inert in eval mode, which every traced model is in
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, dim=-3) for t in (key, value))
    leading = query.shape[:-2]
    if query.dim() != 4:
        query, key, value = (_to_4d(t) for t in (query, key, value))
    bias = _additive_bias(query, key, attn_mask, is_causal)
    inputs = (query, key, value) if bias is None else (query, key, value, bias)
    out = torch.onnx.ops.symbolic(
        f"{ATTENTION_DOMAIN}::{ATTENTION_OP}",
        inputs,
        {"scale": float(query.shape[-1] ** -0.5 if scale is None else scale)},
        dtype=query.dtype,
        shape=(*query.shape[:-1], value.shape[-1]),
        version=1,
    )
    return out if len(leading) == 2 else out.reshape(*leading, *out.shape[-2:])


def _to_4d(x: Tensor) -> Tensor:
    """[A, N, D] -> [A, 1, N, D]; [A, ..., M, N, D] -> [A*..., M, N, D]."""
    return x.unsqueeze(1) if x.dim() == 3 else x.flatten(0, x.dim() - 4)


def _additive_bias(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor | None:
    """Mask and causality as one float bias of rank 4, or None."""
    lowest = torch.finfo(query.dtype).min
    bias = None
    if mask is not None:
        bias = mask
        if mask.dtype == torch.bool:
            zero = torch.zeros((), dtype=query.dtype)
            bias = torch.where(mask, zero, torch.full((), lowest, dtype=query.dtype))
        bias = _bias_to_4d(bias.to(query.dtype), query.shape[0])
    if is_causal:
        rows = torch.arange(query.shape[-2]).unsqueeze(1)
        columns = torch.arange(key.shape[-2]).unsqueeze(0)
        zero = torch.zeros((), dtype=query.dtype)
        causal = torch.where(columns <= rows, zero, torch.full((), lowest, dtype=query.dtype))[
            None, None
        ]
        bias = causal if bias is None else bias + causal
    return bias


def _bias_to_4d(bias: Tensor, batch: int) -> Tensor:
    """Broadcastable mask of any rank -> [1|B, 1|M, N, N]."""
    while bias.dim() < 4:
        # A rank-3 mask belongs to rank-3 attention: its first dimension is the batch.
        bias = bias.unsqueeze(1 if bias.dim() == 3 and bias.shape[0] == batch else 0)
    if bias.dim() > 4:
        bias = bias.flatten(0, bias.dim() - 4)
    return bias


class _Traceable(nn.Module):
    """What the tracer sees: pixel values in, the outputs asked for and the blocks out."""

    def __init__(
        self,
        loaded: LoadedModel,
        module: nn.Module,
        names: Sequence[str],
        override: ResampleOverride,
    ) -> None:
        super().__init__()
        self.module = module
        self._loaded = loaded
        self._names = tuple(names)
        self._override = override
        self.eval()

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        with ExplicitMode(inputs, self._override):
            outputs = self._loaded.read(self.module, inputs, self._names)
        # One tensor under two names must still be two outputs.
        seen: set[int] = set()
        result = []
        for value in outputs.values():
            result.append(value.clone() if id(value) in seen else value)
            seen.add(id(value))
        return tuple(result)


def trace(
    loaded: LoadedModel,
    module: nn.Module,
    *,
    size: Resolution,
    batch: int,
    dynamic: Dynamic,
    outputs: Sequence[str],
    override: ResampleOverride,
    opset: int,
) -> TracedGraph:
    """Trace ``module`` with explicit attention and positions.

    ``size`` and ``batch`` are those of the example; with symbolic dimensions they only must not be
    special.

    Raises:
        ExportFailedError: torch could not trace the model, with its reason.
    """
    blocks = _block_names(loaded)
    names = [*outputs, *(name for name in blocks if name not in outputs)]
    wrapped = _Traceable(loaded, module, names, override)
    layout = loaded.facts.input
    example = torch.zeros(layout.shape(size, batch), dtype=getattr(torch, layout.dtype))
    symbolic = layout.symbolic_axes(dynamic)
    model: ir.Model = _export(wrapped, example, layout.name, symbolic, names, opset).model
    forget_rewritten_graph()
    _free_output_names(model.graph)
    _name_dimensions(model, symbolic)
    _drop_prefix(model.graph, "module.")
    layer_values = _keep_as_inner_values(model.graph, [n for n in blocks if n not in outputs])
    return TracedGraph(model, (*layer_values, *(n for n in blocks if n in outputs)))


def _block_names(loaded: LoadedModel) -> list[str]:
    try:
        return [f"{BLOCK}{k}" for k in range(len(loaded.block_paths()))]
    except VitpeError:  # a network without a recognisable stack has no per-layer parity
        return []


@contextlib.contextmanager
def _quiet_registration() -> Iterator[None]:
    """Torch warns of each torchvision operator that it cannot translate where that is missing."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _export(
    wrapped: nn.Module,
    example: Tensor,
    input_name: str,
    symbolic: Mapping[int, str],
    names: list[str],
    opset: int,
) -> Any:
    shapes = {axis: torch.export.Dim.DYNAMIC for axis in symbolic}
    noise = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(noise),
            _quiet_registration(),
            torch.no_grad(),
        ):
            warnings.simplefilter("ignore")
            return torch.onnx.export(
                wrapped,
                (example,),
                dynamo=True,
                dynamic_shapes={"inputs": shapes} if symbolic else None,
                opset_version=opset,
                input_names=[input_name],
                output_names=names,
                verbose=False,
            )
    except Exception as problem:
        cause: BaseException = problem
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, VitpeError):  # an encoding refused, with its own reason
            raise cause from problem
        lines = [line for line in str(cause).strip().splitlines() if line.strip()]
        reason = lines[0][:300] if lines else type(cause).__name__
        raise ExportFailedError(
            f"torch could not trace the model: {reason}",
            hint="Run again with -vv for torch's own report.",
        ) from problem


def _free_output_names(graph: ir.Graph) -> None:
    """Torch calls a value after its operator, so a lookup is ``embedding``, as an output may be."""
    outputs = {value.name for value in graph.outputs}
    for name in outputs & set(graph.initializers):  # a lookup that torch folded
        constant = graph.initializers.pop(str(name))
        constant.name = f"{name}_inner"
        graph.register_initializer(constant)
    for node in graph.all_nodes():
        for value in node.outputs:
            if value.name in outputs and not value.is_graph_output():
                value.name = f"{value.name}_inner"


def _name_dimensions(model: ir.Model, symbolic: Mapping[int, str]) -> None:
    """Call torch's symbols by what they are: batch, height, width, length."""
    shape = model.graph.inputs[0].shape
    if shape is None or not symbolic:
        return
    names: dict[str, str] = {}
    for axis, title in symbolic.items():
        dim = shape[axis]
        if not isinstance(dim, ir.SymbolicDim) or dim.value is None:
            raise ExportFailedError(
                f"torch fixed the {title} at {dim} while tracing",
                hint="The model decides something on this size in Python. Export it statically.",
            )
        names[str(dim.value)] = title
    if len(names) != len(symbolic):
        raise ExportFailedError("torch tied height to width while tracing")
    pattern = re.compile("|".join(rf"\b{re.escape(n)}\b" for n in names))

    def rename(value: ir.Value) -> None:
        if value.shape is None or all(isinstance(d, int) for d in value.shape):
            return
        dims: list[int | ir.SymbolicDim] = []
        for dim in value.shape:
            if isinstance(dim, int) or dim.value is None:
                dims.append(dim)
            else:
                text = pattern.sub(lambda m: names[m[0]], str(dim.value))
                dims.append(ir.SymbolicDim(_tidy(text)))
        value.shape = ir.Shape(dims)

    for value in (*model.graph.inputs, *model.graph.outputs):
        rename(value)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if not value.is_graph_output():
                rename(value)


def _tidy(expression: str) -> str:
    """``((height//16))*((width//16))`` -> ``(height//16)*(width//16)``; no outer brackets."""
    previous = ""
    while previous != expression:
        previous = expression
        expression = re.sub(r"\(\(([^()]*)\)\)", r"(\1)", expression)
    whole = re.fullmatch(r"\(([^()]*)\)", expression)
    return whole[1] if whole else expression


def _drop_prefix(graph: ir.Graph, prefix: str) -> None:
    """Initializers carry the model's own parameter names."""
    for name in list(graph.initializers):
        if name.startswith(prefix):
            value = graph.initializers.pop(name)
            value.name = name.removeprefix(prefix)
            graph.register_initializer(value)


def _keep_as_inner_values(graph: ir.Graph, names: Sequence[str]) -> tuple[str, ...]:
    """Take block outputs off the outputs of the graph; their values keep the names."""
    wanted = set(names)
    kept = [v.name for v in graph.outputs if v.name in wanted and v.name]
    outputs = [v for v in graph.outputs if v.name not in wanted]
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    return tuple(kept)
