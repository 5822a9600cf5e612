"""What a source says about a model before loading it, and what it gives once loaded.

A *source* is where a torch module comes from. :class:`ModelFacts` are known without torch where
the source allows it (presets, a ``config.json``), so that a size that cannot fit is refused before
any weight is read. :class:`LoadedModel` keeps one pristine module that is never run and never
changed; the referee and the tracer each work on fresh copies of it.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from vitpe_deploy.errors import SizeError, SourceError, UnsupportedError, UsageError
from vitpe_deploy.inputs import ImageInput, InputLayout
from vitpe_deploy.pairing import EMBEDDING, NORMALIZED, Pairing, TokenizerFile
from vitpe_deploy.preprocess import Preprocess
from vitpe_deploy.request import ModelRequest, Resolution, closest
from vitpe_deploy.text_length import too_long

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitpe_deploy.parity import Reference

Remainder: TypeAlias = Literal["refuses", "floors", "pads"]

BLOCK = "block:"


@dataclass(frozen=True, slots=True)
class SizeRule:
    """Which image sizes a network can take.

    Attributes:
        divisor: height and width that sizes must be multiples of, in pixels.
        reason: what the divisor comes from, as it reads in "does not fit ...".
        remainder: what the library does with other sizes: refuses them, silently drops border
            pixels (floors), or pads by itself.
        fixed: the only size possible, for networks that cannot change it.
        square: why height and width must be equal; empty when they need not.
        least: the smallest height and width.
    """

    divisor: tuple[int, int]
    reason: str
    remainder: Remainder = "refuses"
    fixed: Resolution | None = None
    fixed_reason: str = ""
    square: str = ""
    least: tuple[int, int] = (1, 1)

    @classmethod
    def for_patches(
        cls,
        patch: tuple[int, int],
        remainder: Remainder,
        *,
        fixed: Resolution | None = None,
        fixed_reason: str = "",
    ) -> SizeRule:
        """The rule of a network that cuts pictures into patches and does nothing else with them."""
        named = str(patch[0]) if patch[0] == patch[1] else f"{patch[0]}x{patch[1]}"
        return cls(patch, f"patch size {named}", remainder, fixed, fixed_reason)

    def check(self, size: Resolution, *, allow_floor: bool = False, flag: str = "--res") -> None:
        """Refuse a size that the network cannot take exactly.

        Raises:
            SizeError: names the nearest valid values of each axis that does not fit.
        """
        if self.fixed is not None and size != self.fixed:
            raise SizeError(
                f"{flag} {_short(size)} is not possible: {self.fixed_reason}",
                hint=f"Use {_short(self.fixed)}.",
            )
        if self.square and size.height != size.width:
            raise SizeError(
                f"{flag} {size} is not possible, only squares are: {self.square}",
                hint=f"Use {size.height} or {size.width}.",
            )
        if size.height < self.least[0] or size.width < self.least[1]:
            raise SizeError(
                f"{flag} {_short(size)} is smaller than the network's windows or maps allow",
                hint=f"Use at least {_short(Resolution(*self.least))}.",
            )
        if self.remainder == "pads" or (self.remainder == "floors" and allow_floor):
            for n, d in zip((size.height, size.width), self.divisor, strict=True):
                if self.remainder == "floors" and n < d:
                    raise SizeError(
                        f"{flag} {_short(size)} is smaller than one patch ({self.reason})",
                        hint=f"Use at least {d}.",
                    )
            return
        axes = list(zip(("height", "width"), (size.height, size.width), self.divisor, strict=True))
        bad = [(name, n, d) for name, n, d in axes if n % d]
        if not bad:
            return
        if size.height == size.width and self.divisor[0] == self.divisor[1]:
            _, n, d = bad[0]
            raise SizeError(
                f"{flag} {n} does not fit {self.reason} ({n} = {n // d}*{d} + {n % d}).",
                hint=f"Use {_nearest(n, d)}.{self._floor_hint()}",
            )
        wanted = ", ".join(f"{name} {_nearest(n, d)}" for name, n, d in bad)
        raise SizeError(
            f"{flag} {size} does not fit {self.reason}.",
            hint=f"{wanted[0].upper()}{wanted[1:]}.{self._floor_hint()}",
        )

    def _floor_hint(self) -> str:
        if self.remainder != "floors":
            return ""
        return " (--allow-floor exports it as the library runs it, dropping the border pixels.)"

    def nearby(self, native: Resolution) -> tuple[Resolution, ...]:
        """Native, one valid size below it, and one valid size of another shape."""
        dh, dw = self.divisor
        rows, columns = max(native.height // dh, 1), max(native.width // dw, 1)
        low, narrow = -(-self.least[0] // dh), -(-self.least[1] // dw)
        below = Resolution(max(rows // 2, low) * dh, max(columns // 2, narrow) * dw)
        fewer, more = max(rows - max(rows // 4, 1), low), columns + max(columns // 4, 1)
        return native, below, Resolution(fewer * dh, more * dw)

    def unlike(self, native: Resolution) -> Resolution:
        """A valid size to trace a dynamic model at: neither native nor square."""
        dh, dw = self.divisor
        rows, columns = native.height // dh, native.width // dw
        return Resolution((rows + 2) * dh, (columns + 5) * dw)


@dataclass(frozen=True, slots=True)
class LengthRule(SizeRule):
    """Which lengths a text tower can take; a length is a size of one row.

    Attributes:
        limit: tokens of the longest text.
    """

    divisor: tuple[int, int] = (1, 1)
    reason: str = ""
    limit: int = 77

    def check(self, size: Resolution, *, allow_floor: bool = False, flag: str = "--res") -> None:
        """Refuse lengths over the limit, and sizes of pictures."""
        if size.height != 1:
            raise UsageError(
                f"{flag} {size} is a size of pictures, this model reads text",
                hint="Leave it out; --max-length decides the length.",
            )
        if size.width > self.limit:
            raise too_long(size.width, self.limit)
        if self.fixed is not None and size != self.fixed:
            raise SizeError(
                f"a length of {size.width} is not possible: {self.fixed_reason}",
                hint=f"Pad the text to {self.fixed.width} tokens.",
            )

    def nearby(self, native: Resolution) -> tuple[Resolution, ...]:
        """The longest text, half of it, and a single token."""
        return native, Resolution(1, max(native.width // 2, 1)), Resolution(1, 1)

    def unlike(self, native: Resolution) -> Resolution:
        """A length that is neither the longest nor one."""
        return Resolution(1, min(native.width // 2 + 3, self.limit))


def _short(size: Resolution) -> str:
    return str(size.height) if size.height == size.width else str(size)


def _nearest(n: int, divisor: int) -> str:
    below, above = n // divisor * divisor, (n // divisor + 1) * divisor
    return f"{below} or {above}" if below else f"{above}"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model without loading its weights.

    Attributes:
        name: stem of the files that are written.
        spec: the MODEL string that names it, or a description of a module passed in.
        native: the size of its own positions, or None when it has no preferred size.
        encoding: the kind of positions, as far as it is known.
        grid_divisor: pixels per token of the output grid.
        prefix_tokens: tokens in front of the patches in the ``tokens`` output.
        outputs: what can be asked for, without ``block:k``.
        default_outputs: what the model itself returns.
        depth: number of blocks that ``block:k`` can name.
        labels: names of the classes in the order of the logits; empty when not known.
        dynamic_rule: sizes that a file with symbolic height and width takes, where that differs.
        no_dynamic: why no such file can be written; empty when it can.
    """

    name: str
    spec: str
    native: Resolution | None
    size_rule: SizeRule
    grid_divisor: tuple[int, int]
    encoding: str | None
    encoding_params: Mapping[str, object]
    prefix_tokens: int
    outputs: tuple[str, ...]
    default_outputs: tuple[str, ...]
    depth: int
    input: InputLayout = ImageInput()
    preprocess: Preprocess = Preprocess()
    labels: tuple[str, ...] = ()
    resample_rule: str | None = None
    dynamic_rule: SizeRule | None = None
    no_dynamic: str = ""

    def sizes(self, *, symbolic: bool) -> SizeRule:
        """The sizes of a static file, or those of one with symbolic height and width.

        Raises:
            UnsupportedError: no file with symbolic height and width can be written.
        """
        if not symbolic:
            return self.size_rule
        if self.no_dynamic:
            raise UnsupportedError(
                f"{self.name} cannot be exported with a dynamic size: {self.no_dynamic}",
                hint="Leave out --dynamic."
                if self.size_rule.fixed is not None
                else "Export each size that you need as a static file: --res takes several.",
            )
        return self.dynamic_rule or self.size_rule

    def check_outputs(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The outputs to write: ``wanted`` when the model has them, else its own.

        Raises:
            UsageError: unknown or repeated name, or a block that does not exist.
        """
        if not wanted:
            return self.default_outputs
        if len(set(wanted)) != len(wanted):
            raise UsageError(f"--outputs names one output twice: {','.join(wanted)}")
        for name in wanted:
            if name.startswith(BLOCK):
                number = name.removeprefix(BLOCK)
                if not number.isdigit() or not int(number) < self.depth:
                    raise UsageError(
                        f"--outputs {name!r}: {self.name} has blocks 0 to {self.depth - 1}",
                        hint=f"Use block:{self.depth - 1} for the last one.",
                    )
            elif name not in self.outputs and not (
                name == NORMALIZED and EMBEDDING in self.outputs
            ):
                raise UsageError(
                    f"--outputs {name!r} is not an output of {self.name}",
                    hint=f"{closest(name, self.outputs)}"
                    f"Choose from: {', '.join(self.outputs)}, block:K.",
                )
        return wanted

    def grid(self, size: Resolution) -> tuple[int, int]:
        """Rows and columns of patch tokens at an image size."""
        return size.height // self.grid_divisor[0], size.width // self.grid_divisor[1]


@dataclass(frozen=True, slots=True)
class PositionFit:
    """How one set of positions gets to a new grid, for the report."""

    kind: str
    old_grid: tuple[int, int] | None
    new_grid: tuple[int, int] | None
    rule: str | None

    def __str__(self) -> str:
        if self.old_grid is None:
            return self.kind
        old = "x".join(map(str, self.old_grid))
        if self.new_grid is None:
            return f"grid {old} -> from H and W, {self.rule or self.kind}"
        new = "x".join(map(str, self.new_grid))
        if self.old_grid == self.new_grid:
            return f"grid {old}, kept"
        return f"grid {old} -> {new}, {self.rule or self.kind}"


class LoadedModel(ABC):
    """A module with its weights, and how its library runs it."""

    def __init__(self, facts: ModelFacts, pristine: nn.Module, weights: str) -> None:
        self.facts = facts
        self.weights = weights
        self._pristine = pristine.eval().requires_grad_(False)
        self._weights_sha256: str | None = None
        self.pairing: Pairing | None = None
        """How its embedding is compared with that of the other tower; sources of towers set it."""

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self._pristine.parameters())

    def fresh(self, size: Resolution | None = None, *, symbolic: bool = False) -> nn.Module:
        """An untouched copy, sharing parameter memory and no other state.

        ``size`` matters to libraries that build another network for each size, ``symbolic`` to
        those with a network of its own for any size.
        """
        del size, symbolic
        shared = {id(p): p for p in self._pristine.parameters()}
        return copy.deepcopy(self._pristine, memo=shared)

    @abstractmethod
    def block_paths(self) -> tuple[str, ...]:
        """Module paths of the blocks that ``block:k`` names, in order."""

    @abstractmethod
    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Run a copy as its library does. Gives the named outputs, except ``block:k``.

        inputs: pixel values [B, C, H, W] in float32, or token ids [B, L].
        """

    def explicit(self, size: Resolution | None) -> nn.Module:
        """A copy whose own encodings are resolved at a size, or symbolically for None."""
        return self.fresh()

    @abstractmethod
    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """What happens to each set of positions on the way to ``size``."""

    @property
    def reference(self) -> str:
        """What files are compared with, for the report."""
        return "pytorch"

    def referee(self, *, threads: int | None = None, symbolic: bool = False) -> Reference:
        """Gives the right outputs. ``symbolic`` says whether the file has a symbolic size."""
        from vitpe_deploy.referee import Referee

        return Referee(self, threads=threads, symbolic=symbolic)

    @contextmanager
    def reference_rule(self, inputs: Tensor) -> Iterator[None]:
        """Inside, the eager model follows the user's resample override, if there is one."""
        yield

    def read(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """The named outputs of one run, blocks included, in the order asked for."""
        wanted = {int(n.removeprefix(BLOCK)) for n in names if n.startswith(BLOCK)}
        plain = tuple(n for n in names if not n.startswith(BLOCK))
        paths = self.block_paths()
        with captured({f"{BLOCK}{k}": paths[k] for k in sorted(wanted)}, module) as blocks:
            outputs = self._named(module, inputs, plain)
        return {name: (blocks if name in blocks else outputs)[name] for name in names}

    def _named(
        self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]
    ) -> dict[str, Tensor]:
        """What the library gives, and the embedding of length 1."""
        if NORMALIZED not in names:
            return self.call(module, inputs, names)
        own = tuple(n for n in names if n not in (NORMALIZED, EMBEDDING))
        outputs = self.call(module, inputs, (*own, EMBEDDING))
        embedding = outputs[EMBEDDING]
        outputs[NORMALIZED] = embedding / embedding.norm(dim=-1, keepdim=True)
        return outputs

    def require_finite(self) -> None:
        """Refuse weights that are not numbers: no comparison could mean anything.

        Buffers may hold infinities, as masks do, but no NaN.

        Raises:
            SourceError: names the tensors.
        """
        from vitpe_deploy.sources.finite import has_nan, is_finite

        bad = [n for n, p in self._pristine.named_parameters() if not is_finite(p)]
        bad += [n for n, b in self._pristine.named_buffers() if has_nan(b)]
        if bad:
            listed = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
            raise SourceError(
                f"the weights of {self.facts.name} hold NaN or infinity: {listed}",
                hint="The checkpoint is damaged or its training diverged: use another one.",
            )

    def weights_sha256(self) -> str:
        """SHA-256 over names, types, shapes and bytes of all parameters and buffers."""
        if self._weights_sha256 is None:
            self._weights_sha256 = self._hash_weights()
        return self._weights_sha256

    def _hash_weights(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._pristine.state_dict().items()):
            digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            if tensor.numel():  # an empty view cannot be cast
                digest.update(memoryview(tensor.detach().cpu().contiguous().numpy()).cast("B"))
        return digest.hexdigest()


@contextmanager
def captured(paths: Mapping[str, str], module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs of submodules by hooks. Gives a dict that fills during the run."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> object:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            seen[name] = output[0] if isinstance(output, tuple) else output  # type: ignore[assignment]

        return hook

    handles = [
        module.get_submodule(path).register_forward_hook(keep(name))  # type: ignore[arg-type]
        for name, path in paths.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class Source(ABC):
    """Where a model comes from. One file per source.

    Attributes:
        anonymous: whether the model was passed in as a module, so that no string can name it.
    """

    anonymous: ClassVar[bool] = False
    declares_encoding: ClassVar[bool] = False
    """Whether the encoding is stated by the source, and not found by looking."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request

    @abstractmethod
    def facts(self) -> ModelFacts:
        """What is known before loading.

        Raises:
            UsageError: the name does not exist, with the closest one.
            MissingExtraError: the library of this source is not installed.
        """

    @abstractmethod
    def load(self) -> LoadedModel:
        """Module and weights.

        Raises:
            SourceError: weights are missing, damaged or do not fit.
        """

    def tokenizer(self) -> TokenizerFile | None:
        """How text becomes the token ids of a text tower; None where the source has no files."""
        return None

    def outline(self) -> LoadedModel:
        """The model for looking at; parameters without data where the library can do without.

        Raises:
            SourceError: as :meth:`load`, for sources that have no other way.
        """
        return self.load()

    def refuse_unused(self, **given: object) -> None:
        """Refuse options that this source has no use for, by flag name."""
        for flag, value in given.items():
            if value:
                raise UnsupportedError(
                    f"--{flag.replace('_', '-')} has no meaning for {self.request.model}",
                    hint="Leave it out.",
                )
