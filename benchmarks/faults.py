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
import errno
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

TINY = {"depth": 1, "embed_dim": 16, "num_heads": 2, "image_size": 32, "num_classes": 5}
FLAGS = [word for k, v in TINY.items() for word in ("--model-kwarg", f"{k}={v}")]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130
END_S = 60.0
NOBODY = 65534

Files = dict[str, bytes]


def arguments(folder: Path, seed: int, *, force: bool = True) -> list[str]:
    """Of ``vitpe-export``; another seed gives other weights, so other bytes in every file."""
    rest = ["--seed", str(seed), "--threads", "1", "-q", "-o", str(folder)]
    return [
        "vit_tiny_patch16_224", *FLAGS, "--format", "onnx,openvino",
        *rest, *(["--force"] if force else []),
    ]  # fmt: skip


def _child(argv: list[str], log: str, ready: Any, strike: tuple[int, int, str] | None) -> None:
    """One export in a process of its own; its output goes to ``log``.

    ``strike`` is ``(signal, number, folder)``: sent at that operation on the folder, never at 0.
    """
    from vitpe_deploy import cli

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    seen = 0
    if strike is not None:
        number, last, folder = strike

        def hook(event: str, words: tuple[object, ...]) -> None:
            nonlocal seen
            touches = event == "open" or event.startswith(("os.", "shutil.", "tempfile."))
            if touches and any(folder in str(word) for word in words):
                seen += 1
                if seen == last:
                    os.kill(os.getpid(), number)

        sys.addaudithook(hook)
    code = 1
    try:
        ready.send(True)
        code = cli.export_main(argv)
        ready.send(seen)
    except KeyboardInterrupt:  # before the command could take it
        code = INTERRUPTED
    except BaseException:
        traceback.print_exc()
    os._exit(code)  # nothing of the parent's is to be run or flushed here


@dataclass
class Export:
    """A running export.

    Attributes:
        process: its process.
        pipe: says True when the command begins, and how many operations there were at its end.
        log: file that its output goes to.
    """

    process: Any
    pipe: Any
    log: Path

    def wait(self) -> int | None:
        """Its exit code, negative for a signal; None when it had to be killed."""
        self.process.join(END_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            return None
        return int(self.process.exitcode)

    def problem(self, code: int | None, allowed: Sequence[int]) -> str:
        """What is wrong with how it ended; empty when nothing is."""
        said = self.log.read_text(errors="replace")
        if code is None:
            return f"did not end within {END_S:.0f} s"
        if code not in allowed:
            return f"exit code {code}: {said[-300:]}"
        if "Traceback" in said or "This is a defect" in said:
            return f"not a clear error: {said[-600:]}"
        if code in (1, 2) and sum(li.startswith("error: ") for li in said.splitlines()) != 1:
            return f"not one error: {said[-300:]}"
        return ""


class Workshop:
    """The old and the new set of files, and processes that write them.

    Children are forked from a server that has imported what an export imports and run nothing,
    which is as good as a fresh process and saves most of its time.
    """

    IMPORTED: ClassVar = [
        "exporters.pipeline", "vitpe_deploy.cli", "vitpe_deploy.referee", "torch._dynamo",
        "torch.onnx._internal.exporter._core", "onnxscript", "onnxruntime", "onnxsim",
    ]  # fmt: skip

    def __init__(self, root: Path) -> None:
        self.root = root
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(self.IMPORTED)
        self._count = 0
        self.old, _ = self._made(seed=0)
        start = time.monotonic()
        self.new, self.operations = self._made(seed=1)
        self.duration_s = time.monotonic() - start

    def _made(self, seed: int) -> tuple[Files, int]:
        folder = self.fresh(None)
        export = self.start(folder, seed=seed, strike=(0, 0, str(folder)))
        if export.wait() != 0:
            raise SystemExit(f"the export itself fails:\n{export.log.read_text()}")
        export.pipe.recv()
        return contents(folder), int(export.pipe.recv())

    def fresh(self, files: Files | None) -> Path:
        """A folder of its own with a set of files, or one that does not exist."""
        self._count += 1
        folder = self.root / f"out{self._count}"
        if files is not None:
            fill(folder, files)
        return folder

    def start(
        self,
        folder: Path,
        *,
        seed: int = 1,
        force: bool = True,
        strike: tuple[int, int, str] | None = None,
    ) -> Export:
        """Begin an export into ``folder``; returns when the command has begun."""
        self._count += 1
        log = self.root / f"log{self._count}"
        pipe, other = self._context.Pipe()
        process = self._context.Process(
            target=_child, args=(arguments(folder, seed, force=force), str(log), other, strike)
        )
        process.start()
        other.close()
        if not pipe.poll(END_S):
            raise SystemExit(f"a child did not start: {log.read_text() if log.exists() else ''}")
        return Export(process, pipe, log)

    def left(self, folder: Path) -> str:
        """``old`` or ``new``, or what is wrong with the folder; then the next writer comes."""
        from vitpe_deploy.files import StagedFiles, finish_interrupted

        finish_interrupted(folder)  # what every reader does first
        found = contents(folder)
        with StagedFiles(folder):  # what every writer does
            pass
        strays = [p.name for p in folder.iterdir() if p.name not in self.old]
        if strays:
            return f"left over: {', '.join(strays)}"
        return self.which(found)

    def which(self, found: Files) -> str:
        """``old``, ``new``, ``nothing``, or the files that do not belong together."""
        for name, files in (("old", self.old), ("new", self.new), ("nothing", {})):
            if found == files:
                return name
        words = [
            f"{n} {'old' if d == self.old.get(n) else 'new' if d == self.new.get(n) else 'half'}"
            for n, d in sorted(found.items())
        ]
        return f"a mixture: {', '.join(words)}"


def contents(folder: Path) -> Files:
    """All files that are not temporary."""
    if not folder.is_dir():
        return {}
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.startswith(".vitpe-")}


def fill(folder: Path, files: Files) -> None:
    """Put a set of files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


# ---------------------------------------------------------------- kills


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
    return counts, failures


# ---------------------------------------------------------------- other faults


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
