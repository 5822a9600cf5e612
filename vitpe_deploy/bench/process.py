"""The parent's end of a timed child: start it, ask it, end it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from vitpe_deploy import errors
from vitpe_deploy.bench import protocol as p

_END_PATIENCE_S = 20


class Child:
    """A child that has its model loaded inside the ``with``.

    Args:
        spec: what it runs.
        command: what starts it; the spec is added as the last argument. Scripts that time
            something of their own give their own command, which ends in
            :func:`vitpe_deploy.bench.child.serve`.

    Raises:
        VitpeError: what the child itself raised.
    """

    def __init__(self, spec: p.ChildSpec, command: Sequence[str] | None = None) -> None:
        default = (sys.executable, "-m", "vitpe_deploy.bench.child")
        self._command = [*(command or default), json.dumps(spec.as_document())]
        self._name = f"{Path(spec.path).name} in {spec.runtime}"
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        self.loaded: p.Loaded | None = None
        self.peak_rss_bytes: int | None = None
        self.always_idle = True

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
        )
        try:
            self.loaded = p.Loaded(**self.ask(p.OPEN))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def ask(self, what: str, **details: Any) -> dict[str, Any]:
        """One request and its reply."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("the child is not open")
        try:
            process.stdin.write(json.dumps({"do": what, **details}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise errors.ArtifactError(
                f"{self._name} ended while it was asked to {what}: {self._last_words()}",
                hint="The engine crashed, or the system ended it for its memory.",
            )
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise errors.from_document(reply["error"])
        return reply

    def warm_up(self, at_least: int, limit_s: float) -> p.Warmed:
        """Run until latency has settled."""
        return p.Warmed(**self.ask(p.WARM_UP, at_least=at_least, limit_s=limit_s))

    def sample(self, runs: int) -> list[float]:
        """Latencies of one round in milliseconds; the child is idle when they are here."""
        return self._samples(self.ask(p.SAMPLE, runs=runs))

    def window(self, seconds: float) -> list[float]:
        """Milliseconds per item in one window of several requests at a time, as one sample."""
        return self._samples(self.ask(p.WINDOW, seconds=seconds))

    def _samples(self, reply: dict[str, Any]) -> list[float]:
        self.peak_rss_bytes = reply["peak_rss_bytes"]
        self.always_idle &= bool(reply["idle"])
        return [float(value) for value in reply["samples_ms"]]

    def agree(self, judge: p.Judge) -> p.Agreement:
        """Compare outputs with the expected ones of the spec."""
        return p.Agreement(**self.ask(p.AGREE, judge=asdict(judge)))

    def classify(self) -> tuple[int, ...]:
        """The classes of the pictures of the spec."""
        return tuple(self.ask(p.CLASSIFY)["classes"])

    def _last_words(self) -> str:
        if self._process is not None:
            self._process.wait(_END_PATIENCE_S)
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        code = None if self._process is None else self._process.returncode
        return f"{lines[-1][:200] if lines else 'no message'} (exit code {code})"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            try:
                process.wait(_END_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None
