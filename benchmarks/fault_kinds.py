"""What can go wrong while an export writes, other than that it is killed.

Each function tries one kind of fault and gives its failures; None when it cannot be tried here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fault_workshop import END_S, Workshop, arguments, contents, fill

NOBODY = 65534


@contextlib.contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[bool]:
    """A small tmpfs on ``folder``; False where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},mode=0777"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True
    )
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def full_disk(shop: Workshop, steps: int) -> list[str]:
    """No room for the n-th part of the new set; a limit on files where mounts are not allowed."""
    total = sum(-(-len(data) // 4096) * 4096 for data in shop.old.values())
    failures = []
    for step in range(steps):
        folder = shop.fresh(None)
        with mounted(folder, total + 4096 + total * step // steps) as real:
            if not real:
                return full_by_limit(shop, steps)
            fill(folder, shop.old)
            export = shop.start(folder)
            problem = export.problem(export.wait(), (1,))
            said = export.log.read_text()
            if os.strerror(errno.ENOSPC) not in said:
                problem = f"{problem} does not say what happened: {said}"
            found = shop.left(folder)
            if problem or found != "old":
                failures.append(f"full at {step} of {steps}: {problem} {found}")
    return failures


def full_by_limit(shop: Workshop, steps: int) -> list[str]:
    """No file may be longer than the n-th part of the longest."""
    longest = max(len(data) for data in shop.new.values())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    failures = []
    for step in range(steps):
        folder = shop.fresh(shop.old)
        export = shop.start(folder)
        # The child has begun; what it writes is limited from here on.
        limit = (2000 + (longest - 3000) * step // steps, before[1])
        resource.prlimit(export.process.pid, resource.RLIMIT_FSIZE, limit)
        problem = export.problem(export.wait(), (1,))
        if os.strerror(errno.EFBIG) not in export.log.read_text():
            problem = f"{problem} does not say what happened"
        found = shop.left(folder)
        if problem or found != "old":
            failures.append(f"limit {limit[0]}: {problem} {found}")
    return failures


def read_only(shop: Workshop) -> list[str] | None:
    """A file system that cannot be written to; None where mounts are not allowed."""
    folder = shop.fresh(None)
    with mounted(folder, 1 << 24) as real:
        if not real:
            return None
        fill(folder, shop.old)
        remount = ["mount", "-o", "remount,ro", str(folder)]
        subprocess.run(remount, check=True, capture_output=True)
        export = shop.start(folder)
        problem = export.problem(export.wait(), (1,))
        if os.strerror(errno.EROFS) not in export.log.read_text():
            problem = f"{problem} does not say what happened"
        found = shop.which(contents(folder))
    return [f"{problem} {found}"] if problem or found != "old" else []


def _as_nobody(argv: list[list[str]], log: str, pipe: Any) -> None:
    """Runs once as it is, so that everything is imported, then the rest without privileges."""
    from vitpe_deploy import cli

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 2)
    codes = [cli.export_main(argv[0])]
    if os.geteuid() == 0:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    codes += [cli.export_main(one) for one in argv[1:]]
    pipe.send(codes)
    os._exit(0)


def no_permission(shop: Workshop) -> list[str]:
    """A folder that may be read, one that may not even be entered, and one to be made in it."""
    root = Path(tempfile.mkdtemp(prefix="vitpe-faults-"))
    root.chmod(0o755)
    closed, hidden = root / "closed", root / "hidden" / "out"
    for folder in (closed, hidden):
        fill(folder, shop.old)
    (root / "hidden").chmod(0o700 if os.geteuid() == 0 else 0)
    closed.chmod(0o555)
    try:
        pipe, other = shop._context.Pipe()
        log = shop.root / "log-nobody"
        folders = (shop.fresh(None), closed, hidden, closed / "deeper" / "out")
        process = shop._context.Process(
            target=_as_nobody, args=([arguments(f, 1) for f in folders], str(log), other)
        )
        process.start()
        other.close()
        codes = pipe.recv() if pipe.poll(4 * END_S) else []
        process.join()
        said = log.read_text()
        failures = [] if codes == [0, 1, 1, 1] else [f"exit codes {codes}: {said}"]
        if said.count(os.strerror(errno.EACCES)) != 3 or said.count("error: ") != 3:
            failures.append(f"not three clear errors: {said}")
        (root / "hidden").chmod(0o755)
        for folder in (closed, hidden):
            if contents(folder) != shop.old or len(list(folder.iterdir())) != len(shop.old):
                failures.append(f"{folder.name}: {shop.which(contents(folder))}")
        return failures
    finally:
        closed.chmod(0o755)
        (root / "hidden").chmod(0o755)
        shutil.rmtree(root)


def other_file_system(shop: Workshop) -> list[str] | None:
    """Output behind a link to another file system; None where there is none."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == shop.root.stat().st_dev:
        return None
    with tempfile.TemporaryDirectory(prefix="vitpe-faults-", dir=memory) as target:
        fill(Path(target), shop.old)
        link = shop.fresh(None)
        link.symlink_to(target)
        export = shop.start(link)
        problem = export.problem(export.wait(), (0,))
        found = shop.left(link)
    return [f"{problem} {found}"] if problem or found != "new" else []


def two_at_once(shop: Workshop, rounds: int) -> list[str]:
    """Two exports into one folder: each whole; without ``--force`` one of them is refused."""
    failures = []
    for k in range(rounds):
        folder = shop.fresh(shop.old)
        pair = [shop.start(folder, seed=seed) for seed in (0, 1)]
        problems = [export.problem(export.wait(), (0,)) for export in pair]
        found = shop.left(folder)
        if any(problems) or found not in ("old", "new"):
            failures.append(f"round {k}: {problems} {found}")
        folder = shop.fresh(None)
        pair = [shop.start(folder, seed=seed, force=False) for seed in (0, 1)]
        codes = [export.wait() for export in pair]
        problems = [export.problem(code, (0, 2)) for export, code in zip(pair, codes, strict=True)]
        found = shop.left(folder)
        right = {(0, 2): "old", (2, 0): "new"}.get((codes[0] or 0, codes[1] or 0))
        if any(problems) or found != right:
            failures.append(f"round {k} without --force: {codes} {problems} {found}")
    return failures


def folder_removed(shop: Workshop, rounds: int, seed: int) -> list[str]:
    """Somebody deletes the folder while the export works."""
    failures = []
    for k in range(rounds):
        folder = shop.fresh(shop.old)
        export = shop.start(folder)
        while not list(folder.glob(".vitpe-tmp-*")) and export.process.is_alive():
            time.sleep(0.005)
        time.sleep(random.Random(f"{seed}-{k}").uniform(0, 0.8 * shop.duration_s))
        shutil.rmtree(folder, ignore_errors=True)
        code = export.wait()
        problem = export.problem(code, (0, 1))
        found = shop.which(contents(folder))
        # 0: everything was in place when the folder went, or it came too late.
        if problem or found not in ("nothing", "new") or (found == "new" and code != 0):
            failures.append(f"round {k}, exit code {code}: {problem} {found}")
    return failures


def faults(shop: Workshop, *, many: int, seed: int) -> dict[str, Callable[[], list[str] | None]]:
    """What can be tried, by name; each gives its failures, None when it cannot be tried here."""
    return {
        "full disk": lambda: full_disk(shop, 4 * many),
        "limit on the size of files": lambda: full_by_limit(shop, 2 * many),
        "read-only file system": lambda: read_only(shop),
        "no permission": lambda: no_permission(shop),
        "another file system": lambda: other_file_system(shop),
        "two exports at once": lambda: two_at_once(shop, many),
        "folder removed half-way": lambda: folder_removed(shop, 3 * many, seed),
    }
