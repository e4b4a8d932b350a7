"""One direction of a stream over links as people have them (wan.py): bytes are on their way for a while, many at
once.

Who waits for a moment that the other end moves (the next piece's arrival, the window's next room) is not woken to be
told: its deadline is moved. A wake-up costs more than all else here.

What need not wait does not let others run first: it would be a wake-up of the scheduler for every read and write, half
of all that there are in a simulation. It can be cancelled all the same, and the way takes time before long.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from gossip.transport.memory.courier import hasten
from gossip.transport.memory.pipe import WINDOW_BYTES, Pipe
from gossip.transport.memory.wan import Route

BUFFERED_S: Final = 0.001
"""What takes a link for so long or less is not waited for, as it is in the system's buffers. The link is taken all the
same, so that rates are exact, and no time is wrong by more."""


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
        self._reader: trio.CancelScope | None = None
        """The wait for the next arrival."""
        self._writer: trio.CancelScope | None = None
        """The wait for room."""

    async def checkpoint(self) -> None:
        """Be cancelled; let nobody run first."""
        await trio.lowlevel.checkpoint_if_cancelled()

    async def send_all(self, data: bytes | memoryview) -> None:
        """Put all of `data` on its way, piece by piece. Raises TransportError once the pipe is broken."""
        await self.checkpoint()
        view = memoryview(data).cast("B")
        while len(view):
            await self._room()
            piece = bytes(view[: min(self._route.piece_bytes, WINDOW_BYTES - self._unacknowledged)])
            view = view[len(piece) :]
            self._unacknowledged += len(piece)
            leaves_at = self._route.leaves_at(len(piece), trio.current_time())
            await self._until(leaves_at - BUFFERED_S)
            await self._until_it_flows()
            self._check()
            arrives_at = self._route.arrives_at(max(leaves_at, trio.current_time()))
            self._newest_arrival = max(self._newest_arrival, arrives_at)
            self._travelling.append((self._newest_arrival, piece))
            hasten(self._reader, self._newest_arrival)

    async def receive_some(self, most: int) -> bytes:
        """Up to `most` bytes; b"" at the end. Raises TransportError once the pipe is broken."""
        await self.checkpoint()
        self._check()
        while not self._buffer:
            await self._until_it_flows()
            now = trio.current_time()
            if self._landing is not None:
                await self._land(self._landing)
            elif self._travelling and self._travelling[0][0] <= now:
                _, piece = self._travelling.popleft()
                self._landing = (self._route.lands_at(len(piece), now), piece)
            elif self._ended and not self._travelling and self._newest_arrival <= now:
                return b""
            else:
                with trio.CancelScope(deadline=self._next_arrival()) as self._reader:
                    await self._next_change()
                self._reader = None
        data = bytes(self._buffer[:most])
        del self._buffer[:most]
        told_at = trio.current_time() + self._route.latency_s
        self._credits.append((told_at, len(data)))
        hasten(self._writer, told_at)
        return data

    def end(self) -> None:
        """The writer is done; the reader learns it behind the last byte, and is not woken before."""
        if not self._ended:
            self._newest_arrival = max(self._newest_arrival, trio.current_time() + self._route.latency_s)
            self._ended = True
            hasten(self._reader, self._next_arrival())

    def _next_arrival(self) -> float:
        if self._travelling:
            return self._travelling[0][0]
        return self._newest_arrival if self._ended else math.inf

    async def _land(self, landing: tuple[float, bytes]) -> None:
        """Wait for a piece to pass the downlink. Cancelled, it goes on with the next call."""
        await self._until(landing[0] - BUFFERED_S)
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
            with trio.CancelScope(deadline=self._credits[0][0] if self._credits else math.inf) as self._writer:
                await self._next_change()
            self._writer = None

    async def _until_it_flows(self) -> None:
        while math.isinf(self._delay(0)):
            await self._next_change()

    async def _until(self, time: float) -> None:
        """Wait for a time. Raises TransportError where the pipe breaks meanwhile."""
        while trio.current_time() < time:
            with trio.move_on_at(time):
                await self._next_change()
