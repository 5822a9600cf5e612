"""Error per layer of artifacts, measured where they are benchmarked.

    python -m vitpe_deploy.bench.layers JOB

Blocks are compared with those of the untouched PyTorch model, so this runs in a process of its
own, as the reference does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from vitpe_deploy.errors import VitpeError
from vitpe_deploy.request import Resolution
from vitpe_deploy.results import LayerVerdict

_VERDICTS = TypeAdapter(tuple[LayerVerdict, ...])


def compare_layers(
    artifact: Path, size: Resolution, runtimes: Sequence[str], device: str, threads: int
) -> tuple[tuple[LayerVerdict, ...], str | None]:
    """Verdicts per engine, and why there are none where there are none."""
    job = {
        "artifact": str(artifact),
        "size": size.as_list(),
        "runtimes": list(runtimes),
        "device": device,
        "threads": threads,
    }
    done = subprocess.run(
        [sys.executable, "-m", "vitpe_deploy.bench.layers", json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return (), lines[-1][:300]
    return _VERDICTS.validate_json(done.stdout.splitlines()[-1]), None


def main() -> int:
    """The comparing process: verdicts on stdout; its last line on stderr says what went wrong."""
    from vitpe_deploy.verification import VerifyOptions, run_verify

    job = json.loads(sys.argv[1])
    options = VerifyOptions(
        resolutions=(Resolution(*job["size"]),),
        runtimes=tuple(job["runtimes"]),
        device=job["device"],
        layers=True,
        threads=job["threads"],
    )
    try:
        report = run_verify(Path(job["artifact"]), options)
    except (VitpeError, ImportError) as error:
        sys.stderr.write(f"\n{error}\n")
        return 1
    sys.stdout.write(f"\n{_VERDICTS.dump_json(report.layers).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
