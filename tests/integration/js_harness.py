"""Scripts of tests/interop/: whether they can run here, and one that runs."""

import json
import re
import shutil
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from processes_harness import PATIENCE_S

FOLDER = Path(__file__).parents[1] / "interop"
OLDEST_NODE_JS = 20


def missing() -> str:
    """What keeps the peer from running here; empty when nothing does."""
    program = shutil.which("node")
    if program is None:
        return "there is no Node.js"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    major = re.match(r"v(\d+)", version)
    if major is None or int(major[1]) < OLDEST_NODE_JS:
        return f"Node.js is {version}, and js-libp2p needs {OLDEST_NODE_JS} or later"
    return "" if (FOLDER / "node_modules").is_dir() else "its packages are missing: make interop"


class Peer:
    """A script of tests/interop/ that runs, and the JSON lines that it prints. Killed when the block ends."""

    def __init__(self, script: str, *words: str) -> None:
        command = ["node", str(FOLDER / script), *words]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._patience = threading.Timer(PATIENCE_S, self._process.kill)
        self.lines: list[dict[str, Any]] = []

    def __enter__(self) -> "Peer":
        self._patience.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patience.cancel()
        self._process.kill()
        self._process.communicate()

    def hear(self, event: str, **fields: object) -> dict[str, Any]:
        """Wait for the next such line."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))
            if {**self.lines[-1], "event": event, **fields} == self.lines[-1]:
                return self.lines[-1]
        raise AssertionError(f"no {event} {fields}: {self.lines[-5:]}")

    def say(self, word: str) -> dict[str, Any]:
        """Have it broadcast something."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self.hear("said", what=word)
