"""Jobs one after another, each in a process of its own, with a memory of what is finished.

A job that fails, or crashes, or is killed for its memory does not stop the others. Finished jobs
stand in ``jobs.jsonl`` of the output folder, one line each, and are kept when the same jobs run
again, what they read has not changed, and their files are still those that were written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from vitpe_deploy import __version__
from vitpe_deploy.bench.resume import WRITTEN
from vitpe_deploy.errors import ArtifactError, InternalError, UsageError
from vitpe_deploy.files import sha256_of
from vitpe_deploy.fingerprint import digest, inputs_of
from vitpe_deploy.jobs.file import Job
from vitpe_deploy.progress import Progress

JOURNAL = "jobs.jsonl"
SUMMARIES = ("jobs.json", "jobs.md")

Inputs: TypeAlias = Mapping[str, str]
"""Words of a job that name something on the disk, with the hash of what was there."""

_FINISHED = (0, 3, 4)
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Done:
    """A job with what its command said: its report, or a ``vitpe.error/1``."""

    job: Job
    exit_code: int
    document: dict[str, Any]
    seconds: float
    kept: bool = False

    @property
    def error(self) -> dict[str, Any] | None:
        """What it ended with in place of a report."""
        return self.document if self.document.get("schema") == "vitpe.error/1" else None


class Runner:
    """Runs jobs of one command.

    Args:
        command: ``export`` or ``bench``.
        folder: where the journal is, and files of jobs that name no folder.
        verbosity: -1 keeps the jobs' own progress back.
        dry_run: only says what the jobs would do; nothing is remembered.
        fresh: forget what is finished, and replace files.
    """

    def __init__(
        self, command: str, folder: Path, *, verbosity: int, dry_run: bool, fresh: bool
    ) -> None:
        self._command = command
        self._folder = folder
        self._verbosity = verbosity
        self._dry_run = dry_run
        self._fresh = fresh
        self._journal = folder / JOURNAL
        if fresh and not dry_run:
            self._journal.unlink(missing_ok=True)
        self._finished = {} if fresh else self._read()

    def run(self, jobs: Sequence[Job], progress: Progress) -> list[Done]:
        """All jobs, in the order of the file.

        Raises:
            UsageError: two benchmarks would write their reports to one folder.
        """
        if self._command != "export":
            self._refuse_shared(jobs)
        found = []
        own = [path for job in jobs for path in self._written_by(job)]
        for number, job in enumerate(jobs, 1):
            progress.note(f"job {number} of {len(jobs)}: {job.name}")
            read = {} if self._dry_run else inputs_of(_readable(job), apart_from=own)
            kept = self._kept(job, read)
            if kept is not None:
                progress.note(f"job {job.name}: kept from an earlier run")
                found.append(kept)
                continue
            for word in self._changed(job, read):
                progress.note(f"job {job.name}: {word} has changed since it was finished")
            done = self._carry_out(job)
            self._remember(done, read)
            if done.error is not None:
                progress.note(f"job {job.name}: error: {done.error['message']}")
            found.append(done)
        return found

    def folder_of(self, job: Job) -> Path:
        """Exports share a folder; every benchmark has its own, for its rows."""
        return self._folder if self._command == "export" else self._folder / job.name

    def _refuse_shared(self, jobs: Sequence[Job]) -> None:
        folders = [Path(job.value("output") or self.folder_of(job)) for job in jobs]
        for job, folder in zip(jobs, folders, strict=True):
            if folders.count(folder) > 1:
                raise UsageError(
                    f"job {job.name} and another one write their reports to {folder}",
                    hint="Leave output out: every job then has a folder of its own.",
                )

    def _line(self, job: Job) -> list[str]:
        line = [*job.argv]
        if not job.has("output"):
            line += ["--output", str(self.folder_of(job))]
        line += ["--force"] if self._fresh else []
        line += ["--dry-run"] if self._dry_run else []
        return [*line, "-q"] if self._verbosity < 0 else line

    def _carry_out(self, job: Job) -> Done:
        start = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, "-m", "vitpe_deploy", self._command, *self._line(job), "--json"],
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        try:
            out, _ = child.communicate()
        except BaseException:
            child.terminate()  # it unwinds as we do, and removes what it had begun to write
            try:
                child.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
        code = child.returncode
        try:
            document = json.loads(out)
        except json.JSONDecodeError:
            what = f"signal {-code}" if code < 0 else f"exit code {code}"
            error = InternalError(f"{self._command} ended without a word ({what})")
            document, code = error.as_document(), 1
        return Done(job, code, document, time.monotonic() - start)

    def _written_by(self, job: Job) -> Iterator[Path]:
        """What must not count as read, because the jobs themselves write it."""
        given = job.value("output")
        folder = self.folder_of(job) if given is None else Path(given)
        if self._command == "export":
            yield folder
        else:
            yield from (folder / name for name in WRITTEN)
        yield from (self._folder / name for name in (JOURNAL, *SUMMARIES))

    def _key(self, job: Job, read: Inputs) -> str:
        folder = str(self.folder_of(job))
        words = [word for pair in sorted(read.items()) for word in pair]
        return digest([__version__, self._command, *job.argv, folder, *words])

    def _changed(self, job: Job, read: Inputs) -> list[str]:
        """The words of a job whose files are others than when it was last finished."""
        before = [e for e in self._finished.values() if e["name"] == job.name and "inputs" in e]
        known = before[-1]["inputs"] if before else {}
        return [word for word in read if word in known and known[word] != read[word]]

    def _kept(self, job: Job, read: Inputs) -> Done | None:
        entry = None if self._dry_run else self._finished.get(self._key(job, read))
        if entry is None or not intact(entry["document"]):
            return None
        done = Done(job, entry["exit_code"], entry["document"], entry["seconds"])
        return replace(done, kept=True)

    def _remember(self, done: Done, read: Inputs) -> None:
        if self._dry_run or done.exit_code not in _FINISHED:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        line = {
            "key": self._key(done.job, read),
            "name": done.job.name,
            "inputs": dict(read),
            "exit_code": done.exit_code,
            "seconds": done.seconds,
            "document": done.document,
        }
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _read(self) -> dict[str, dict[str, Any]]:
        """Finished jobs by key; a last line that was cut off is dropped."""
        if not self._journal.is_file():
            return {}
        lines = self._journal.read_text(encoding="utf-8").splitlines(keepends=True)
        found, good = {}, []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                found[entry["key"]] = entry
            except (json.JSONDecodeError, KeyError, TypeError) as problem:
                if number == len(lines) and not line.endswith("\n"):
                    break
                raise ArtifactError(
                    f"{self._journal} line {number} is not a finished job",
                    hint="Give another --output, or --force to run all jobs again.",
                ) from problem
            good.append(line)
        if not self._dry_run:
            self._journal.write_text("".join(good), encoding="utf-8")
        return found


def _readable(job: Job) -> Iterator[str]:
    """The words of a job without the folder that it writes to."""
    for before, word in zip(("", *job.argv), job.argv, strict=False):
        if before != "--output":
            yield word


def intact(document: dict[str, Any]) -> bool:
    """Whether the files that a report speaks of are still those that it speaks of."""
    files = {r["path"]: r["sha256"] for r in document.get("artifacts", [])}
    files |= {r["artifact"]: r["sha256"] for r in document.get("results", [])}
    return all(Path(path).is_file() and sha256_of(Path(path)) == s for path, s in files.items())
