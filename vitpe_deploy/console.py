"""What a person sees while work goes on, and when it fails. Everything here goes to stderr.

On a terminal a spinner shows the current step; elsewhere there is one plain line per step. Colour
repeats what the words say (``ok``, ``FAILED``, ``error:``) and never replaces them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from vitpe_deploy.errors import VitpeError

if TYPE_CHECKING:
    from rich.status import Status

_HEAD_WIDTH = 28
_TEXT_WIDTH = 52
_ONE_LINE = 100
"""Longest error whose hint still goes on the first line."""

_GREEN, _RED, _BOLD, _RESET = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


def is_terminal(stream: TextIO) -> bool:
    """Whether a person is looking: a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_colour(stream: TextIO) -> bool:
    """Colour on a terminal, unless ``NO_COLOR`` is set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def row(head: str, text: str, value: str = "") -> str:
    """One line in three columns; a cell that is too long pushes the next one to the right."""
    first = head.ljust(_HEAD_WIDTH) if len(head) < _HEAD_WIDTH else f"{head}  "
    return f"{first}{text:<{_TEXT_WIDTH}}  {value}".rstrip()


def error_block(error: VitpeError, *, colour: bool = False) -> str:
    """``error: what was asked and found`` and the hint, on that line when both are short.

    Size refusals are always one line: the nearest valid sizes are what people grep for.
    """
    word = f"{_BOLD}{_RED}error:{_RESET}" if colour else "error:"
    message = " ".join(error.message.split())
    if not error.hint:
        return f"{word} {message}"
    stop = "" if message.endswith((".", "!", "?")) else "."
    joined = f"{message}{stop} {error.hint}"
    if error.kind == "size" or len(f"error: {joined}") <= _ONE_LINE:
        return f"{word} {joined}"
    return f"{word} {message}\n  hint: {error.hint}"


class Console:
    """Progress for people. See :class:`vitpe_deploy.progress.Progress`.

    Attributes:
        verbosity: -1 shows nothing, 0 the steps, 1 and more also details.
    """

    def __init__(self, verbosity: int = 0, stream: TextIO | None = None) -> None:
        self.verbosity = verbosity
        self._stream = sys.stderr if stream is None else stream
        self._colour = wants_colour(self._stream)
        self._status: Status | None = None
        self._title = ""
        self._prefix = ""
        self._lines = 0

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_problem: object) -> None:
        self._stop()

    def begin(self, number: int, total: int, title: str) -> None:
        """A step starts: its spinner on a terminal, nothing elsewhere."""
        self._prefix, self._title, self._lines = f"[{number}/{total}] ", title, 0
        self._spin(f"{self._prefix}{title}")

    def tick(self, text: str) -> None:
        """What the step is doing now; seen on a terminal only."""
        self._spin(f"{self._prefix}{self._title}  {text}".strip())

    def line(
        self, text: str, *, label: str = "", value: str = "", good: bool | None = None
    ) -> None:
        """A result inside the current step; only the first one carries the step's number."""
        verdict = "" if good is None else ("ok" if good else "FAILED")
        self._print(row(self._head(label), text, value or self._paint(verdict, good)))
        self._lines += 1

    def end(self, text: str, seconds: float | None = None) -> None:
        """The step is done. Without text, a step that had lines needs no other."""
        self._stop()
        if text or not self._lines:
            self._print(row(self._head(""), text, "" if seconds is None else f"{seconds:.1f} s"))
        self._prefix = self._title = ""

    def note(self, text: str) -> None:
        """Something worth knowing that is not a step."""
        self._print(text)

    def detail(self, text: str) -> None:
        """A note that only ``-v`` shows."""
        if self.verbosity > 0:
            self._print(text)

    def _head(self, label: str) -> str:
        prefix = " " * len(self._prefix) if self._lines else self._prefix
        return "  ".join(part for part in (f"{prefix}{self._title}", label) if part)

    def _paint(self, word: str, good: bool | None) -> str:
        if not word or not self._colour:
            return word
        return f"{_GREEN if good else _RED}{word}{_RESET}"

    def _print(self, text: str) -> None:
        if self.verbosity < 0:
            return
        status = self._status
        if status is not None:
            status.stop()
        self._stream.write(f"{text}\n")
        self._stream.flush()
        if status is not None:
            status.start()

    def _spin(self, text: str) -> None:
        if self.verbosity < 0 or not is_terminal(self._stream):
            return
        from rich.text import Text

        if self._status is None:
            from rich.console import Console as RichConsole

            self._status = RichConsole(file=self._stream).status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
