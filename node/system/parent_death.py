"""A process, and all that it has forked, ends when the one that has started it does.

Linux can kill a process when its parent dies (PR_SET_PDEATHSIG), but not what that process has forked, such as
DataLoader workers. A signal on a pipe's closing reaches a whole process group, whatever its threads are at. Imports
next to nothing: it holds from the child's first line.
"""

import fcntl
import os
import signal
from typing import Final

_F_SETSIG: Final = 10
"""Linux's fcntl.h; Python has no name for it."""


def die_with_parent(life: int) -> None:
    """Let the system kill this process's group as soon as the other end of the pipe `life` closes, which carries
    nothing. The group is this process's own."""
    fcntl.fcntl(life, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    if _is_closed(life):  # before the signal was asked for
        os.killpg(0, signal.SIGKILL)


def _is_closed(life: int) -> bool:
    try:
        return os.read(life, 1) == b""
    except BlockingIOError:
        return False
