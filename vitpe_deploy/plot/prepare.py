"""From a model or a file to the numbers of a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitpe_deploy.build_request import Size, model_request, name_of
from vitpe_deploy.errors import MissingExtraError, UsageError
from vitpe_deploy.plot.similarity import (
    Grid,
    bias_maps,
    cosine_similarity,
    matching_patch,
    rotary_features,
    rotary_steps,
    similarity_maps,
)
from vitpe_deploy.plot.values import (
    KINDS,
    Kind,
    Panel,
    PositionPlot,
    PositionReader,
    PositionSet,
    Rotation,
)
from vitpe_deploy.request import Resolution, closest

if TYPE_CHECKING:
    from torch import nn

_SIMILARITY = "cosine similarity"
_ROTARY_SIMILARITY = "mean cosine of the angle between rotations"


def positions(
    model: str | Path | nn.Module = "vit_small_patch16_224",
    *,
    kind: str | None = None,
    resolutions: Sequence[Size] = (),
    encoding: str | None = None,
    weights: str | Path | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    query: tuple[int, int] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> PositionPlot:
    """The numbers of a picture of positions.

    Args:
        model: a MODEL string, an ``nn.Module``, or the path of an ``.onnx`` file.
        kind: similarity, matrix, bias or frequencies; what the encoding has for None.
        resolutions: sizes in pixels to show after resampling, beside the native one.
        encoding: positional encoding of a reference model, as are weights, model_kwargs and seed.
        weights: safetensors or state dict.
        model_kwargs: options of the model's constructor.
        seed: seed of random weights.
        query: row and column of the patch whose bias is shown; the middle one for None.
        layer: which layer, where layers differ; the first one for None.
        head: which head, where heads differ; all of them for None.

    Raises:
        UsageError: nothing to draw, an option that means nothing here, a number out of range.
        VitpeError: the model or file cannot be read; see :mod:`vitpe_deploy.errors`.
    """
    sizes = tuple(dict.fromkeys(Resolution.from_any(s) for s in resolutions))
    if kind is not None and kind not in KINDS:
        raise UsageError(
            f"--kind {kind!r} is not known",
            hint=f"{closest(kind, KINDS)}Choose from: {', '.join(KINDS)}.",
        )
    if _is_file(model):
        if encoding is not None or weights is not None or model_kwargs or seed:
            raise UsageError(
                f"--pe, --weights, --model-kwarg and --seed mean nothing for the file {model}",
                hint="Leave them out: a file has its own positions.",
            )
        reader = _file_reader(Path(str(model)))
    else:
        reader = _model_reader(model, encoding, weights, model_kwargs, seed, sizes)
    found = _distinct(reader.sets(sizes))
    return _plot(reader, found, kind, query=query, layer=layer, head=head)


def _is_file(model: object) -> bool:
    if isinstance(model, Path):
        return True
    return isinstance(model, str) and (
        model.endswith((".onnx", ".xml")) or (":" not in model and Path(model).is_file())
    )


def _file_reader(path: Path) -> PositionReader:
    if path.suffix == ".xml":
        raise UsageError(
            f"positions are not read from OpenVINO files: {path}",
            hint="Give the .onnx file, or the model it was exported from.",
        )
    try:
        from vitpe_deploy.plot.onnx_graph import OnnxReader
    except ModuleNotFoundError as problem:
        raise MissingExtraError(problem.name or "onnx", "export") from problem
    return OnnxReader(path)


def _model_reader(
    model: str | Path | nn.Module,
    encoding: str | None,
    weights: str | Path | None,
    model_kwargs: Mapping[str, Any] | None,
    seed: int,
    sizes: Sequence[Resolution],
) -> PositionReader:
    request = model_request(
        name_of(model), encoding=encoding, weights=weights, kwargs=model_kwargs, seed=seed
    )
    if isinstance(model, str | Path):
        from vitpe_deploy.sources import open_source

        source = open_source(request)
    else:
        from vitpe_deploy.plot.reference import ReferenceReader, holders
        from vitpe_deploy.sources.module import open_module

        if holders(model):
            return ReferenceReader(model, name_of(model).lower())
        source = open_module(model, request, sizes[0] if sizes else None)
    facts = source.facts()
    for size in sizes:
        facts.size_rule.check(size)
    loaded = source.load()
    from vitpe_deploy.plot.reference import ReferenceReader, holders
    from vitpe_deploy.plot.watching import WatchedReader

    network = loaded.fresh()
    return ReferenceReader(network, facts.name) if holders(network) else WatchedReader(loaded)


def _distinct(found: Sequence[PositionSet]) -> tuple[PositionSet, ...]:
    """Without sizes whose grid was there before: nothing was resampled on the way."""
    kept: dict[Grid, PositionSet] = {}
    for positions_at in found:
        kept.setdefault(positions_at.grid, positions_at)
    return tuple(kept.values())


def _plot(
    reader: PositionReader,
    found: Sequence[PositionSet],
    kind: str | None,
    *,
    query: Grid | None,
    layer: int | None,
    head: int | None,
) -> PositionPlot:
    wanted = _kind(reader, found[0].kinds, kind)
    if query is not None and wanted != "bias":
        raise UsageError(f"--query has no meaning for --kind {wanted}", hint="Leave it out.")
    of_table = wanted in ("similarity", "matrix") and found[0].table is not None
    if of_table and (layer is not None or head is not None):
        raise UsageError(
            f"--layer and --head have no meaning for the {wanted} of a table that is added to "
            "tokens",
            hint="Leave them out.",
        )
    chosen = [f"layer{layer}"] if layer is not None else []
    chosen += [f"head{head}"] if head is not None else []
    chosen += [f"query{query[0]}x{query[1]}"] if query is not None else []
    at_layer: int | None = None
    heads: tuple[int, ...] = ()
    if of_table:
        panels = [_similarity(at, at.table, wanted) for at in found]
        meaning = _SIMILARITY
    elif wanted == "bias":
        at_layer = _layer(len(found[0].biases), layer)
        count = found[0].biases[at_layer].shape[0]
        shown = _heads(count, head)
        panels = _biases(found, at_layer, shown, query)
        heads = shown if count > 1 else ()
        meaning = found[0].bias_meaning
    else:
        at_layer = _layer(len(found[0].rotations), layer)
        turns = [_turn(at, at_layer, head, wanted) for at in found]
        if found[0].rotations[at_layer].cos.shape[0] > 1:
            heads = (head or 0,) if wanted == "frequencies" else () if head is None else (head,)
        if len(found[0].rotations) == 1:
            at_layer = None
        panels = [
            _frequencies(at, turn)
            if wanted == "frequencies"
            else _similarity(at, rotary_features(turn.cos, turn.sin), wanted)
            for at, turn in zip(found, turns, strict=True)
        ]
        meaning = "cosine of the angle" if wanted == "frequencies" else _ROTARY_SIMILARITY
    return PositionPlot(
        model=reader.name,
        encoding=reader.encoding,
        kind=wanted,
        meaning=meaning,
        layer=at_layer,
        heads=heads,
        chosen=tuple(chosen),
        panels=tuple(panels),
    )


def _kind(reader: PositionReader, kinds: Sequence[Kind], kind: str | None) -> Kind:
    """The kind asked for, or the most telling one that there is."""
    whose = f"{reader.encoding} positions of {reader.name}" if reader.encoding else reader.name
    if not kinds and reader.encoding in ("none", "conditional"):
        raise UsageError(
            f"there is nothing to draw of the {whose}",
            hint="They are no table, bias or rotation: places show only in what convolutions "
            "and borders do to a picture.",
        )
    if not kinds:
        raise UsageError(
            f"no table, bias or rotation was found in the {whose}",
            hint="Does the network read positions in another way?",
        )
    if kind is None:
        return kinds[0]
    for known in kinds:
        if known == kind:
            return known
    raise UsageError(
        f"--kind {kind} is not possible for the {whose}", hint=f"Choose from: {', '.join(kinds)}."
    )


def _similarity(at: PositionSet, rows: Any, kind: Kind) -> Panel:
    grid, leading = at.placed(rows.shape[0])
    values = cosine_similarity(rows) if kind == "matrix" else similarity_maps(rows, grid, leading)
    return Panel(grid, at.resolution, at.note, leading, values)


def _biases(
    found: Sequence[PositionSet], layer: int, heads: Sequence[int], query: Grid | None
) -> list[Panel]:
    first, _ = found[0].placed(found[0].biases[layer].shape[-1])
    if query is None:
        query = (first[0] // 2, first[1] // 2)
    if not (0 <= query[0] < first[0] and 0 <= query[1] < first[1]):
        raise UsageError(
            f"--query {query[0]},{query[1]} is outside the {first[0]}x{first[1]} grid",
            hint=f"Rows go from 0 to {first[0] - 1}, columns from 0 to {first[1] - 1}.",
        )
    panels: list[Panel] = []
    for at in found:
        bias = at.biases[layer][list(heads)]
        grid, leading = at.placed(bias.shape[-1])
        here = matching_patch(query, first, grid)
        resolution = at.resolution if grid == at.grid else None
        values = bias_maps(bias, grid, here, leading)
        if all(grid != panel.grid for panel in panels):  # a window stays as it is at any size
            panels.append(Panel(grid, resolution, at.note, leading, values, query=here))
    return panels


def _turn(at: PositionSet, layer: int, head: int | None, kind: Kind) -> Rotation:
    """One layer's rotation; for frequencies of one head only."""
    turn = at.rotations[layer if len(at.rotations) > 1 else 0]
    count = turn.cos.shape[0]
    if head is not None and count == 1:
        raise UsageError(
            "--head has no meaning here: all heads turn by the same angles", hint="Leave it out."
        )
    if count > 1 and (head is not None or kind == "frequencies"):
        (one,) = _heads(count, head or 0)
        return Rotation(turn.cos[one : one + 1], turn.sin[one : one + 1])
    return turn


def _frequencies(at: PositionSet, turn: Rotation) -> Panel:
    cos, sin = turn.cos[0], turn.sin[0]  # [N, P]
    grid, leading = at.placed(cos.shape[0])
    h, w = grid
    maps = cos[leading : leading + h * w].reshape(h, w, -1)
    return Panel(
        grid,
        at.resolution,
        at.note,
        leading,
        np.moveaxis(maps, -1, 0),
        steps=rotary_steps(cos, sin, grid, leading),
    )


def _layer(count: int, layer: int | None) -> int:
    at = 0 if layer is None else layer
    if not 0 <= at < count:
        if count == 1:
            raise UsageError(
                f"--layer {at} has no meaning here: all layers share their positions",
                hint="Leave it out.",
            )
        raise UsageError(
            f"--layer {at} does not exist: layers with positions go from 0 to {count - 1}"
        )
    return at


def _heads(count: int, head: int | None) -> tuple[int, ...]:
    if head is None:
        return tuple(range(count))
    if not 0 <= head < count:
        raise UsageError(f"--head {head} does not exist: heads go from 0 to {count - 1}")
    return (head,)
