"""A libp2p stream as the protocol sees it: explicit ends, translated errors, and nothing left behind."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from libp2p.network.stream.exceptions import StreamEOF

from gossip.core.ids import PeerId
from gossip.transport.base import TransportError
from gossip.transport.libp2p.libp2p_errors import translated

LINGER_S: Final = 10.0
"""After our end of sending, how long the far end may take to finish before its side is reset: it may be reading the
last window of data over a slow link. Longer only holds memory."""

READ_BYTES: Final = 65_536
"""Read and dropped at a time while lingering."""


class Libp2pStream:
    """A `gossip.transport.base.Stream` over a libp2p NetStream.

    `spawn` runs a function beyond the caller's life (the transport's nursery).
    """

    def __init__(self, net: Any, remote: PeerId, spawn: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self._net = net
        self._remote = remote
        self._spawn = spawn
        self._released = False

    @property
    def remote(self) -> PeerId:
        """The peer at the other end, as proved by the Noise handshake."""
        return self._remote

    @property
    def pending(self) -> int:
        """0: frames of 64 KiB are handed over as they come."""
        return 0

    @property
    def dialled(self) -> tuple[str, int] | None:
        """Host and port of its connection, if we dialled that. Raises TransportError."""
        with translated(f"looking where {self._remote} was dialled"):
            dialled: tuple[str, int] | None = self._net.muxed_conn.dialled
            return dialled

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send all of `data`, waiting for the far end to read. Raises TransportError."""
        with translated(f"sending to {self._remote}"):
            self._check_held()
            await self._net.write(data)

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least 1 and at most `max_bytes` bytes; b"" at a clean end. Raises TransportError."""
        assert max_bytes > 0
        with translated(f"receiving from {self._remote}"):
            self._check_held()
            try:
                data: bytes = await self._net.read(max_bytes)
                return data
            except StreamEOF:
                # A lost connection reads as an end of stream in libp2p (trap 6, yamux.py:1716): tell them apart.
                if self._net.muxed_conn.lost:
                    raise TransportError(f"receiving from {self._remote}: the connection was lost") from None
                return b""

    async def close(self) -> None:
        """Say that we are done sending, and let go of the stream."""
        if self._released:
            return
        self._released = True
        with trio.CancelScope(shield=True):  # nothing below waits for the network: see libp2p_outbox
            try:
                await self._net.close()
            except Exception:
                await self._net.reset()
        muxed = self._net.muxed_stream
        if not (muxed.closed or muxed.recv_closed or self._net.muxed_conn.lost):
            self._spawn(self._linger)

    async def reset(self) -> None:
        """Abandon the stream at once."""
        self._released = True
        with trio.CancelScope(shield=True):
            await self._net.reset()

    def _check_held(self) -> None:
        if self._released:
            raise TransportError("the stream is closed")

    async def _linger(self) -> None:
        """Read and drop until the far end finishes too, else reset: its writer must not wait for ever."""
        muxed = self._net.muxed_stream
        try:
            with trio.move_on_after(LINGER_S):
                while True:
                    await muxed.read(READ_BYTES)
        except Exception:
            return  # its end, or the connection's
        with trio.CancelScope(shield=True):
            await self._net.reset()
