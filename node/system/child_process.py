"""A child process that is called and calls back (calls.py): a node beside a user's loop, or a trainer beside a node.

It is started anew, and not forked: threads, locks and sockets of this process are not in it. `steps` carries what is
done in order, `beside` what is answered meanwhile.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from node.system.calls import Calls, Handler
from node.system.errors import UsageError
from node.system.forks import ForkGuard
from node.system.tensor_channel import channel_pair, supported

END_S: Final = 10.0
"""Seconds for the child's end, when all is saved and said. Chosen: threads and sockets are closed in one of them."""


def require_support() -> None:
    """Raise UsageError where this system has no channel to a child process."""
    if not supported():
        raise UsageError('node.lane = "process" needs Linux', 'leave it at "thread"')


class ChildProcess:
    """`python -m MODULE STEPS BESIDE`: the descriptors of its ends.

    `answers` answers what it calls while this process waits for an answer of it on `steps`, `answers_beside` the same
    on `beside`. `dies_with_us`: it leads a process group of its own, gets a third descriptor for `die_with_parent`
    (parent_death.py), and what it has forked is killed when it ends."""

    def __init__(
        self,
        module: str,
        *,
        answers: Handler | None = None,
        answers_beside: Handler | None = None,
        dies_with_us: bool = False,
    ) -> None:
        (steps, its_steps), (beside, its_beside) = channel_pair(), channel_pair()
        its_life, self._life = os.pipe()
        self._grouped, self._ended = dies_with_us, threading.Event()
        self._guard = ForkGuard(own=(steps.fileno(), beside.fileno(), self._life))
        try:
            with its_steps, its_beside:
                ends = [its_steps.fileno(), its_beside.fileno(), *([its_life] if dies_with_us else ())]
                self._process = _started(module, ends, process_group=0 if dies_with_us else None)
        except BaseException:
            self._guard.end()
            os.close(self._life)
            steps.close()
            beside.close()
            raise
        finally:
            os.close(its_life)
        self.pid = self._process.pid
        self.steps = Calls(steps, handler=answers)
        self.beside = Calls(beside, handler=answers_beside)
        threading.Thread(target=self._reap, name="p2ptrain-reap", daemon=True).start()

    def how_it_ended(self) -> str:
        """Return how, in words. It has closed its end."""
        self._wait()
        code = self._process.returncode
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self, *, at_once: bool = False) -> None:
        """Have it end, and wait for that; `at_once`: kill it, for it has nothing to put in order."""
        self.steps.close()
        self.beside.close()
        if at_once and not self._ended.is_set():
            self._process.kill()
        self._wait()
        self._guard.end()

    def _wait(self) -> None:
        if not self._ended.wait(END_S):
            self._process.kill()
            self._ended.wait()

    def _reap(self) -> None:
        """Thread: wait for its end. What it has forked may hold its sockets open, so do not count on their closing."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if self._grouped:  # before it is reaped: until then nobody else has this number
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._life)
        self._ended.set()
        if self._grouped:
            self.steps.close()
            self.beside.close()


def _started(module: str, descriptors: Sequence[int], *, process_group: int | None) -> subprocess.Popen[bytes]:
    """Start the program. It finds modules where this process does, and not in the working directory before that."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in sys.path)},
        process_group=process_group,
    )


def keep_from_children(descriptors: Sequence[int]) -> Callable[[], None]:
    """In a child: let no process that it starts or forks hold these. Return what ends that."""
    for each in descriptors:
        os.set_inheritable(each, False)
    return ForkGuard(own=descriptors).end
