"""What peers have sent and nobody here has read yet: bounded over all connections together.

A stream holds what its window lets in, 256 KiB at first, and a connection has up to 64 streams: 16 MiB a stranger, and
4.5 GiB of as many strangers as may call, while each keeps to every rule of yamux. So the sum is looked at, and when it
is too much, those of whom most is unread are cut off. A neighbour is not: there are few, its windows are its own bound,
and bulk is what it is here for.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import trio

from gossip.transport.libp2p.fault_guard import Faults

MAX_UNREAD_BYTES: Final = 128 << 20
"""Of all connections that may be cut off. Of an honest stranger next to nothing is unread: it asks and waits. Chosen: a
tenth of what a node holds with a model of 25M parameters."""

LOOK_UNREAD_S: Final = 0.25
"""Between two looks: at 1 Gbit/s 31 MB come in meanwhile. A look at 288 connections takes 0.3 ms."""


def unread(muxed: Any) -> int:
    """Bytes that wait in the streams of a connection."""
    return sum(map(len, muxed.stream_buffers.values()))


def too_much(connections: Iterable[Any], most: int) -> list[Any]:
    """Which of these are to be cut off so that at most `most` bytes wait: those with most, and no more than needed."""
    waiting = sorted(((unread(muxed), id(muxed), muxed) for muxed in connections), reverse=True)
    total, cut = sum(size for size, _, _ in waiting), []
    for size, _, muxed in waiting:
        if total <= most:
            break
        cut.append(muxed)
        total -= size
    return cut


async def watch_unread(loose: Callable[[], Iterable[Any]], faults: Faults) -> None:
    """Until cancelled. `loose`: the connections that may be cut off."""
    while True:
        for muxed in too_much(loose(), MAX_UNREAD_BYTES):
            faults.note("unread")
            with suppress(Exception):  # whatever its stream makes of that: it would end the node
                await muxed.secured_conn.close()
        await trio.sleep(LOOK_UNREAD_S)
