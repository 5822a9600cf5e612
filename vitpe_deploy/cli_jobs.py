"""``vitpe-export jobs.toml`` and ``vitpe-bench jobs.toml``: many command lines in one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vitpe_deploy.cli_boundary import Outcome
from vitpe_deploy.cli_given import given_flags
from vitpe_deploy.console import Console
from vitpe_deploy.errors import InterruptedRunError, UsageError
from vitpe_deploy.files import refuse_existing

if TYPE_CHECKING:
    from vitpe_deploy.jobs.file import Flag
    from vitpe_deploy.jobs.run import Done

SUFFIX = ".toml"

OWN = ("output", "force", "html", "as_json", "dry_run", "verbose", "quiet")
"""Parameters that belong to all jobs together, and so stand on the command line."""

_NOT_IN_JOBS = ("force", "html", "json", "dry-run", "verbose", "quiet", "version", "help", "from",
                "doctor")  # fmt: skip


def is_jobs_file(words: Sequence[str]) -> bool:
    """Whether what was named is one TOML file.

    Raises:
        UsageError: a TOML file among other things.
    """
    tomls = [word for word in words if Path(word).suffix.lower() == SUFFIX]
    if tomls and len(words) > 1:
        raise UsageError(
            f"{tomls[0]} is a jobs file and stands alone",
            hint="Name what is to be done inside it.",
        )
    return bool(tomls)


def run_jobs(
    context: typer.Context,
    path: Path,
    argument: str,
    *,
    output: Path,
    force: bool,
    as_json: bool,
    dry_run: bool,
    level: int,
    html: Path | None = None,
) -> Outcome:
    """Run all jobs of a file.

    Args:
        context: of the command, whose flags jobs may use.
        path: the file.
        argument: name of the parameter that holds the path.
        output: folder of the journal and of jobs that name none.
        force: forget what is finished, and replace files.
        as_json: give a ``vitpe.jobs/1`` document.
        dry_run: only say what would be done.
        level: verbosity.
        html: report over all benchmarks.

    Raises:
        UsageError: flags that belong into the file, a file with mistakes, or summaries in the
            folder that are not of jobs.
    """
    _refuse_other_flags(context, argument)
    from vitpe_deploy.jobs import summary
    from vitpe_deploy.jobs.file import read_jobs
    from vitpe_deploy.jobs.run import SUMMARIES, Runner

    if not force and not dry_run:
        _refuse_foreign(output, *SUMMARIES)
    command = str(context.command.name)
    jobs = read_jobs(path, flags_of(context.command), many=command == "bench")
    runner = Runner(command, output, verbosity=level, dry_run=dry_run, fresh=force)
    with Console(level) as console:
        try:
            done = runner.run(jobs, console)
        except KeyboardInterrupt as problem:
            hint = "The same command goes on with the jobs that are not finished."
            raise InterruptedRunError("interrupted", hint=hint) from problem
    found = summary.document(command, done)
    code = int(found["exit_code"])
    text = json.dumps(found, indent=2)
    if dry_run:
        return Outcome(text if as_json else summary.plans(command, done), code)
    table = summary.markdown(command, done)
    _write(output, dict(zip(SUMMARIES, (text, table), strict=True)))
    if html is not None and not _write_html(html, done):
        with Console(level) as console:
            console.note(f"--html {html} is not written: no job has a report")
    return Outcome(text if as_json else table, code)


def flags_of(command: Any) -> list[Flag]:
    """What jobs of a command may say."""
    from vitpe_deploy.jobs.file import Flag

    found = []
    for parameter in command.params:
        names = [name[2:] for name in parameter.opts if name.startswith("--")]
        if parameter.param_type_name != "option" or not names or names[0] in _NOT_IN_JOBS:
            continue
        opposite = [name[2:] for name in parameter.secondary_opts]
        found.append(
            Flag(
                name=names[0],
                switch=bool(parameter.is_flag),
                negative=opposite[0] if opposite else "",
                repeats=bool(parameter.multiple),
            )
        )
    return found


def _refuse_other_flags(context: typer.Context, argument: str) -> None:
    for name, flag in given_flags(context).items():
        if name not in (argument, *OWN):
            raise UsageError(
                f"{flag} stands beside a jobs file",
                hint="Write it into the file, under [defaults] or in a job.",
            )


def _refuse_foreign(folder: Path, document: str, table: str) -> None:
    """Summaries of earlier jobs are replaced, other files of their names are not."""
    try:
        found = json.loads((folder / document).read_text(encoding="utf-8"))
    except FileNotFoundError:
        refuse_existing([folder / table], force=False)
        return
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("schema") != "vitpe.jobs/1":
        refuse_existing([folder / document], force=False)


def _write(folder: Path, texts: dict[str, str]) -> None:
    from vitpe_deploy.files import StagedFiles

    with StagedFiles(folder) as staging:
        for name, text in texts.items():
            staging.path(name).write_text(text + "\n", encoding="utf-8")
        staging.commit()


def _write_html(path: Path, done: Sequence[Done]) -> bool:
    """Whether there was anything to write."""
    from vitpe_deploy.jobs.summary import merged
    from vitpe_deploy.report.html import render

    report = merged(done)
    if report is None:
        return False
    _write(path.parent, {path.name: render(report)})
    return True
