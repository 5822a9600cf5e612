"""``vitpe-run`` on two towers: which of several prompts a picture fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitpe_deploy.deploy.loader import MAX_BATCH
from vitpe_deploy.deploy.pair import load_pair
from vitpe_deploy.deploy.predictions import Prediction
from vitpe_deploy.deploy.run import RunReport, RunRow, listed
from vitpe_deploy.errors import UsageError
from vitpe_deploy.progress import Progress, Silent


def run_pair(
    path: Path,
    inputs: Sequence[Path],
    prompts: Sequence[str],
    *,
    device: str = "CPU",
    runtime: str | None = None,
    count: int = 5,
    threads: int | None = None,
    cache: str | Path | bool | None = None,
    progress: Progress | None = None,
) -> RunReport:
    """Score pictures against prompts; classes of the report are the prompts.

    Args:
        path: as :func:`vitpe_deploy.deploy.load_pair` takes it.
        inputs: pictures, or folders of them.
        prompts: texts; at least one.
        device: in the engine's own words.
        runtime: onnxruntime or openvino.
        count: prompts to give per picture.
        threads: threads of each engine.
        cache: as :func:`vitpe_deploy.deploy.load` takes it.
        progress: told how far it is.

    Raises:
        VitpeError: see :mod:`vitpe_deploy.errors`.
    """
    if count < 1:
        raise UsageError(f"--top must be at least 1, got {count}")
    shown = progress or Silent()
    paths = listed(inputs)
    with load_pair(path, device=device, runtime=runtime, threads=threads, cache=cache) as pair:
        results = []
        for start in range(0, len(paths), MAX_BATCH):
            shown.tick(f"{start} of {len(paths)} inputs")
            part = paths[start : start + MAX_BATCH]
            logits = pair.logits(part, prompts)
            scores = pair.scores_of(logits)
            for name, row, probabilities in zip(part, logits, scores, strict=True):
                order = np.argsort(-row, kind="stable")[:count]
                best = tuple(
                    Prediction(
                        index=int(k),
                        label=prompts[k],
                        probability=float(probabilities[k]),
                        logit=float(row[k]),
                    )
                    for k in order
                )
                results.append(RunRow(input=str(name), top=best, outputs=()))
        size, info = pair.vision.size, pair.vision.info
        return RunReport(
            artifact=str(pair.path),
            runtime=info.runtime,
            device=info.device,
            precision_executed=info.precision_executed,
            resolution=None if size is None else (size.height, size.width),
            results=tuple(results),
        )
