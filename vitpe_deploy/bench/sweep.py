"""Models in place of files: what a sweep over encodings, precisions and sizes has to export first.

Exports run as commands of their own, so that this process and the timed ones stay free of torch.
Files go to one folder; those that are there already and say that they are the same are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitpe_deploy import errors
from vitpe_deploy.errors import UsageError, VitpeError
from vitpe_deploy.manifest import Manifest, manifest_path, read_manifest
from vitpe_deploy.request import Resolution


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is exported: every model with every encoding in every precision.

    Attributes:
        models: MODEL strings.
        encodings: of reference models; their own when empty.
        precisions: number formats of the files: fp32, fp16, int8, int8-weights.
        kwargs: ``KEY=VALUE`` options of the constructors.
        calibration: data that int8 is made with.
        folder: where the files go.
    """

    models: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    kwargs: tuple[str, ...] = ()
    calibration: str | None = None
    folder: Path = Path("out")


@dataclass(frozen=True, slots=True)
class PlannedExport:
    """One static file of a sweep; ``sizes`` are those that one command exports together."""

    path: Path
    model: str
    encoding: str | None
    precision: str
    size: Resolution
    sizes: tuple[Resolution, ...]
    batch: int
    kwargs: tuple[str, ...]
    calibration: str | None

    def command(self) -> list[str]:
        """The flags of ``vitpe-export``. Files are compared where they are timed, not here."""
        return [
            *_flags(self.model, self.encoding, self.precision, self.kwargs, self.calibration),
            *(word for size in self.sizes for word in ("--res", str(size))),
            "--batch", str(self.batch), "--no-verify", "-o", str(self.path.parent),
        ]  # fmt: skip

    def carry_out(self) -> None:
        """Write the file with those of the other sizes, over files of another request.

        Does nothing when it is there by now.

        Raises:
            VitpeError: what the command said.
        """
        if self.kept() is None:
            ask_export([*self.command(), "--force"])

    def kept(self) -> Manifest | None:
        """The manifest of the file when it is there and was made by this very request."""
        if not self.path.is_file() or not manifest_path(self.path).is_file():
            return None
        found = read_manifest(self.path)
        source = found.source
        same = source is not None and (
            (source.model, found.precision, found.calibration, source.weights, source.seed)
            == (self.model, self.precision, self.calibration, None, 0)
            and source.encoding == self.encoding
            and sorted(f"{k}={v}" for k, v in source.kwargs.items()) == sorted(self.kwargs)
        )
        return found if same else None

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


def _flags(
    model: str, encoding: str | None, precision: str, kwargs: Sequence[str], calibration: str | None
) -> list[str]:
    flags = [model, "--precision", precision]
    flags += [] if encoding is None else ["--pe", encoding]
    flags += [word for pair in kwargs for word in ("--model-kwarg", pair)]
    return flags + ([] if calibration is None else ["--calibration", calibration])


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
                    flags = _flags(model, encoding, precision, sweep.kwargs, calibration)
                    flags += [word for size in sizes for word in ("--res", str(size))]
                    flags += ["--batch", str(batch), "-o", str(sweep.folder)]
                    plan = ask_export([*flags, "--no-verify", "--force", "--dry-run"])
                    for file in plan["files"]:
                        yield PlannedExport(
                            path=Path(file["paths"][0]),
                            model=model,
                            encoding=encoding,
                            precision=precision,
                            size=Resolution(*file["resolution"]),
                            sizes=tuple(Resolution(*f["resolution"]) for f in plan["files"]),
                            batch=batch,
                            kwargs=sweep.kwargs,
                            calibration=calibration,
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
