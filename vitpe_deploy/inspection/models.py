"""What a model is, without its weights: facts of its source, and one run that computes no numbers.

The network is looked at as its source outlines it: parameters have shapes and, where the library
can do without, no data. One forward on such a network shows which tables it interpolates, which
attentions are torch's own (each would become one node) and which are spelled by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitpe_deploy.errors import UnsupportedError, VitpeError
from vitpe_deploy.inspection.report import (
    Certainty,
    Evidence,
    Fusing,
    InOpenVino,
    InspectReport,
    Positions,
    Sizes,
)
from vitpe_deploy.request import Resolution
from vitpe_deploy.results import PassRecord
from vitpe_deploy.sources.base import LengthRule, LoadedModel, ModelFacts, SizeRule, Source
from vitpe_deploy.sources.inspection import without_data
from vitpe_deploy.sources.observe import TableResample, TableWatcher, torch_unchanged

_SIGNS = re.compile(
    r"(pos(ition)?s?_?(emb|encoding|bias|conv|block)|positional|rel_?pos|relative_|bias_table"
    r"|attention_biases|cpb_mlp|rope|(^|\.)freqs|detection_position|(^|\.)cpe\d*\.)",
    re.IGNORECASE,
)
_COMPUTED = re.compile(r"(index|mask|_id[sx])$")
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


@dataclass
class _Seen:
    """What one run showed."""

    tables: list[TableResample] = field(default_factory=list)
    attention: int = 0
    by_hand: int = 0


class _Looker(TableWatcher):
    """Counts attentions and notes tables while a network runs."""

    def __init__(self, inputs: Tensor, seen: _Seen) -> None:
        super().__init__(inputs, self._note)
        self._seen = seen

    def _note(self, call: TableResample) -> Tensor:
        self._seen.tables.append(call)
        return torch_unchanged(call)

    def call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a torch function, having counted it."""
        if func is F.scaled_dot_product_attention:
            self._seen.attention += 1
        elif func in _SOFTMAX and _are_logits(args, kwargs):
            self._seen.by_hand += 1
        return func(*args, **kwargs)


