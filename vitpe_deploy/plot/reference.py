"""Positions of the reference networks, by the contract that every encoding answers.

What an encoding *does* is asked through its hooks, so that scaled, placed and hybrid encodings
need no case of their own: the table is what ``tokens`` adds to zeros, the bias is what
``attention_bias`` gives for a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitpe_deploy.encodings.base import PositionEncoding, Positions
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.models.networks import patch_grid
from vitpe_deploy.models.presets import TextConfig
from vitpe_deploy.plot.similarity import Array, Grid
from vitpe_deploy.plot.values import BIAS, DECOMPOSED, NATIVE, RECOMPUTED, PositionSet, Rotation
from vitpe_deploy.request import Resolution


def holders(network: nn.Module) -> list[tuple[nn.Module, PositionEncoding]]:
    """The modules of a network that ask an encoding for positions, in the order of layers."""
    return [
        (module, encoding)
        for module in network.modules()
        if isinstance(encoding := dict(module.named_children()).get("encoding"), PositionEncoding)
    ]


class ReferenceReader:
    """A network with encodings of ours inside."""

    def __init__(self, network: nn.Module, name: str) -> None:
        self.name = name
        self._network: Any = network
        self._holders = holders(network)
        self.encoding: str | None = self._holders[0][1].kind

    def sets(self, resolutions: Sequence[Resolution]) -> tuple[PositionSet, ...]:
        """At the native size, then at each size given.

        Raises:
            UnsupportedError: a size was given, and the positions belong to windows or to words.
        """
        _, encoding = self._holders[0]
        window = self._window()
        native = encoding.spec.grid
        config = self._network.config
        if window is None and not isinstance(config, TextConfig):
            sizes = [Resolution(*config.image_size), *resolutions]
            grids = [patch_grid(config, size) for size in sizes]
            rule = _note(encoding)
            return tuple(
                replace(self._at(grid), resolution=size, note=NATIVE if grid == native else rule)
                for size, grid in zip(sizes, grids, strict=True)
            )
        if resolutions:
            raise UnsupportedError(
                f"--res {resolutions[0]} changes nothing: the positions of {self.name} belong to "
                + ("windows" if window is not None else "words"),
                hint="Leave out --res.",
            )
        found = [self._at(native)]
        if window is not None and window != native:
            rule = _note(encoding)
            found.append(replace(self._at(window), note=rule))
        return tuple(found)

    def _window(self) -> Grid | None:
        """Rows and columns of the attention window, where positions belong to it."""
        parent: Any = self._holders[0][0]
        window = getattr(parent, "bias_window", None) or getattr(parent, "window", None)
        return None if window is None else (window[-2], window[-1])

    def _at(self, grid: Grid) -> PositionSet:
        with torch.no_grad():
            parts = [_read(encoding, grid) for _, encoding in self._holders]
        first = parts[0]
        return replace(
            first,
            biases=tuple(bias for part in parts for bias in part.biases),
            rotations=tuple(turn for part in parts for turn in part.rotations),
        )


def _note(encoding: PositionEncoding) -> str:
    """How the encoding gets to another grid."""
    rule = encoding.describe().resample_rule
    return RECOMPUTED if rule in (None, "recompute") else str(rule)


def _read(encoding: PositionEncoding, grid: Grid) -> PositionSet:
    positions = encoding.positions(grid)
    decomposed = _ending(positions, "rel_h"), _ending(positions, "rel_w")
    biases = _biases(encoding, positions)
    meaning = BIAS
    if not biases and decomposed[0] is not None and decomposed[1] is not None:
        leading = encoding.spec.leading_tokens
        biases = _spreads(decomposed[0], decomposed[1], encoding.spec.depth, leading)
        meaning = DECOMPOSED
    return PositionSet(
        grid,
        table=_table(encoding, positions, grid),
        biases=biases,
        rotations=_rotations(positions),
        frames=encoding.spec.frames,
        bias_meaning=meaning,
    )


def _table(encoding: PositionEncoding, positions: Positions, grid: Grid) -> Array | None:
    """What is added to tokens: [prefix + t*h*w, D]."""
    spec = encoding.spec
    count = spec.prefix_tokens + spec.frames * grid[0] * grid[1]
    nothing = torch.zeros(1, count, spec.embed_dim)
    added = encoding.tokens(nothing, positions)
    return None if added is nothing else added[0].numpy()


def _biases(encoding: PositionEncoding, positions: Positions) -> tuple[Array, ...]:
    """[M, N, N] of every layer; layers that share one share its memory."""
    found: list[Array] = []
    known: dict[int, Array] = {}
    for layer in range(encoding.spec.depth):
        bias = encoding.attention_bias(positions, layer)
        if bias is None:
            return ()
        found.append(known.setdefault(bias.data_ptr(), bias[0].numpy()))
    return tuple(found)


def _rotations(positions: Positions) -> tuple[Rotation, ...]:
    """[N, P] is shared by layers and heads; [layers, M, N, P] is not."""
    cos, sin = _ending(positions, "cos"), _ending(positions, "sin")
    if cos is None or sin is None:
        return ()
    if cos.ndim == 2:
        cos, sin = cos[None, None], sin[None, None]
    return tuple(Rotation(c.numpy(), s.numpy()) for c, s in zip(cos, sin, strict=True))


def _spreads(rel_h: Tensor, rel_w: Tensor, depth: int, leading: int) -> tuple[Array, ...]:
    """rel_h: [layers, h, h, d], rel_w: [layers, w, w, d] -> depth x [1, L + N, L + N]."""
    frame = ((0, 0), (leading, 0), (leading, 0))
    found = [
        np.pad(decomposed_strength(rows, columns), frame)
        for rows, columns in zip(rel_h, rel_w, strict=True)
    ]
    return tuple(found if len(found) == depth else found * depth)


def decomposed_strength(rel_h: Tensor, rel_w: Tensor) -> Array:
    """How strongly decomposed tables can pull: |R_h + R_w| of each pair.

    Their bias is q . (R_h + R_w), so it has that standard deviation for q ~ N(0, I).

    Args:
        rel_h: [h, h, d], query row before key row.
        rel_w: [w, w, d].

    Returns:
        [1, h*w, h*w].
    """
    squared = (
        rel_h.square().sum(-1)[:, None, :, None]
        + rel_w.square().sum(-1)[None, :, None, :]
        + 2 * torch.einsum("ikd,jld->ijkl", rel_h, rel_w)
    )  # [h, w, h, w]
    count = rel_h.shape[0] * rel_w.shape[0]
    strength: Array = squared.clamp(min=0).sqrt().reshape(1, count, count).numpy()
    return strength


def _ending(positions: Positions, name: str) -> Tensor | None:
    """A position by its name in its own encoding, also inside a hybrid."""
    return next((v for k, v in positions.items() if k == name or k.endswith(f"_{name}")), None)
