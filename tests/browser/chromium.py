"""Chromium without a screen, driven over a pipe: pages as a reader meets them.

Its own protocol over two file descriptors (``--remote-debugging-pipe``): messages are JSON that end
in a zero byte. What the page prints, what fails and what it asks the network for is kept.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 60.0


class Chromium:
    """One browser with one page.

    Attributes:
        errors: what the page wrote to the console as an error, and exceptions nobody caught.
        requests: addresses that the page asked for, in order.
    """

    def __init__(self) -> None:
        program = shutil.which("chromium")
        if program is None:
            raise RuntimeError("no chromium on the path: apt-get install chromium")
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._count = 0
        self._answers: dict[int, Any] = {}
        self._rest = b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def descriptors() -> None:
            # Chromium reads 3 and writes 4; copies first, since either may stand in the way.
            reading, writing = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self._profile.name}"],
            preexec_fn=descriptors, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    _session: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def open(self, address: str) -> None:
        """Load a page and wait until it is complete."""
        self._loaded = False
        answer = self._call("Page.navigate", url=address)
        if "errorText" in answer:
            raise RuntimeError(f"{address}: {answer['errorText']}")
        self._until(lambda: self._loaded, f"{address} to load")

    def evaluate(self, expression: str) -> Any:
        """Value of an expression in the page, after its promise where it is one."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Size of the window in CSS pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip

    def prefer(self, *, colours: str = "", media: str = "") -> None:
        """``colours`` light or dark; ``media`` screen or print."""
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self._call("Emulation.setEmulatedMedia", media=media, features=features)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """The window, or the whole page, as PNG."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        number = self._count
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        self._until(lambda: number in self._answers, method)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _until(self, done: Any, what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done():
            left = end - time.monotonic()
            if left <= 0 or self._process.poll() is not None:
                raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
            if select.select([self._in], [], [], min(left, 1.0))[0]:
                *whole, self._rest = (self._rest + os.read(self._in, 1 << 20)).split(b"\0")
                for message in whole:
                    self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, found = message["method"], message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            self.errors.append(
                details.get("exception", {}).get("description") or str(details["text"])
            )
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "assert"):
            words = (str(a.get("value", a.get("description"))) for a in found["args"])
            self.errors.append(" ".join(words))
        elif method == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.errors.append(found["entry"]["text"])


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A folder on localhost. Gives its address."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
