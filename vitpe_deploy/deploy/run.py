"""``vitpe-run``: pictures through an artifact, answers as one document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from vitpe_deploy.deploy.buckets import LoadedBuckets
from vitpe_deploy.deploy.loader import MAX_BATCH, LoadedArtifact, load
from vitpe_deploy.deploy.predictions import Prediction, top
from vitpe_deploy.errors import ArtifactError, UsageError
from vitpe_deploy.files import StagedFiles, refuse_existing
from vitpe_deploy.images import list_images
from vitpe_deploy.progress import Progress, Silent
from vitpe_deploy.request import Resolution
from vitpe_deploy.results import Value


class OutputRecord(Value):
    """One output of one input.

    Attributes:
        shape: without the batch.
        norm: Euclidean length of all its values.
        path: where it was saved; null without an output folder.
    """

    name: str
    shape: tuple[int, ...]
    norm: float
    path: str | None = None


class RunRow(Value):
    """What came out for one input; ``top`` is empty for files without logits."""

    input: str
    top: tuple[Prediction, ...]
    outputs: tuple[OutputRecord, ...]


class RunReport(Value):
    """What ``vitpe-run --json`` prints."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=()
    )

    schema_: Literal["vitpe.run/1"] = Field(default="vitpe.run/1", alias="schema")
    artifact: str
    runtime: str
    device: str
    precision_executed: str
    resolution: tuple[int, int] | None
    results: tuple[RunRow, ...]


def run_on(
    artifact: Path,
    inputs: Sequence[Path],
    *,
    device: str = "CPU",
    runtime: str | None = None,
    size: str | None = None,
    resize: bool = False,
    count: int = 5,
    output_dir: Path | None = None,
    force: bool = False,
    threads: int | None = None,
    cache: str | Path | bool | None = None,
    progress: Progress | None = None,
) -> RunReport:
    """Run a file on pictures, folders of pictures, and prepared ``.npy`` batches.

    Args:
        artifact: as :func:`vitpe_deploy.deploy.load` takes it.
        inputs: pictures, folders, or ``.npy`` files of what the model takes.
        device: in the engine's own words.
        runtime: onnxruntime or openvino.
        size: height and width of pictures in a file of symbolic size.
        resize: resample prepared inputs of another size.
        count: classes to give per input.
        output_dir: folder for every output of every input as ``.npy``; None saves nothing.
        force: replace files in it.
        threads: threads of the engine.
        cache: as :func:`vitpe_deploy.deploy.load` takes it.
        progress: told how far it is.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`; nothing was written.
    """
    shown = progress or Silent()
    paths = listed(inputs)
    with load(artifact, device=device, runtime=runtime, threads=threads, cache=cache) as model:
        options: dict[str, Any] = {"size": size, "resize": resize}
        rows: list[tuple[str, dict[str, npt.NDArray[Any]]]] = []
        for start in range(0, len(paths), MAX_BATCH):
            shown.tick(f"{start} of {len(paths)} inputs")
            rows += _outputs(model, paths[start : start + MAX_BATCH], options)
        saved = _save(rows, output_dir, force=force)
        results = []
        for place, (name, outputs) in enumerate(rows):
            best = (
                top(outputs["logits"][None], count, model.labels)[0]
                if ("logits" in outputs and outputs["logits"].ndim == 1)
                else []
            )
            results.append(
                RunRow(
                    input=name,
                    top=tuple(best),
                    outputs=tuple(
                        OutputRecord(
                            name=key,
                            shape=tuple(value.shape),
                            norm=float(np.linalg.norm(value.astype(np.float64))),
                            path=saved.get((place, key)),
                        )
                        for key, value in outputs.items()
                    ),
                )
            )
        size_used = model.size or (None if size is None else Resolution.from_any(size))
        return RunReport(
            artifact=str(model.path),
            runtime=model.info.runtime,
            device=model.info.device,
            precision_executed=model.info.precision_executed,
            resolution=None if size_used is None else (size_used.height, size_used.width),
            results=tuple(results),
        )


def listed(inputs: Sequence[Path]) -> list[Path]:
    """Folders replaced by the pictures in them.

    Raises:
        UsageError: nothing was named, or a folder without pictures.
    """
    if not inputs:
        raise UsageError("there is nothing to run on", hint="Name a picture or a folder.")
    paths: list[Path] = []
    for path in inputs:
        paths += list_images(path) if path.is_dir() else [path]
    return paths


def _outputs(
    model: LoadedArtifact | LoadedBuckets, paths: Sequence[Path], options: dict[str, Any]
) -> list[tuple[str, dict[str, npt.NDArray[Any]]]]:
    """One row per picture, and one per item of a prepared batch."""
    pictures = [p for p in paths if p.suffix != ".npy"]
    together = model(pictures, **options) if pictures else {}
    rows = []
    for path in paths:
        if path.suffix != ".npy":
            place = pictures.index(path)
            rows.append((str(path), {name: value[place] for name, value in together.items()}))
            continue
        values = _read_npy(path)
        if options["size"] is not None and values.dtype != np.uint8:
            raise UsageError(
                f"--res is for pictures, {path} holds prepared inputs",
                hint="Leave it out; --resize brings prepared inputs to another size.",
            )
        found = model(values, **options)
        items = len(next(iter(found.values())))
        rows += [
            (str(path) if items == 1 else f"{path}[{k}]", {n: v[k] for n, v in found.items()})
            for k in range(items)
        ]
    return rows


def _read_npy(path: Path) -> npt.NDArray[Any]:
    try:
        values = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", hint="Check the path.") from None
    except Exception as problem:  # numpy's header parser raises whatever Python's tokenizer does
        lines = str(problem).splitlines() or [type(problem).__name__]
        raise ArtifactError(
            f"{path} is not an array that can be read: {lines[0][:200]}",
            hint="Save it with numpy.save; objects are not read.",
        ) from problem
    if not isinstance(values, np.ndarray):
        raise ArtifactError(f"{path} holds several arrays", hint="Save one with numpy.save.")
    return values


def _save(
    rows: Sequence[tuple[str, dict[str, npt.NDArray[Any]]]], folder: Path | None, *, force: bool
) -> dict[tuple[int, str], str]:
    """``<input>.<output>.npy`` for every output of every input. Gives the paths."""
    if folder is None:
        return {}
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output {folder} is a file", hint="Give a folder.")
    names: dict[tuple[int, str], str] = {}
    taken: set[str] = set()
    for place, (name, outputs) in enumerate(rows):
        stem = Path(name).name
        while stem in taken:
            stem = f"{place}-{stem}"
        taken.add(stem)
        names |= {(place, key): f"{stem}.{key.replace(':', '_')}.npy" for key in outputs}
    refuse_existing([folder / file for file in names.values()], force=force)
    with StagedFiles(folder) as staging:
        for (place, key), file in names.items():
            with staging.path(file).open("wb") as target:
                np.save(target, rows[place][1][key], allow_pickle=False)
        staging.commit(replace=force)
    return {key: str(folder / file) for key, file in names.items()}
