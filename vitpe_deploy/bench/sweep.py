"""Models in place of files: what a sweep over encodings, precisions and sizes has to export first.

Exports run as commands of their own, so that this process and the timed ones stay free of torch.
Files go to folders that are named by everything that they are made from: the command, the content
of what it reads, and the versions of the packages at work. Nothing else is written there, so that
no file of another origin is ever timed in their place, or replaced by them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitpe_deploy import __version__, errors
from vitpe_deploy.errors import ArtifactError, UsageError, VitpeError
from vitpe_deploy.files import sha256_of
from vitpe_deploy.fingerprint import digest, inputs_of
from vitpe_deploy.manifest import Manifest, read_manifest
from vitpe_deploy.request import Resolution
from vitpe_deploy.versions import BOUNDS, installed

EXPORTS = "bench-exports"
"""Folder below that of a sweep, which holds nothing but its exports."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is exported: every model with every encoding in every precision.

    Attributes:
        models: MODEL strings.
        encodings: of reference models; their own when empty.
        precisions: number formats of the files: fp32, fp16, int8, int8-weights.
        kwargs: ``KEY=VALUE`` options of the constructors.
        calibration: data that int8 is made with.
        folder: what they are exported below, see :data:`EXPORTS`.
    """

    models: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    kwargs: tuple[str, ...] = ()
    calibration: str | None = None
    folder: Path = Path("out")


@dataclass(frozen=True, slots=True)
class PlannedExport:
    """One static file of a sweep; ``together`` are all files that one command can export."""

    path: Path
    model: str
    encoding: str | None
    size: Resolution
    batch: int
    kwargs: tuple[str, ...]
    flags: tuple[str, ...]
    together: tuple[tuple[Path, Resolution], ...]

    def command(self) -> list[str]:
        """The flags of ``vitpe-export``, for those of ``together`` that are not there yet.

        Files are compared where they are timed, not here.
        """
        missing = [size for path, size in self.together if _kept(path) is None]
        return [
            *self.flags,
            *(word for size in missing for word in ("--res", str(size))),
            "-o",
            str(self.path.parent),
        ]

    def carry_out(self) -> None:
        """Write the file with the others that are missing; nothing when it is there by now.

        Raises:
            VitpeError: what the command said.
        """
        if self.kept() is None:
            ask_export([*self.command(), "--force"])

    def kept(self) -> Manifest | None:
        """The manifest of the file when it is there, whole and as it was exported."""
        return _kept(self.path)

    def gflops(self, size: Resolution, batch: int) -> float | None:
        """Operations before there is a graph, of reference ViTs; None for other models.

        The four products of a block with its weights, and the two of attention.
        """
        from vitpe_deploy.build_request import model_request
        from vitpe_deploy.models.presets import ViTConfig
        from vitpe_deploy.sources import open_source

        kwargs: dict[str, Any] = dict(word.partition("=")[::2] for word in self.kwargs)
        try:
            source = open_source(model_request(self.model, encoding=self.encoding, kwargs=kwargs))
        except VitpeError:
            return None
        config = getattr(source, "config", None)
        if not isinstance(config, ViTConfig):
            return None
        tokens = (size.height // config.patch_size) * (size.width // config.patch_size) + 1
        width = config.embed_dim
        linear = tokens * width**2 * (8 + 4 * config.mlp_ratio)
        return batch * config.depth * (linear + 4 * tokens**2 * width) / 1e9


def _kept(path: Path) -> Manifest | None:
    try:
        found = read_manifest(path)
    except ArtifactError:
        return None
    return found if found.sha256 == sha256_of(path) else None


def _flags(
    model: str, encoding: str | None, precision: str, kwargs: Sequence[str], calibration: str | None
) -> list[str]:
    flags = [model, "--precision", precision]
    flags += [] if encoding is None else ["--pe", encoding]
    flags += [word for pair in kwargs for word in ("--model-kwarg", pair)]
    return flags + ([] if calibration is None else ["--calibration", calibration])


def _home(folder: Path, flags: Sequence[str]) -> Path:
    """Where files of one request go; sizes are not part of it, they stand in the files' names."""
    versions = [f"{name} {installed(name)}" for name in BOUNDS]
    read = [word for pair in inputs_of(flags).items() for word in pair]
    return folder / EXPORTS / digest([__version__, *versions, *flags, *read])[:16]


def plan_exports(
    sweep: Sweep, sizes: Sequence[Resolution], batches: Sequence[int]
) -> Iterator[PlannedExport]:
    """Every file of the sweep, in the order of models, encodings, precisions, batches and sizes.

    Raises:
        VitpeError: what ``vitpe-export --dry-run`` refuses.
    """
    for model in sweep.models:
        for encoding in sweep.encodings or (None,):
            for precision in sweep.precisions:
                calibration = sweep.calibration if precision.startswith("int8") else None
                if precision == "int8" and calibration is None:
                    raise UsageError(
                        "--precision int8 needs --calibration",
                        hint="Give a folder of pictures, or random.",
                    )
                for batch in batches or (1,):
                    flags = [
                        *_flags(model, encoding, precision, sweep.kwargs, calibration),
                        *("--batch", str(batch), "--no-verify"),
                    ]
                    home = _home(sweep.folder, flags)
                    wanted = [word for size in sizes for word in ("--res", str(size))]
                    plan = ask_export([*flags, *wanted, "-o", str(home), "--force", "--dry-run"])
                    files = tuple(
                        (Path(file["paths"][0]), Resolution(*file["resolution"]))
                        for file in plan["files"]
                    )
                    for path, size in files:
                        yield PlannedExport(
                            path, model, encoding, size, batch, sweep.kwargs, tuple(flags), files
                        )


def ask_export(flags: Sequence[str]) -> dict[str, Any]:
    """The document that ``vitpe-export`` prints.

    Raises:
        VitpeError: the error that it prints instead.
    """
    done = subprocess.run(
        [sys.executable, "-m", "vitpe_deploy", "export", *flags, "--json", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as problem:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise VitpeError(f"vitpe-export {flags[0]} ended: {last[:200]}") from problem
    if document["schema"] == "vitpe.error/1":
        raise errors.from_document(document)
    return document
