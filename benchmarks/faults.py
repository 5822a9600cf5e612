"""Faults while an export writes: killed, no room, no permission, folders that vanish, company.

    python benchmarks/faults.py [--kills 50] [--many 5] [--seed 0] [--only NAME]

Each fault meets a real export of a tiny model, in both formats and with ``--force``, on its way
into a folder that holds a complete older export. Afterwards every file there must be the old one
or every one the new one, byte for byte; what is left over must go when the next export comes; a
process that lives to say something says it in one error. Kills (SIGKILL, SIGTERM, SIGINT in turn)
strike half of the time at a random moment by the clock, and otherwise at a random one of the
operations on the folder, where the moments that matter are. Prints a table; exits 1 when a promise
broke.

File systems that are full or read-only are small tmpfs mounts, which takes root; without, full is a
limit on the size of files, and read-only is left out, which the table says.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fault_kinds import faults
from fault_workshop import INTERRUPTED, SIGNALS, Workshop


def kills(shop: Workshop, number: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """``number`` exports struck at random. Gives counts of what was found, and failures."""
    counts: dict[str, int] = {"old": 0, "new": 0}
    failures = []
    for k in range(number):
        generator = random.Random(f"{seed}-{k}")
        chosen = SIGNALS[k % len(SIGNALS)]
        folder = shop.fresh(shop.old)
        operation = generator.randint(1, shop.operations) if k % 2 else 0
        export = shop.start(folder, strike=(chosen, operation, str(folder)))
        if not operation:
            time.sleep(generator.uniform(0, shop.duration_s))
            with contextlib.suppress(ProcessLookupError):
                os.kill(export.process.pid, chosen)
        code = export.wait()
        # 0: it was done before the signal came; -signal: the command had not taken it over yet.
        problem = export.problem(code, (0, INTERRUPTED, -chosen))
        found = shop.left(folder)
        if found not in counts:
            problem = f"{problem} {found}".strip()
        else:
            counts[found] += 1
        if code == 0 and found != "new":
            problem = f"{problem} exit code 0, but the files are {found}".strip()
        if problem:
            failures.append(f"kill {k} ({chosen.name} at operation {operation}): {problem}")
        shutil.rmtree(folder, ignore_errors=True)
        if k % 10 == 9:
            print(f"{k + 1} of {number}: {counts}, {len(failures)} failed", file=sys.stderr)
    return counts, failures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--many", type=int, default=5, help="how often the other faults are tried")
    parser.add_argument("--only", help="one kind of fault")
    options = parser.parse_args(argv)
    os.environ["CI"] = "true"
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="vitpe-faults-") as root:
        shop = Workshop(Path(root))
        print(f"an export takes {shop.duration_s:.1f} s and {shop.operations} operations")
        print("| fault | what was found |")
        print("|---|---|")
        if options.only in (None, "kills"):
            counts, failures = kills(shop, options.kills, options.seed)
            found = ", ".join(f"{name} {n}" for name, n in counts.items())
            print(f"| {options.kills} kills | {found}, {len(failures)} failed |", flush=True)
            _tell(failures)
            bad += failures
        for name, fault in faults(shop, many=options.many, seed=options.seed).items():
            if options.only not in (None, name):
                continue
            result = fault()
            words = "cannot be tried here" if result is None else f"{len(result)} failed"
            print(f"| {name} | {words} |", flush=True)
            _tell(result or [])
            bad += result or []
    return 1 if bad else 0


def _tell(failures: Sequence[str]) -> None:
    for line in failures:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
