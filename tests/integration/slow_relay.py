"""A relay with a long way behind it: `python slow_relay.py DELAY_S LOSS PORT=HOST:PORT ...`, for the network lab.

What comes in at a port goes out to the host named for it, and back, each way DELAY_S later and not slower. One
connection in a hundred (LOSS = 0.01) is closed as soon as it is there, and every ten seconds each living one is broken
with the same chance. Prints one JSON line a second: connections alive, opened, and broken so far.
"""

import json
import random
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

BREAK_EVERY_S = 10.0
PIECE_BYTES = 1 << 16
UNDER_WAY_BYTES = 4 << 20
"""One way of a connection: a second and a half of 20 Mbit/s. Beyond it the sender waits, as at a full router."""


@dataclass
class Tally:
    alive: int = 0
    opened: int = 0
    broken: int = 0


@dataclass
class Way:
    """One direction: pieces, each with the moment at which it arrives."""

    delay_s: float
    pieces: deque[tuple[float, bytes]] = field(default_factory=deque)
    held: int = 0
    changed: trio.Condition = field(default_factory=trio.Condition)

    async def take(self, source: trio.SocketStream) -> None:
        while True:
            data = await source.receive_some(PIECE_BYTES)
            async with self.changed:
                while self.held > UNDER_WAY_BYTES:
                    await self.changed.wait()
                self.pieces.append((trio.current_time() + self.delay_s, data))
                self.held += len(data)
                self.changed.notify_all()
            if not data:
                return

    async def give(self, sink: trio.SocketStream) -> None:
        while True:
            async with self.changed:
                while not self.pieces:
                    await self.changed.wait()
                at, data = self.pieces.popleft()
            await trio.sleep_until(at)
            if not data:
                await sink.send_eof()
                return
            await sink.send_all(data)
            async with self.changed:
                self.held -= len(data)
                self.changed.notify_all()


class Relay:
    def __init__(self, delay_s: float, loss: float, rng: random.Random) -> None:
        self.tally = Tally()
        self._delay_s, self._loss, self._rng = delay_s, loss, rng

    async def serve(self, host: str, port: int, near: trio.SocketStream) -> None:
        """One connection, to its end."""
        self.tally.opened += 1
        async with near:
            await trio.sleep(2 * self._delay_s)  # the way of a SYN, and of its answer
            if self._rng.random() < self._loss:
                self.tally.broken += 1
                return
            with suppress(*EXPECTED):
                async with await trio.open_tcp_stream(host, port) as far:
                    await self._carry(near, far)

    async def _carry(self, near: trio.SocketStream, far: trio.SocketStream) -> None:
        self.tally.alive += 1
        try:
            with suppress(*EXPECTED):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._break, nursery.cancel_scope)
                    async with trio.open_nursery() as ways:
                        for source, sink in ((near, far), (far, near)):
                            way = Way(self._delay_s)
                            ways.start_soon(way.take, source)
                            ways.start_soon(way.give, sink)
                    nursery.cancel_scope.cancel()
        finally:
            self.tally.alive -= 1

    async def _break(self, scope: trio.CancelScope) -> None:
        while True:
            await trio.sleep(BREAK_EVERY_S)
            if self._rng.random() < self._loss:
                self.tally.broken += 1
                scope.cancel()


EXPECTED = (ExceptionGroup, OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Ends of either side: a nursery wraps them."""


async def main(delay_s: float, loss: float, routes: list[str]) -> None:
    relay = Relay(delay_s, loss, random.Random(1))
    async with trio.open_nursery() as nursery:
        for route in routes:
            port, target = route.split("=")
            host, _, target_port = target.rpartition(":")
            handler = partial(relay.serve, host, int(target_port))
            await nursery.start(partial(trio.serve_tcp, handler, int(port), host="0.0.0.0"))
        while True:
            print(json.dumps({"event": "relay", **vars(relay.tally)}), flush=True)
            await trio.sleep(1)


if __name__ == "__main__":
    trio.run(main, float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
