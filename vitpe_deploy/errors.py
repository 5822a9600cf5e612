"""Every error a user can meet, with the exit code of the command line.

    VitpeError                   exit 1   the work failed
    ├── UsageError               exit 2   flags that contradict, unknown names
    │   ├── SizeError            exit 2   a size the model cannot take
    │   └── UnsupportedError     exit 2   refused: no right answer exists for this request
    ├── DeviceError              exit 1   the engine or device is not on this machine
    ├── MissingExtraError        exit 1   an optional package is not installed
    ├── VersionError             exit 1   an installed package is too old
    ├── SourceError              exit 1   a model or its weights cannot be loaded
    ├── ArtifactError            exit 1   a file is missing, damaged or not ours
    ├── ExportFailedError        exit 1   torch or a converter gave up
    ├── ParityError              exit 3   outside tolerance
    ├── RegressionError          exit 4   slower than the baseline allows
    ├── InternalError            exit 1   a defect of ours
    └── InterruptedRunError      exit 130 Ctrl-C

The message is one line that can be found with grep: what was asked and what was found. The hint
says what to do. ``kind`` is the machine-readable name in ``vitpe.error/1`` documents.
"""

from __future__ import annotations

from typing import Any, ClassVar


class VitpeError(Exception):
    """Base class: a message for the user, a hint, an exit code."""

    kind: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def as_document(self) -> dict[str, Any]:
        """The ``vitpe.error/1`` document that ``--json`` prints."""
        return {
            "schema": "vitpe.error/1",
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(VitpeError):
    """Flags that contradict each other, or a name that does not exist."""

    kind = "usage"
    exit_code = 2


class SizeError(UsageError):
    """The model cannot take this size; the message names the nearest that fit."""

    kind = "size"


class UnsupportedError(UsageError):
    """Refused, because nothing exact can be written for this request."""

    kind = "unsupported"


class DeviceError(VitpeError):
    """The engine or the device asked for is not on this machine."""

    kind = "device"


class MissingExtraError(VitpeError):
    """An optional package is missing; the hint is the exact ``pip install``."""

    kind = "missing_extra"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed",
            hint=f"Run: pip install 'vitpe-deploy[{extra}]'",
        )


class VersionError(VitpeError):
    """An installed package is older than what works; the hint is the exact ``pip install``."""

    kind = "version"


class SourceError(VitpeError):
    """A model or its weights cannot be loaded."""

    kind = "source"


class ArtifactError(VitpeError):
    """A file on disk is missing, damaged, or not one of ours."""

    kind = "artifact"


class ExportFailedError(VitpeError):
    """The tracer or a converter gave up on a request that looked fine."""

    kind = "export_failed"


class ParityError(VitpeError):
    """An output is outside tolerance.

    Raised where a pass changed an output, before anything is written. Files that are written and
    then found outside are kept and marked as failed, with the same exit code and no exception.
    """

    kind = "parity"
    exit_code = 3


class RegressionError(VitpeError):
    """Slower than the baseline by more than the limit."""

    kind = "regression"
    exit_code = 4


class InternalError(VitpeError):
    """Something that should not happen; the command line makes it of any other exception."""

    kind = "internal"


class InterruptedRunError(VitpeError):
    """Stopped from the keyboard."""

    kind = "interrupted"
    exit_code = 130


def from_document(document: dict[str, Any]) -> VitpeError:
    """The exception that a ``vitpe.error/1`` document of another process describes."""
    kinds = {
        kind.kind: kind
        for kind in globals().values()
        if isinstance(kind, type) and issubclass(kind, VitpeError) and kind is not MissingExtraError
    }
    kind = kinds.get(document["kind"], VitpeError)
    return kind(document["message"], hint=document["hint"])