def _are_logits(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a softmax is over the keys of [.., queries, keys]."""
    value = args[0] if args else kwargs.get("input")
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    if not isinstance(value, Tensor) or value.dim() < 3:
        return False
    return axis in (-1, value.dim() - 1) and value.shape[-1] > 1


def inspect_source(
    source: Source, subject: str, *, passes: tuple[PassRecord, ...] | None = None
) -> InspectReport:
    """Look at a model.

    Args:
        source: where it comes from.
        subject: what the user called it.
        passes: what an export's passes did, when it was traced.

    Raises:
        VitpeError: whatever the source refuses.
    """
    facts = source.facts()
    outline = source.outline()
    size = facts.native or facts.size_rule.nearby(Resolution(16, 16))[0]
    seen = _fused(outline, size)
    moved = _moved(outline, facts, size)
    positions = _positions(outline, facts, moved, declared=source.declares_encoding)
    traced = passes is not None
    return InspectReport(
        subject=subject,
        kind="model",
        name=facts.name,
        positions=positions,
        sizes=sizes_of(facts),
        blocks=facts.depth or None,
        parameters=outline.num_parameters,
        outputs=facts.outputs,
        fusing=Fusing(
            attention=seen.attention, by_hand=seen.by_hand, traced=traced, passes=passes or ()
        ),
        openvino=_in_openvino(moved),
    )


def _watched(outline: LoadedModel, size: Resolution, *, symbolic: bool = False) -> _Seen:
    """One run without data at a size.

    Raises:
        UnsupportedError: the network does not run there.
    """
    module = outline.fresh(None if symbolic else size, symbolic=symbolic)
    return _run(outline, module, size)


def _fused(outline: LoadedModel, size: Resolution) -> _Seen:
    """The same of the network that is traced, in which parts may be written in another way."""
    try:
        return _run(outline, outline.explicit(size), size)
    except Exception:  # what has no data cannot always be rewritten: the network as it is
        return _watched(outline, size)


def _run(outline: LoadedModel, module: nn.Module, size: Resolution) -> _Seen:
    seen = _Seen()
    facts = outline.facts
    with _data_free(module):
        inputs = torch.zeros(facts.input.shape(size, 1), dtype=getattr(torch, facts.input.dtype))
        try:
            with _Looker(inputs, seen):
                outline.call(module, inputs, facts.default_outputs)
        except VitpeError:
            raise
        except Exception as problem:  # whatever a forward raises
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            raise UnsupportedError(
                f"{facts.spec} does not run at {size}: {lines[0][:200]}",
                hint="Only networks that run at their own size can be looked at.",
            ) from problem
    return seen


@contextmanager
def _data_free(module: nn.Module) -> Iterator[None]:
    """Inside, new tensors are where the parameters are, and no numbers are computed."""
    parameter = next(module.parameters(), None)
    on_meta = parameter is not None and parameter.device.type == "meta"
    with torch.no_grad(), torch.device("meta") if on_meta else nullcontext():
        if on_meta:
            yield
        else:
            with without_data():
                yield


def _moved(outline: LoadedModel, facts: ModelFacts, native: Resolution) -> list[TableResample]:
    """Tables that the network resamples by itself on the way to another size."""
    if isinstance(facts.size_rule, LengthRule) or facts.no_dynamic:
        return []
    rule = facts.sizes(symbolic=True)
    if rule.fixed is not None:
        return []
    sizes = rule.nearby(native)
    for size in (sizes[1], sizes[2]):
        if size == native or (rule.square and size.height != size.width):
            continue
        try:
            return _watched(outline, size, symbolic=True).tables
        except VitpeError:
            continue
    return []


def _positions(
    outline: LoadedModel, facts: ModelFacts, moved: list[TableResample], *, declared: bool
) -> Positions:
    evidence: list[Evidence] = []
    if declared and facts.encoding is not None:
        params = ", ".join(f"{k}={v}" for k, v in facts.encoding_params.items())
        evidence.append(Evidence(kind="config", where=facts.encoding, says=params))
    watched: dict[tuple[tuple[int, int], str], int] = {}
    for call in moved:
        key = call.old_grid, str(call.rule)
        watched[key] = watched.get(key, 0) + 1
    evidence += [
        Evidence(kind="interpolation", where="F.interpolate", shape=grid, count=n, says=rule)
        for (grid, rule), n in watched.items()
    ]
    tensors = _tensors(outline)
    evidence += tensors
    if declared or watched:
        certainty: Certainty = "certain"
    else:
        certainty = "likely" if tensors and facts.encoding not in (None, "none") else "unknown"
    grid = None if facts.native is None else facts.grid(facts.native)
    return Positions(
        encoding=facts.encoding,
        certainty=certainty,
        evidence=tuple(evidence),
        grid=None if isinstance(facts.size_rule, LengthRule) else grid,
        prefix_tokens=facts.prefix_tokens,
    )


def _tensors(outline: LoadedModel) -> list[Evidence]:
    """Parameters and buffers that are called what positions are called, layers counted together."""
    module = outline.fresh()
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in named:
        if _SIGNS.search(name) and not _COMPUTED.search(name):
            pattern = re.sub(r"\d+", "*", name)
            groups.setdefault((pattern, tuple(tensor.shape)), []).append(name)
    return [
        Evidence(kind="parameter", where=names[0], shape=shape, count=len(names))
        for (_, shape), names in groups.items()
    ]


def sizes_of(facts: ModelFacts) -> Sizes:
    """The size rules of a model, and whether one file can take several."""
    rule = facts.size_rule
    native = None if facts.native is None else (facts.native.height, facts.native.width)
    if isinstance(rule, LengthRule):
        return Sizes(
            native=None,
            dynamic=not facts.no_dynamic,
            not_dynamic=facts.no_dynamic,
            longest=rule.limit,
        )
    symbolic: SizeRule | None = None
    why = facts.no_dynamic
    if not why:
        symbolic = facts.sizes(symbolic=True)
        if symbolic.fixed is not None:
            why, symbolic = symbolic.fixed_reason, None
    fixed = rule.fixed
    return Sizes(
        native=native,
        divisor=rule.divisor,
        reason=rule.reason,
        remainder=rule.remainder,
        least=rule.least if max(rule.least) > 1 else None,
        fixed=None if fixed is None else (fixed.height, fixed.width),
        fixed_reason=rule.fixed_reason,
        square=rule.square,
        dynamic=symbolic is not None,
        not_dynamic=why,
        dynamic_divisor=None if symbolic is None else symbolic.divisor,
    )


def _in_openvino(moved: list[TableResample]) -> InOpenVino:
    """What a plain export would leave to OpenVINO's Interpolate (see graph.wrong_in_openvino)."""
    wrong = dict.fromkeys(str(c.rule) for c in moved if c.rule.antialias)
    return InOpenVino(
        wrong=bool(wrong),
        reasons=tuple(
            f"a plain torch.onnx.export with a dynamic size leaves a Resize ({rule}) of the "
            "positions in the file; OpenVINO computes it without antialias. vitpe-export writes "
            "matrix products instead"
            for rule in wrong
        ),
    )
