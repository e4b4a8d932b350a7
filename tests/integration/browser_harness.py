"""Debian's Chromium without a window, driven over a pipe by its own DevTools protocol: no driver, no library.

Every wait ends with what it waits for; only a broken test waits for PATIENCE_S.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_S = 60.0
"""A first start on a busy machine takes some 10 s."""
LOOK_EVERY_S = 0.1

OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--remote-debugging-pipe"),
)

AS_3_AND_4 = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, want in zip(high, (3, 4)):
    os.dup2(number, want)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads from descriptor 3 and writes on 4, whatever numbers the pipes have here."""


class Browser:
    """One tab. `complaints`: what the console said that is no plain word: errors, warnings, refusals of the policy."""

    def __init__(self, folder: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        assert CHROMIUM is not None, "the caller has looked"
        self.complaints: list[str] = []
        self._number = 0
        self._session = ""
        self._pending = b""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                AS_3_AND_4,
                str(theirs_in),
                str(theirs_out),
                CHROMIUM,
                *OPTIONS,
                f"--user-data-dir={folder}",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        tab = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.ask(f"{domain}.enable")
        self.resize(width, height)
        self.theme(dark=dark)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = ""
        self.ask("Browser.close")
        self._process.wait(PATIENCE_S)
        os.close(self._in)
        os.close(self._out)

    def resize(self, width: int, height: int) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def theme(self, *, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true, and return it."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.evaluate(script)):
            assert time.monotonic() < deadline, f"never true: {script}; console: {self.complaints}"
            self._read(LOOK_EVERY_S)
        return value

    def press(self, key: str) -> None:
        """A key, as Tab or Enter."""
        code = {"Tab": 9, "Enter": 13}[key]
        extra = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **extra)

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])

    def ask(self, method: str, **params: object) -> dict[str, Any]:
        """A command, and its answer."""
        self._number += 1
        number = self._number
        message: dict[str, object] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for answer in self._read(LOOK_EVERY_S):
                if answer.get("id") == number:
                    assert "error" not in answer, answer
                    found: dict[str, Any] = answer["result"]
                    return found
        raise AssertionError(f"no answer to {method}")

    def _read(self, timeout_s: float) -> list[dict[str, Any]]:
        """The messages that have come; what the console says is kept."""
        ready, _, _ = select.select([self._in], [], [], timeout_s)
        if not ready:
            return []
        chunk = os.read(self._in, 1 << 20)
        assert chunk, "the browser has ended"
        *whole, self._pending = (self._pending + chunk).split(b"\0")
        messages = [json.loads(each) for each in whole]
        for message in messages:
            self._note(message)
        return messages

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        said = {
            "Runtime.exceptionThrown": params.get("exceptionDetails"),
            "Runtime.consoleAPICalled": params if params.get("type") in {"error", "warning", "assert"} else None,
            "Log.entryAdded": params.get("entry"),
        }.get(str(method))
        if said:
            self.complaints.append(json.dumps(said))
