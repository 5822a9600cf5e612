"""The right outputs of an artifact's inputs, from PyTorch, in a process of its own.

    python -m vitpe_deploy.bench.reference JOB

The parent of a benchmark stays free of torch, and so does every child that times another engine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from vitpe_deploy.bench.inputs import save_expected, save_inputs
from vitpe_deploy.bench.labels import LabelledPictures, read_labels, save_pictures
from vitpe_deploy.bench.plan import Artifact
from vitpe_deploy.bundle import SUFFIX as BUNDLE
from vitpe_deploy.bundle import open_bundle
from vitpe_deploy.errors import VitpeError
from vitpe_deploy.manifest import Manifest
from vitpe_deploy.parity import LOGITS, ParityCase, agreement_cases, make_case
from vitpe_deploy.pixels import reference_for
from vitpe_deploy.request import Dynamic, Resolution
from vitpe_deploy.results import JudgedOn

_CHUNK = 16
"""Pictures that PyTorch classifies at a time."""

SEEDS = 2
"""Random batches that agreement is judged on, besides the structured picture and the images."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Inputs of one size and batch; ``expected`` is None where there is no reference.

    ``reference`` is ``stored`` where the outputs are those of a bundle beside the artifact;
    ``data`` says what the inputs are, None where a bundle does not.
    """

    inputs: Path
    expected: Path | None
    reference: Literal["pytorch", "stored"] = "pytorch"
    data: JudgedOn | None = None


@dataclass(frozen=True, slots=True)
class Classified:
    """Pictures with labels as inputs of one size; PyTorch's classes where there is a reference."""

    inputs: Path
    pictures: LabelledPictures
    reference_classes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """Everything that one artifact is judged by, and why there is no reference where there is none.

    ``classified`` is by size, empty without labels.
    """

    cases: Mapping[tuple[Resolution, int], Prepared]
    classified: Mapping[Resolution, Classified]
    problem: str | None = None


def prepare(
    artifact: Artifact,
    cases: Sequence[tuple[Resolution, int]],
    folder: Path,
    *,
    images: Path | None,
    labels: Path | None,
    threads: int,
) -> Reference:
    """Write inputs and PyTorch's outputs of every size and batch."""
    manifest = artifact.manifest
    paths: dict[tuple[Resolution, int], Path] = {}
    data: dict[tuple[Resolution, int], JudgedOn | None] = {}
    for number, (size, batch) in enumerate(dict.fromkeys(cases)):
        case = _case(manifest, size, batch, images)
        paths[size, batch] = save_inputs(folder / f"in{number}.npz", case.inputs)
        data[size, batch] = case.data
    classified = {}
    if images is not None and labels is not None:
        pictures = read_labels(labels, images, manifest.labels)
        for size in dict.fromkeys(size for size, _ in cases):
            stored = save_pictures(
                folder / f"pictures-{size}.npy", pictures, size,
                layout=manifest.layout(), preprocess=manifest.preprocessing(),
            )  # fmt: skip
            classified[size] = Classified(stored, pictures)
    job = {
        "artifact": str(artifact.path),
        "threads": threads,
        "cases": [[size.as_list(), str(path)] for (size, _), path in paths.items()],
        "pictures": [[size.as_list(), str(c.inputs)] for size, c in classified.items()],
    }
    done = subprocess.run(
        [sys.executable, "-m", "vitpe_deploy.bench.reference", json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.returncode:
        found = {k: Prepared(path, _expected(path), data=data[k]) for k, path in paths.items()}
        known = {
            size: replace(c, reference_classes=tuple(json.loads(_classes(c.inputs).read_text())))
            for size, c in classified.items()
        }
        return Reference(found, known)
    problem = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
    without = {key: Prepared(path, None) for key, path in paths.items()}
    stored_cases = _from_bundle(artifact, without)
    missing = len(stored_cases) < len(without)
    return Reference(without | stored_cases, classified, problem if missing else None)


def _case(manifest: Manifest, size: Resolution, batch: int, images: Path | None) -> ParityCase:
    """Noise and pictures; for int8 what it was calibrated on, where that is still there."""
    case = make_case(
        size,
        batch,
        layout=manifest.layout(),
        preprocess=manifest.preprocessing(),
        images=images,
        seeds=SEEDS,
    )
    if manifest.min_agreement is None:
        return case
    (chosen,) = agreement_cases(
        [case],
        manifest.calibration,
        layout=manifest.layout(),
        preprocess=manifest.preprocessing(),
        images=images,
    )
    return chosen


def _from_bundle(
    artifact: Artifact, wanted: Mapping[tuple[Resolution, int], Prepared]
) -> dict[tuple[Resolution, int], Prepared]:
    """What a bundle of this very file beside it stores of the cases; nothing without one."""
    path = artifact.path.with_name(artifact.path.name + BUNDLE)
    if not path.is_file():
        return {}
    found = {}
    with open_bundle(path) as bundle:
        if bundle.manifest.sha256 != artifact.manifest.sha256:
            return {}
        for case in bundle.cases:
            key = (case.size, case.batch)
            if key in wanted and key not in found:
                inputs = save_inputs(wanted[key].inputs, case.inputs)
                expected = save_expected(_expected(inputs), bundle.expected(case))
                found[key] = Prepared(inputs, expected, "stored", case.data)
    return found


def _expected(inputs: Path) -> Path:
    return inputs.with_name(inputs.name.replace("in", "out", 1))


def _classes(inputs: Path) -> Path:
    return inputs.with_suffix(".json")


Files = Sequence[tuple[Resolution, Path]]


def compute(artifact: Path, cases: Files, pictures: Files, threads: int) -> None:
    """Run the untouched eager model, fresh for every size, and write what it says."""
    from vitpe_deploy.bench.torch_model import load_recorded

    manifest, loaded = load_recorded(artifact)
    referee = reference_for(
        manifest.layout(),
        manifest.preprocessing(),
        loaded.referee(threads=threads, symbolic=Dynamic(manifest.dynamic).size),
    )
    names = tuple(output.name for output in manifest.outputs)
    for size, path in cases:
        with np.load(path, allow_pickle=False) as arrays:
            inputs = [arrays[f"in{k}"] for k in range(len(arrays.files))]
        save_expected(_expected(path), referee.outputs(size, inputs, names))
    for size, path in pictures:
        singles = np.load(path, mmap_mode="r", allow_pickle=False)
        chunks = [np.asarray(singles[k : k + _CHUNK]) for k in range(0, len(singles), _CHUNK)]
        scores = [o[LOGITS] for o in referee.outputs(size, chunks, (LOGITS,))]
        found = [int(k) for chunk in scores for k in chunk.argmax(-1)]
        _classes(path).write_text(json.dumps(found))


def main() -> int:
    """The reference process; its last line on stderr says what went wrong."""
    job = json.loads(sys.argv[1])
    cases, pictures = (
        [(Resolution(*size), Path(path)) for size, path in job[key]]
        for key in ("cases", "pictures")
    )
    try:
        compute(Path(job["artifact"]), cases, pictures, job["threads"])
    except VitpeError as error:
        sys.stderr.write(f"\n{error.message}\n")
        return 1
    except ImportError as error:
        sys.stderr.write(f"\nPyTorch is not installed here ({error})\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
