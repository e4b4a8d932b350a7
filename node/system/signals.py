"""How a node is told to stop."""

import signal

import trio


async def until_signal(*, task_status: trio.TaskStatus[trio.Event]) -> None:
    """Turn the first SIGINT, SIGTERM or SIGHUP (the terminal was closed; not under nohup) into an event. The second
    does what it does to any program, for a user who does not want to wait."""
    interrupted = trio.Event()
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    with trio.open_signal_receiver(*wanted) as signals:
        task_status.started(interrupted)
        await anext(signals)
        interrupted.set()
