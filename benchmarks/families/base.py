"""One cell of the coverage table: a network in one mode, exported and compared with its library."""

from __future__ import annotations

import contextlib
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

MODES = ("native", "static", "dynamic")
ENGINES = ("onnxruntime", "openvino")
LIMIT = 1e-4

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Saved:
    """A network with drawn weights on disk, and how this package is asked for it.

    Attributes:
        model: MODEL string.
        options: further arguments of ``vitpe_deploy.export``.
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)


class Library(ABC):
    """The networks of one library.

    Attributes:
        name: of the library, as users write it before the colon or on PyPI.
    """

    name: ClassVar[str]

    @abstractmethod
    def names(self, *, others: bool = False) -> tuple[str, ...]:
        """The families of the table; with ``others``, further names of the same mechanisms."""

    @abstractmethod
    def save(self, name: str, folder: Path) -> Saved:
        """Draw weights under which a wrong position shows, and write them to a folder."""

    @abstractmethod
    def reference(
        self, name: str, saved: Saved, mode: str, size: tuple[int, int], inputs: Any
    ) -> Arrays:
        """What the library answers, by the names of the file's outputs.

        The network is made by the library for the size, or run by it at the size, with the
        weights of the folder put in by the library. A single value named ``*`` stands for the
        only output of the file.
        """


@dataclass
class Cell:
    """One network in one mode.

    Attributes:
        max_rel: by engine and size, the largest relative difference over the file's outputs.
        export_s: seconds from the name to the file, without verification.
        refusal: the message of a refusal.
        problem: a crash, or the time limit.
    """

    library: str
    name: str
    mode: str
    max_rel: dict[str, dict[str, float]] = field(default_factory=dict)
    export_s: float | None = None
    refusal: str | None = None
    problem: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells cells apart."""
        return self.library, self.name, self.mode

    def worst(self, engine: str) -> float | None:
        """The worst size in one engine."""
        return max(self.max_rel.get(engine, {}).values(), default=None)


class Bench:
    """Runs cells one after the other; the network of the last one stays on disk for the next.

    Use it in a ``with`` statement.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = threads
        self._stack = contextlib.ExitStack()
        self._kept: tuple[tuple[str, str], Path, Saved, Any] | None = None

    def __enter__(self) -> Bench:
        """Nothing is made yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the folder."""
        self._stack.close()

    def cell(self, library: Library, name: str, mode: str) -> Cell:
        """Export one network and compare the file with its library, in this process.

        Where only squares are taken, the refusal of another shape is the cell's answer, and the
        square is compared all the same.
        """
        import torch

        from vitpe_deploy.errors import UsageError, VitpeError

        torch.set_num_threads(self._threads)
        cell = Cell(library.name, name, mode)
        try:
            folder, saved, facts = self._network(library, name)
            _fill(cell, library, saved, facts, folder / mode, self._threads)
        except UsageError as refused:
            cell.refusal = refused.message
        except VitpeError as problem:
            cell.problem = f"{type(problem).__name__}: {problem.message}"
        except Exception as problem:  # a traceback of ours is a fault that the table has to show
            where = traceback.extract_tb(problem.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            cell.problem = f"{type(problem).__name__} at {place}: {str(problem)[:300]}"
        return cell

    def _network(self, library: Library, name: str) -> tuple[Path, Saved, Any]:
        """A folder, what is saved in it, and what this package says of it."""
        from vitpe_deploy.request import ModelRequest
        from vitpe_deploy.sources import open_source

        if self._kept is None or self._kept[0] != (library.name, name):
            self._stack.close()
            self._kept = None
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
            saved = library.save(name, folder)
            options = saved.options
            request = ModelRequest(
                saved.model,
                kwargs=options.get("model_kwargs", {}),
                weights=options.get("weights"),
                tower=options.get("tower"),
            )
            self._kept = (library.name, name), folder, saved, open_source(request).facts()
        return self._kept[1:]


def run_cell(library: Library, name: str, mode: str, *, threads: int = 1) -> Cell:
    """One cell by itself."""
    with Bench(threads=threads) as bench:
        return bench.cell(library, name, mode)


def _fill(
    cell: Cell, library: Library, saved: Saved, facts: Any, folder: Path, threads: int
) -> None:
    from vitpe_deploy.errors import SizeError
    from vitpe_deploy.request import Resolution

    options = dict(saved.options)
    native = facts.native or Resolution(224, 224)
    rule = facts.sizes(symbolic=cell.mode == "dynamic")
    _, below, other = rule.nearby(native)
    text = facts.input.kind == "text"
    sizes = {"native": [native], "static": [below if text else other]}.get(
        cell.mode, [native, below, other]
    )
    asked: str | None = None
    if cell.mode == "dynamic":
        options["dynamic"] = "all"
    elif cell.mode == "static" and text:
        options["max_length"] = below.width
    elif cell.mode == "static":
        asked = str(other)
    try:
        path = _export(cell, saved.model, asked, options, folder, threads)
    except SizeError as refused:
        if not rule.square:
            raise
        cell.refusal = refused.message
        side = Resolution(below.height, below.height)
        path, sizes = _export(cell, saved.model, str(side), options, folder, threads), [side]
    batch = 2 if cell.mode == "dynamic" else 1
    for size in sizes:
        inputs = inputs_of(facts.input, size, batch)
        right = library.reference(cell.name, saved, cell.mode, (size.height, size.width), inputs)
        for engine, value in compare(path, facts.input.name, inputs, right, threads).items():
            cell.max_rel.setdefault(engine, {})[facts.input.label(size)] = value


def _export(
    cell: Cell,
    model: str,
    size: str | None,
    options: Mapping[str, Any],
    folder: Path,
    threads: int,
) -> Path:
    import vitpe_deploy

    start = time.perf_counter()
    report = vitpe_deploy.export(
        model, size, verify=False, output_dir=folder, threads=threads, **options
    )
    cell.export_s = round(time.perf_counter() - start, 1)
    return Path(report.artifacts[0].path)


def inputs_of(layout: Any, size: Any, batch: int) -> Any:
    """N(0, 1) pixels, or token ids that end at another place in every text."""
    import torch

    if layout.kind == "text":
        from vitpe_deploy.preprocess import Preprocess

        return torch.from_numpy(layout.arrays(size, batch, preprocess=Preprocess())[0])
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*layout.shape(size, batch), generator=generator)


def compare(
    path: Path, input_name: str, inputs: Any, right: Arrays, threads: int
) -> dict[str, float]:
    """Largest relative difference over all outputs of a file, by engine."""
    import numpy as np

    from vitpe_deploy.runtimes import open_runtime

    found: dict[str, float] = {}
    for engine in ENGINES:
        with open_runtime(engine, path, device="CPU", threads=threads) as runtime:
            given = runtime.run({input_name: inputs.numpy()})
        worst = 0.0
        for name, value in given.items():
            wanted = right.get("*" if len(given) == 1 and "*" in right else name)
            if wanted is None:
                raise LookupError(f"the library has no output {name}: {', '.join(right)}")
            wanted = np.asarray(wanted)
            same_shape = value.shape == wanted.shape
            if not same_shape or not np.isfinite(value - wanted).all() or not wanted.any():
                worst = float("inf")  # a reference of zeros proves nothing
            else:
                worst = max(worst, float(np.abs(value - wanted).max() / np.abs(wanted).max()))
        found[engine] = worst
    return found
