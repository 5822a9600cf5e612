"""The right outputs of an artifact's inputs, from PyTorch, in a process of its own.

    python -m vitpe_deploy.bench.reference JOB

The parent of a benchmark stays free of torch, and so does every child that times another engine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from vitpe_deploy.bench.inputs import save_expected, save_inputs
from vitpe_deploy.bench.plan import Artifact
from vitpe_deploy.bundle import SUFFIX as BUNDLE
from vitpe_deploy.bundle import open_bundle
from vitpe_deploy.errors import VitpeError
from vitpe_deploy.parity import make_case
from vitpe_deploy.request import Dynamic, Resolution

SEEDS = 2
"""Random batches that agreement is judged on, besides the structured picture and the images."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Inputs of one size and batch; ``expected`` is None where there is no reference.

    ``reference`` is ``stored`` where the outputs are those of a bundle beside the artifact.
    """

    inputs: Path
    expected: Path | None
    reference: Literal["pytorch", "stored"] = "pytorch"


def prepare(
    artifact: Artifact,
    cases: Sequence[tuple[Resolution, int]],
    folder: Path,
    *,
    images: Path | None,
    threads: int,
) -> tuple[dict[tuple[Resolution, int], Prepared], str | None]:
    """Write inputs and PyTorch's outputs of every size and batch.

    Returns:
        The files by case, and why there is no reference where there is none.
    """
    manifest = artifact.manifest
    paths: dict[tuple[Resolution, int], Path] = {}
    for number, (size, batch) in enumerate(dict.fromkeys(cases)):
        case = make_case(
            size,
            batch,
            layout=manifest.layout(),
            preprocess=manifest.preprocessing(),
            images=images,
            seeds=SEEDS,
        )
        paths[size, batch] = save_inputs(folder / f"in{number}.npz", case.inputs)
    job = {
        "artifact": str(artifact.path),
        "threads": threads,
        "cases": [[size.as_list(), str(path)] for (size, _), path in paths.items()],
    }
    done = subprocess.run(
        [sys.executable, "-m", "vitpe_deploy.bench.reference", json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
    )
    problem = None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        problem = lines[-1][:300]
    found = {
        key: Prepared(path, None if problem else _expected(path)) for key, path in paths.items()
    }
    if problem is None:
        return found, None
    stored = _from_bundle(artifact, found)
    missing = len(stored) < len(found)
    return found | stored, problem if missing else None


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
                found[key] = Prepared(inputs, expected, "stored")
    return found


def _expected(inputs: Path) -> Path:
    return inputs.with_name(inputs.name.replace("in", "out", 1))


def compute(artifact: Path, cases: Sequence[tuple[Resolution, Path]], threads: int) -> None:
    """Run the untouched eager model, fresh for every size, and write what it says."""
    from vitpe_deploy.bench.torch_model import load_recorded
    from vitpe_deploy.referee import Referee

    manifest, loaded = load_recorded(artifact)
    referee = Referee(loaded, threads=threads, symbolic=Dynamic(manifest.dynamic).size)
    names = tuple(output.name for output in manifest.outputs)
    for size, path in cases:
        with np.load(path, allow_pickle=False) as arrays:
            inputs = [arrays[f"in{k}"] for k in range(len(arrays.files))]
        save_expected(_expected(path), referee.outputs(size, inputs, names))


def main() -> int:
    """The reference process; its last line on stderr says what went wrong."""
    job = json.loads(sys.argv[1])
    cases = [(Resolution(*size), Path(path)) for size, path in job["cases"]]
    try:
        compute(Path(job["artifact"]), cases, job["threads"])
    except VitpeError as error:
        sys.stderr.write(f"\n{error.message}\n")
        return 1
    except ImportError as error:
        sys.stderr.write(f"\nPyTorch is not installed here ({error})\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
