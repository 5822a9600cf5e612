"""Between the shell and the commands: exit codes, errors in words or JSON, a clean stdout.

A command returns an :class:`Outcome`; whatever it raises becomes one error block on stderr, and
with ``--json`` one ``vitpe.error/1`` document on stdout.
"""

from __future__ import annotations

import _thread
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import typer
from typer.main import get_command

from vitpe_deploy.console import error_block, wants_colour
from vitpe_deploy.errors import (
    ArtifactError,
    InternalError,
    InterruptedRunError,
    UsageError,
    VitpeError,
)
from vitpe_deploy.request import closest

_MOMENT_S = 0.05
_SHORT_FLAGS = re.compile(r"-[a-z]*")

# typer carries its own click since 0.24 and used the real one before: the class is found through
# the one exception that it has always made public.
_ClickError: Any = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command has to say on stdout, and its exit code."""

    text: str
    exit_code: int = 0


def run_app(app: typer.Typer, prog: str, argv: Sequence[str] | None = None) -> int:
    """Run a command line. Gives the exit code and never raises.

    Args:
        app: the commands.
        prog: what the user typed to get here.
        argv: arguments without the program; those of the process for None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    signals: list[int] = []
    try:
        with _unwound_by_signals(signals):
            outcome = get_command(app).main(args=arguments, prog_name=prog, standalone_mode=False)
        if outcome == InterruptedRunError.exit_code:  # how newer parsers report Ctrl-C
            raise KeyboardInterrupt
    except BaseException as problem:
        if isinstance(problem, SystemExit | GeneratorExit):
            raise
        # Libraries that are interrupted while they are imported fail later, in words of their own.
        error = InterruptedRunError("interrupted") if signals else _as_error(problem, prog)
        if "--json" in flags:
            _write(json.dumps(error.as_document(), indent=2))
        sys.stderr.write(f"{error_block(error, colour=wants_colour(sys.stderr))}\n")
        if _wants_traceback(flags):
            import traceback

            traceback.print_exception(problem, file=sys.stderr)
        return error.exit_code
    if isinstance(outcome, Outcome):
        _write(outcome.text)
        return outcome.exit_code
    return outcome if isinstance(outcome, int) else 0


@contextmanager
def _unwound_by_signals(seen: list[int]) -> Iterator[None]:
    """Inside, SIGTERM unwinds as Ctrl-C does, so that temporary files go away.

    Their numbers are noted in ``seen``: what unwinds may be swallowed or renamed on its way up.
    Python itself swallows it where it strikes in a destructor or a weak reference's callback, of
    which exports run many; there the signal is sent again, a moment later.
    """
    waiting: list[threading.Timer] = []

    def unwind(number: int, _frame: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    def again(what: Any) -> None:
        if seen and issubclass(what.exc_type, KeyboardInterrupt):
            waiting.append(threading.Timer(_MOMENT_S, _thread.interrupt_main, [seen[-1]]))
            waiting[-1].start()
        else:
            hook(what)

    hook = sys.unraisablehook
    before: dict[int, Any] = {}
    try:
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            # Ignored, as in the background, it stays; None belongs to somebody's C code.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, unwind)
    except ValueError:  # only the main thread may; in others signals do what they did
        pass
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for timer in waiting:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_error(problem: BaseException, prog: str) -> VitpeError:
    if isinstance(problem, VitpeError):
        return problem
    if isinstance(problem, _ClickError):
        return _usage_error(problem, prog)
    if isinstance(problem, KeyboardInterrupt):
        return InterruptedRunError("interrupted")
    if isinstance(problem, typer.Abort):
        # Older parsers make this of Ctrl-C, all of them of an EOFError from anywhere below.
        cause = problem.__cause__
        if not isinstance(cause, EOFError):
            return InterruptedRunError("interrupted")
        problem = cause
    if isinstance(problem, OSError) and problem.strerror and problem.filename is not None:
        # What the system refuses is no defect, wherever it was met.
        return ArtifactError(
            f"{problem.filename}: {problem.strerror}", hint="Check the path and its permissions."
        )
    lines = str(problem).strip().splitlines()
    what = f"{type(problem).__name__}: {lines[0][:300]}" if lines else type(problem).__name__
    return InternalError(
        what, hint="This is a defect: run it again with -vv and report the output."
    )


def _usage_error(problem: Any, prog: str) -> UsageError:
    """A refusal of the parser in our form, with the closest flag or command for a typo."""
    context = getattr(problem, "ctx", None)
    path = context.command_path if context is not None else prog
    see = f"See {path} --help."
    name = getattr(problem, "option_name", None)
    if type(problem).__name__ == "NoSuchOption" and name and context is not None:
        known = [flag for p in context.command.params for flag in (*p.opts, *p.secondary_opts)]
        near = closest(name, [flag for flag in known if flag.startswith("--")])
        return UsageError(f"there is no flag {name}", hint=f"{near}{see}")
    if type(problem).__name__ == "MissingParameter" and problem.param is not None:
        return UsageError(f"{problem.param.name.upper()} is missing", hint=see)
    message = problem.format_message().strip().splitlines()[0].rstrip(".")
    wrong = re.match(r"No such command '([^']*)'", message)
    if wrong and context is not None:
        known = list(context.command.commands)
        return UsageError(
            f"there is no command {wrong[1]!r}",
            hint=f"{closest(wrong[1], known)}Choose from: {', '.join(known)}.",
        )
    return UsageError(message[:1].lower() + message[1:], hint=see)


def _wants_traceback(flags: Sequence[str]) -> bool:
    short = sum(flag.count("v") for flag in flags if _SHORT_FLAGS.fullmatch(flag))
    return short + flags.count("--verbose") >= 2


def _write(text: str) -> None:
    """To stdout, and quietly to nowhere when its reader has left."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = io.StringIO()
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Inside, whatever libraries print goes to stderr, C++ ones included."""
    real = sys.stdout
    saved = _divert() if real is sys.__stdout__ else None
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = real
        if saved is not None:
            _flush_c_streams()
            os.dup2(saved, 1)
            os.close(saved)


def _divert() -> int | None:
    """Point file descriptor 1 at stderr. Gives a copy of what it was."""
    try:
        sys.stdout.flush()
        saved = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        return None
    return saved


def _flush_c_streams() -> None:
    """What C libraries still hold must leave before descriptor 1 is stdout again."""
    import ctypes

    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).fflush(None)
