"""A real browser for tests: Chromium's own protocol, over a pipe, so that one start serves many pages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str:
    """Path of Chromium. Without it CI fails; elsewhere the tests are skipped and say what to install."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not executable:
        missing = "no Chromium found: install Debian's package `chromium`"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return executable


class Browser:
    """Chromium with one tab.

    Attributes:
        problems: what pages have written to their console as errors or not caught.
    """

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="outlay-chromium-")
        reads, to_it = os.pipe()
        from_it, writes = os.pipe()
        # It reads the pipe that it inherits as 3, and writes to 4: bash moves them there, from numbers of any length.
        moved = ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash"]
        command = [*moved, chromium(), *QUIET, f"--user-data-dir={self._profile}", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(command, pass_fds=(reads, writes), stderr=subprocess.DEVNULL)
        os.close(reads)
        os.close(writes)
        self._to, self._from = os.fdopen(to_it, "wb", buffering=0), os.fdopen(from_it, "rb")
        self._number, self._session, self._events = 0, None, []
        self.problems: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open a page and wait until it is loaded, with its frames."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=features)
        self._events.clear()
        self.ask("Page.navigate", url=address)
        while "Page.loadEventFired" not in self._events:
            self._note(self._next())
        # Two frames later, what was drawn on loading has its sizes.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """Return the value of a script in the page, after waiting for its promise."""
        result = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, condition: str, seconds: int = 40) -> None:
        """Wait until a condition holds in the page; fails with the text of the page if it never does."""
        late = "Date.now() > end ? done(document.body.innerText) : setTimeout(look, 30)"
        begin = f"const end = Date.now() + {1000 * seconds}"
        seen = self.run(
            f"new Promise((done) => {{ {begin}, look = () => {{ ({condition}) ? done(true) : {late}; }}; look(); }})"
        )
        assert seen is True, seen

    def move(self, x: float, y: float, kind: str = "mouseMoved", button: str = "none") -> None:
        """Move or press the pointer."""
        self.ask(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1, buttons=int(button != "none")
        )

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait()
        self._to.close()
        self._from.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _next(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            message += byte
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event.get("method", ""))
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(event["params"]["exceptionDetails"].get("exception", {}).get("description", "?"))
        if event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] == "error":
            self.problems.append(str(event["params"]["args"]))
