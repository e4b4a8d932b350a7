"""What Ctrl-C does before there is anything to put in order, and after everything was.

A node imports torch and libp2p for seconds. Python's own handler raises KeyboardInterrupt wherever the program happens
to be: inside an import that takes it for a missing module, in a destructor or a C callback, where it is printed and
forgotten. So from its first line to the moment at which its event loop listens for signals, `p2ptrain up` and
`p2ptrain node` end at once: nothing is open yet that is not written whole or not at all.

Imports next to nothing, as until then Ctrl-C is Python's.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

STARTING = ("up", "node")
"""Commands that start for seconds, and then listen by themselves. Others have something to put in order from the first:
a half-made folder, a terminal."""

SOON_KILLED = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2", "SIGXCPU") if hasattr(signal, name))
"""What batch systems send to a job some time before they kill it, where it asks for that or a soft limit of its time is
used up: SLURM's `--signal=USR1@120`, LSF's USR2 and XCPU, Grid Engine's `-notify`, `s_rt` and `s_cpu`."""


def at_once() -> None:
    """Let Ctrl-C end this process at once, without a message, from now on. A process that ignores SIGINT still does.

    SIGTERM does so by itself, but for process 1, as in a container without an init: the system gives it no signal that
    it has no handler for, so one that came early would be lost, and a kill without a checkpoint would follow.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def raising() -> bool:
    """Make Ctrl-C a KeyboardInterrupt again, where `at_once` had changed that; return whether it had."""
    if signal.getsignal(signal.SIGINT) is not _leave:
        return False
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return True


@contextmanager
def ending(stops: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Let Ctrl-C call `stops[0]`, which lets the block come to its end, and raise KeyboardInterrupt then. A second one,
    and one while `stops` is still empty, raises it at once.

    For an event loop on a virtual clock, which hardly ever waits: KeyboardInterrupt would come out of the loop itself
    as often as out of a task, and trio would warn of a run that was abandoned.
    """
    pressed: list[int] = []

    def stop(number: int, frame: object) -> None:
        pressed.append(number)
        if not stops or len(pressed) > 1:
            raise KeyboardInterrupt
        stops[0]()

    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    handled = handled and threading.current_thread() is threading.main_thread()
    if handled:
        signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if pressed:
            raise KeyboardInterrupt


def _leave(number: int, frame: object) -> None:
    os._exit(128 + number)  # as shells say it
