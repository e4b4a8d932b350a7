"""One direction of a stream over links as people have them (wan.py): bytes are on their way for a while, many at once."""

import math
from collections import deque
from collections.abc import Callable

import trio

from gossip.transport.memory.pipe import WINDOW_BYTES, Pipe
from gossip.transport.memory.wan import Route


class ShapedPipe(Pipe):
    """A pipe along a route. `delay` says whether anything passes: it is infinite while the link is stalled.

    The receiver's downlink is taken when a piece is read, in the order in which pieces come from all senders. Who does
    not read holds up its own stream alone, up to the window.
    """

    def __init__(self, delay: Callable[[int], float], route: Route) -> None:
        super().__init__(delay)
        self._route = route
        self._travelling: deque[tuple[float, bytes]] = deque()
        """Pieces on their way, with the time at which they come to the receiver's link."""
        self._landing: tuple[float, bytes] | None = None
        """The piece that takes the receiver's link, and until when."""
        self._newest_arrival = -math.inf
        self._unacknowledged = 0
        """Bytes that were sent, and whose reading the sender does not know of."""
        self._credits: deque[tuple[float, int]] = deque()
        """When the sender learns how many bytes were read."""

    async def send_all(self, data: bytes | memoryview) -> None:
        """Put all of `data` on its way, piece by piece. Raises TransportError once the pipe is broken."""
        await trio.lowlevel.checkpoint()
        view = memoryview(data).cast("B")
        while len(view):
            await self._room()
            piece = bytes(view[: min(self._route.piece_bytes, WINDOW_BYTES - self._unacknowledged)])
            view = view[len(piece) :]
            self._unacknowledged += len(piece)
            await self._until(self._route.leaves_at(len(piece), trio.current_time()))
            await self._until_it_flows()
            self._newest_arrival = max(self._newest_arrival, self._route.arrives_at(trio.current_time()))
            self._travelling.append((self._newest_arrival, piece))
            self._beat()

    async def receive_some(self, most: int) -> bytes:
        """Up to `most` bytes; b"" at the end. Raises TransportError once the pipe is broken."""
        await trio.lowlevel.checkpoint()
        self._check()
        while not self._buffer:
            await self._until_it_flows()
            now = trio.current_time()
            if self._landing is not None:
                await self._land(self._landing)
            elif self._travelling and self._travelling[0][0] <= now:
                _, piece = self._travelling.popleft()
                self._landing = (self._route.lands_at(len(piece), now), piece)
            elif self._travelling:
                await self._change_or(self._travelling[0][0])
            elif self._ended and self._newest_arrival <= now:
                return b""
            else:
                await self._change_or(self._newest_arrival if self._ended else math.inf)
        data = bytes(self._buffer[:most])
        del self._buffer[:most]
        self._credits.append((trio.current_time() + self._route.latency_s, len(data)))
        self._beat()
        return data

    def end(self) -> None:
        """The writer is done; the reader learns it behind the last byte."""
        if not self._ended:
            self._newest_arrival = max(self._newest_arrival, trio.current_time() + self._route.latency_s)
        super().end()

    async def _land(self, landing: tuple[float, bytes]) -> None:
        """Wait for a piece to pass the downlink. Cancelled, it goes on with the next call."""
        await self._until(landing[0])
        self._buffer += landing[1]
        self._landing = None

    async def _room(self) -> None:
        """Wait until the window has room."""
        self._check()
        while True:
            while self._credits and self._credits[0][0] <= trio.current_time():
                self._unacknowledged -= self._credits.popleft()[1]
            if self._unacknowledged < WINDOW_BYTES:
                return
            await self._change_or(self._credits[0][0] if self._credits else math.inf)

    async def _until_it_flows(self) -> None:
        while math.isinf(self._delay(0)):
            await self._next_change()

    async def _until(self, time: float) -> None:
        """Wait for a time. Raises TransportError where the pipe breaks meanwhile."""
        while trio.current_time() < time:
            await self._change_or(time)

    async def _change_or(self, time: float) -> None:
        with trio.move_on_at(time):
            await self._next_change()
