"""Python's garbage collector around a program that imports three quarters of a million objects and keeps them all.

Collecting while torch, libp2p and scikit-learn are imported finds nothing and takes 0.9 s of a node's start; the
interpreter's own last collections take 1.2 s of its end, and Ctrl-C has five seconds for a whole swarm; a full one in
between walks through all of those objects while the event loop stands still. So they are frozen: exempt from it.
"""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

IMPORTING = 200_000
"""New objects from one collection to the next while a program starts: four collections instead of a thousand."""

SWITCH_INTERVAL_S = 0.001
"""How long the training thread may keep the interpreter from the event loop: with CPython's 5 ms, each of the loop's
many small turns during a transfer would wait that long."""

_DEFAULT = gc.get_threshold()


def starting() -> None:
    """Collect seldom while a program begins and imports."""
    gc.set_threshold(IMPORTING)


def running() -> None:
    """Exempt all that was imported from collection, and collect later objects as Python does."""
    gc.freeze()
    gc.set_threshold(*_DEFAULT)


class _LeftOut:
    """Whose exemptions there are. To ask Python whether there are any is to walk through all that are exempt, a quarter
    of a second in a process that holds many: once it has said yes it is not asked again."""

    def __init__(self) -> None:
        self._is_for_good = False
        self._blocks = 0

    @contextmanager
    def block(self) -> Iterator[None]:
        if not self._blocks and not self._is_for_good:
            self._is_for_good = gc.get_freeze_count() > 0
        gc.freeze()
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks and not self._is_for_good:
                gc.unfreeze()


_LEFT_OUT = _LeftOut()


def left_out() -> AbstractContextManager[None]:
    """Exempt what is there from collection while the block runs; for good where a caller had exempted things before,
    as Python can only take back all of it."""
    return _LEFT_OUT.block()


def ending() -> None:
    """Stop collecting: the process is about to end, and all of its memory with it."""
    gc.freeze()
