"""Tasks that break the process that runs them, for the tests of sweeps."""

import os
import signal
from typing import Never


def raising() -> Never:
    """A bug in a task of somebody's own."""
    raise RuntimeError("no such luck")


def dying() -> Never:
    """As the kernel ends a process when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")
