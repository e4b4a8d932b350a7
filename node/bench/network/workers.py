"""The parent's side: starts processes, gives them orders, reads their messages, and leaves none behind.

Each child leads a process group of its own, so that Ctrl-C reaches the parent alone and whatever a child has started
goes with it. At the end all are killed: they hold nothing that is worth keeping. Every wait has a bound, and ends at
once when any child dies.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Final

from node.system.errors import RunError, describe_code

Message = dict[str, Any]

READ_BYTES: Final = 1 << 16
TAIL_BYTES: Final = 1 << 12
"""Of a dead child's stderr: the last line says what happened, and stands within them."""
BURIED_S: Final = 5.0
"""From SIGKILL to the end of a process: longer only when the kernel itself is stuck."""


class Worker:
    """A process that was started, and its messages that were not read yet."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", stderr: IO[bytes]) -> None:
        self.name = name
        self.process = process
        self.said: deque[Message] = deque()
        self.notes: deque[str] = deque(maxlen=3)
        """The newest remarks: why nothing else may have come."""
        self.silenced = False
        """Whether its stdout has ended."""
        self._stderr = stderr
        self._pending = b""

    def take(self, data: bytes) -> None:
        """Take in bytes of its stdout. What is no message of ours is some library's, and dropped."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict) and "said" in message:
                if message["said"] == "note":
                    self.notes.append(str(message["text"]))
                else:
                    self.said.append(message)

    def last_words(self) -> str:
        """Return the last line that it wrote on stderr."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - TAIL_BYTES))
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def kill(self) -> None:
        """Kill the process, and all of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for its end, and close its pipes."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(BURIED_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not written any more
                pipe.close()
        self._stderr.close()


class Workers:
    """The children of one measurement; a context manager. `patience_s`: how long to wait for any answer."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._children: list[Worker] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.reap()
        self._selector.close()

    def hire(self, name: str, role: str) -> Worker:
        """Start a process of ours in a role of `child.py`."""
        return self.hire_command(name, [sys.executable, "-m", "node.bench.network.child", role])

    def hire_command(self, name: str, command: Sequence[str]) -> Worker:
        """Start any process that follows the same protocol on stdin and stdout."""
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  # the child's for its whole life
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        child = Worker(name, process, stderr)
        self._children.append(child)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, child)
        return child

    def tell(self, child: Worker, do: str, **order: object) -> None:
        """Give an order."""
        assert child.process.stdin is not None
        try:
            child.process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
            child.process.stdin.flush()
        except BrokenPipeError:
            raise self._death(child) from None

    def tell_all(self, children: Iterable[Worker], do: str, **order: object) -> None:
        """Give all the same order."""
        for child in children:
            self.tell(child, do, **order)

    def hear(self, child: Worker, kind: str) -> Message:
        """Return the next message of `child`, which must be of this kind. RunError when it fails, dies or is silent."""
        deadline = time.monotonic() + self._patience_s
        while not child.said:
            left = deadline - time.monotonic()
            if child.silenced:
                raise self._death(child)
            if left <= 0:
                raise _silence(child, kind, self._patience_s)
            self._listen(left)
        message = child.said.popleft()
        if message["said"] == "failed":
            raise RunError(f"{child.name} failed: {message['why']}")
        if message["said"] != kind:
            raise RunError(f"{child.name} said {message['said']!r} where {kind!r} was expected")
        return message

    def hear_all(self, children: Iterable[Worker], kind: str) -> list[Message]:
        """Return one message of this kind of each."""
        return [self.hear(child, kind) for child in children]

    def _listen(self, left_s: float) -> None:
        for key, _ in self._selector.select(left_s):
            child: Worker = key.data
            data = os.read(key.fd, READ_BYTES)
            child.take(data)
            if not data:
                self._selector.unregister(key.fileobj)
                child.silenced = True
                if not child.said:  # else its last line says more: it may be why
                    raise self._death(child)

    def _death(self, child: Worker) -> RunError:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(BURIED_S)
        why = describe_code(child.process.returncode)
        return RunError(f"{child.name} has died: {why}", child.last_words())


def _silence(child: Worker, kind: str, seconds: float) -> RunError:
    why = f" ({'; '.join(child.notes)})" if child.notes else ""
    return RunError(
        f"{child.name} has not said {kind!r} within {seconds:.0f} s{why}",
        "the machine may be too busy: try a smaller --mib",
    )
