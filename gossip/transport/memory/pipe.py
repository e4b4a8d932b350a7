"""A stream of the in-memory network: two bounded pipes, each a buffer that makes its writer wait when it is full."""

import math
from collections.abc import Callable
from typing import Final

import trio

from gossip.core.ids import PeerId
from gossip.transport.base import TransportError
from gossip.transport.wire_bytes import WireBytes

WINDOW_BYTES: Final = 256 * 1024
"""Unread bytes a direction: yamux's initial window, so that backpressure sets in where it does on a real link."""


class Pipe:
    """One direction. `delay`: seconds that a piece of so many bytes takes now; infinite while the link is stalled."""

    def __init__(self, delay: Callable[[int], float]) -> None:
        self._delay = delay
        self._buffer = bytearray()
        self._ended = False
        self._broken = False
        self._changed = trio.Event()

    async def checkpoint(self) -> None:
        """Let others run, and be cancelled: what every call does that need not wait."""
        await trio.lowlevel.checkpoint()

    async def send_all(self, data: bytes | memoryview) -> None:
        """Put all of `data` in, as room appears. Raises TransportError once the pipe is broken."""
        await self.checkpoint()
        view = memoryview(data).cast("B")
        while len(view):
            await self._wait_while(lambda: len(self._buffer) >= WINDOW_BYTES)
            piece = view[: max(0, WINDOW_BYTES - len(self._buffer))]
            await self._travel(len(piece))
            self._buffer += piece
            view = view[len(piece) :]
            self._beat()

    async def receive_some(self, most: int) -> bytes:
        """Up to `most` bytes; b"" at the end. Raises TransportError once the pipe is broken."""
        await self.checkpoint()
        await self._wait_while(lambda: not self._buffer and not self._ended)
        data = bytes(self._buffer[:most])
        del self._buffer[:most]
        self._beat()
        return data

    @property
    def over(self) -> bool:
        """Whether the writer is done or the pipe broken."""
        return self._ended or self._broken

    def end(self) -> None:
        """The writer is done."""
        self._ended = True
        self._beat()

    def break_off(self) -> None:
        """Neither end can use it any more."""
        self._broken = True
        self._beat()

    def stop_reading(self) -> None:
        """The reader is gone: a writer fails; what was sent orderly before counts as read."""
        if not self._ended:
            self.break_off()

    async def _travel(self, size: int) -> None:
        while math.isinf(delay := self._delay(size)):
            await self._next_change()
        if delay:
            await trio.sleep(delay)
        self._check()

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        self._check()
        while condition():
            await self._next_change()

    async def _next_change(self) -> None:
        await self._changed.wait()
        self._check()

    def _check(self) -> None:
        if self._broken:
            raise TransportError("the stream is gone")

    def wake(self) -> None:
        """The link's delay may have changed."""
        self._beat()

    def _beat(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class MemoryStream:
    """One end of a stream. `wire` counts what passes it; `tell` is called with what is written."""

    def __init__(
        self,
        remote: PeerId,
        incoming: Pipe,
        outgoing: Pipe,
        wire: WireBytes,
        tell: Callable[[bytes | memoryview], None] | None = None,
    ) -> None:
        self._remote = remote
        self._tell = tell
        self._incoming = incoming
        self._outgoing = outgoing
        self._wire = wire

    @property
    def remote(self) -> PeerId:
        """The peer at the other end."""
        return self._remote

    @property
    def pending(self) -> int:
        """0: a pipe has no records."""
        return 0

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send all of `data`."""
        self._wire.sent += memoryview(data).nbytes
        if self._tell is not None:
            self._tell(data)
        await self._outgoing.send_all(data)

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least 1 and at most `max_bytes` bytes; b"" at the end."""
        data = await self._incoming.receive_some(max_bytes)
        self._wire.received += len(data)
        return data

    async def close(self) -> None:
        """Done sending; what the other end may still send is thrown away."""
        self._outgoing.end()
        self._incoming.stop_reading()
        await self._outgoing.checkpoint()

    async def reset(self) -> None:
        """Abandon both directions at once."""
        self.break_off()

    def break_off(self) -> None:
        """`reset`, for those who cannot await."""
        self._outgoing.break_off()
        self._incoming.break_off()

    def is_over(self) -> bool:
        """Whether nothing can pass in either direction any more."""
        return self._outgoing.over and self._incoming.over

    def wake(self) -> None:
        """The link's delay may have changed."""
        self._outgoing.wake()
        self._incoming.wake()
