"""What attacks on a live node are made of, and how long they hold it up."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from multiaddr import Multiaddr

LAG_S = 3.0
"""The longest that the event loop may stand still during an attack; the attackers work in it too."""


class Stopwatch:
    """The longest time for which a task that sleeps 10 ms was kept waiting."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await trio.sleep(0.01)
            self.worst_s = max(self.worst_s, time.perf_counter() - began - 0.01)


@asynccontextmanager
async def watched() -> AsyncIterator[Stopwatch]:
    async with trio.open_nursery() as nursery:
        watch = Stopwatch()
        nursery.start_soon(watch.run)
        yield watch
        nursery.cancel_scope.cancel()


async def tcp(address: str, source: str | None = None) -> trio.SocketStream:
    """A socket to a node; `source`: of which of this machine's addresses."""
    port = int(Multiaddr(address).value_for_protocol("tcp"))
    return await trio.open_tcp_stream("127.0.0.1", port, local_address=source)


async def swallowed(send: Callable[[bytes], Any], data: bytes, most: int) -> int:
    """How many bytes of `data`, repeated, are taken before the far end hangs up."""
    taken = 0
    with suppress(Exception):
        while taken < most:
            with trio.fail_after(3):
                await send(data)
            taken += len(data)
    return taken
