"""How a node is told to stop, and a command that has processes and folders of its own."""

import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import trio

from node.system.interrupts import SOON_KILLED

ONE_WISH_S: Final = 0.5
"""Signals that come so soon after the first one are the same wish to stop. Who stops a process group, such as `timeout`
or an init system, reaches each process directly, and again through `make` or our own supervisor. Chosen."""


def unclaimed(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return those of `numbers` that this process neither handles nor ignores: a task may have a use for one."""
    return [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]


def stopping() -> list[signal.Signals]:
    """Return the signals that end a node in order: SIGINT, SIGTERM, SIGHUP (the terminal was closed; not under nohup),
    and those of SOON_KILLED that nobody else has a handler for."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *unclaimed(SOON_KILLED), *hang_up]


async def asked_again(signals: AsyncIterator[int]) -> None:
    """Return when a signal comes that is a second wish: later than ONE_WISH_S after now."""
    began = trio.current_time()
    async for _ in signals:
        if trio.current_time() > began + ONE_WISH_S:
            return


async def until_signal(*, task_status: trio.TaskStatus[trio.Event]) -> None:
    """Turn the first of the `stopping` signals into an event. One that is a second wish does what it does to any
    program, for a user who does not want to wait."""
    interrupted = trio.Event()
    with trio.open_signal_receiver(*stopping()) as signals:
        task_status.started(interrupted)
        await anext(signals)
        interrupted.set()
        with trio.move_on_after(ONE_WISH_S):
            await asked_again(signals)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Within it SIGTERM is what Ctrl-C is, a KeyboardInterrupt, so that processes and folders are ended; the exit code
    stays SIGTERM's. Of the main thread."""
    terminated = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
