"""The processes of one run, one a host: started, watched, and none left behind."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from node.system.errors import RunError, describe_code

TAIL_BYTES: Final = 1 << 12
"""Of a dead process's stderr: its last line says what happened, and stands within them."""
BURIED_S: Final = 5.0
"""From SIGKILL to the end of a process: longer only when the kernel itself is stuck."""


@dataclass(frozen=True)
class _Member:
    name: str
    process: "subprocess.Popen[bytes]"
    stderr: Path


class Crew:
    """A context manager: at its end all are killed. Each leads a process group of its own, so that Ctrl-C reaches the
    race alone, and whatever a process has started goes with it."""

    def __init__(self) -> None:
        self._members: list[_Member] = []

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for member in self._members:
            with suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGKILL)
        for member in self._members:
            with suppress(subprocess.TimeoutExpired):
                member.process.wait(BURIED_S)
            assert member.process.stdin is not None
            with suppress(OSError):
                member.process.stdin.close()

    def start(self, name: str, command: Sequence[str], folder: Path) -> None:
        """Start a process with one thread; what it writes goes into `folder`. Its stdin stays open as long as it may
        live."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"},
            )
        self._members.append(_Member(name, process, folder / "stderr"))

    def go(self) -> None:
        """Give all the sign to start."""
        for member in self._members:
            assert member.process.stdin is not None
            try:
                member.process.stdin.write(b"go\n")
                member.process.stdin.flush()
            except BrokenPipeError:
                self.check()

    def check(self) -> None:
        """Raise RunError where a process has ended: nobody is to leave before the race is over."""
        for member in self._members:
            code = member.process.poll()
            if code is not None:
                raise RunError(f"{member.name} has ended early: {describe_code(code)}", _last_line(member.stderr))


def _last_line(path: Path) -> str:
    text = path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")
