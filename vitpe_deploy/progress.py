"""How long work tells what it is doing; the console implements it, tests and scripts may."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Numbered steps with a result line each, and details inside a step."""

    def begin(self, number: int, total: int, title: str) -> None:
        """A step starts."""

    def tick(self, text: str) -> None:
        """What the step is doing now; shown only while it lasts."""

    def line(
        self, text: str, *, label: str = "", value: str = "", good: bool | None = None
    ) -> None:
        """A result line inside the current step: of what, what was found, and its number."""

    def end(self, text: str, seconds: float | None = None) -> None:
        """The step is done, with its result."""

    def note(self, text: str) -> None:
        """Something worth knowing that is not a step."""


class Silent:
    """Shows nothing."""

    def begin(self, number: int, total: int, title: str) -> None:
        """See :class:`Progress`."""

    def tick(self, text: str) -> None:
        """See :class:`Progress`."""

    def line(
        self, text: str, *, label: str = "", value: str = "", good: bool | None = None
    ) -> None:
        """See :class:`Progress`."""

    def end(self, text: str, seconds: float | None = None) -> None:
        """See :class:`Progress`."""

    def note(self, text: str) -> None:
        """See :class:`Progress`."""
