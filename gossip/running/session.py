"""Frames over a stream, and the two ends of a conversation: one asks, the other answers, in turn.

A frame is a big-endian length of four bytes and a msgpack array. The length is held against the limit for what is
expected before a byte of the body is read. Patience follows progress: the first byte may take `patience_s`, and each
byte that arrives buys 1/MIN_RATE seconds more, so that a slow link finishes and a peer that trickles does not hold us.
A stream that was not brought to an orderly end is reset under a shield, or its slot would leak.
"""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from gossip.errors import Reason, RemoteError
from gossip.ids import PeerId
from gossip.protocol.limits import KIB, MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES, STREAM_PROTOCOL
from gossip.protocol.messages import Request, encode_request
from gossip.transport.base import Stream, Transport

MIN_RATE: Final = 16 * KIB
"""Bytes a second below which a transfer is given up: a 1 MiB chunk within a minute; ISDN did half of it."""

READ_BYTES: Final = 256 * KIB
"""Asked of the stream at once: a full yamux window; what is there is taken in one piece."""

IDLE_S: Final = 30.0
"""A server waits so long for the next request on an open stream; a puller asks again within milliseconds."""

Answerer = Callable[[bytes], Awaitable[bytes]]

_LENGTH: Final = struct.Struct(">I")


class FrameStream:
    """Reads and writes frames; raises RemoteError for what the far end does wrong, TransportError for the network."""

    def __init__(self, stream: Stream, patience_s: float) -> None:
        self._stream = stream
        self._patience_s = patience_s

    async def send(self, body: bytes) -> None:
        """Send one frame. RemoteError(TIMEOUT) when the far end takes it in more slowly than MIN_RATE."""
        with trio.move_on_after(self._patience_s + len(body) / MIN_RATE) as scope:
            await self._stream.send_all(_LENGTH.pack(len(body)) + body)
        if scope.cancelled_caught:
            raise RemoteError(Reason.TIMEOUT, "it does not read what it asked for")

    async def receive(self, most: int) -> bytes | None:
        """The next frame of at most `most` bytes; None when the far end has closed between frames."""
        deadline = trio.current_time() + self._patience_s
        head = await self._exactly(_LENGTH.size, deadline, may_end=True)
        if head is None:
            return None
        (size,) = _LENGTH.unpack(head)
        if size > most:
            raise RemoteError(Reason.OVERSIZE, f"a frame of {size} bytes where at most {most} are allowed")
        body = await self._exactly(size, deadline)
        assert body is not None
        return body

    async def _exactly(self, size: int, deadline: float, may_end: bool = False) -> bytes | None:
        data = bytearray()  # not a list of pieces: of two bytes each they would take twenty times their length
        while len(data) < size:
            with trio.move_on_at(deadline + len(data) / MIN_RATE) as scope:
                piece = await self._stream.receive_some(min(READ_BYTES, size - len(data)))
            if scope.cancelled_caught:
                raise RemoteError(Reason.TIMEOUT, "no answer, or one that trickles")
            if not piece:
                if may_end and not data:
                    return None
                raise RemoteError(Reason.PROTOCOL, "the stream ended inside a frame")
            data += piece
        return bytes(data)


class Session:
    """The asking end of one stream."""

    def __init__(self, frames: FrameStream) -> None:
        self._frames = frames

    async def ask(self, request: Request, most: int = MAX_RESPONSE_BYTES) -> bytes:
        """Send a request; the raw response of at most `most` bytes. Raises RemoteError or TransportError."""
        await self.request(request)
        return await self.response(most)

    async def request(self, request: Request) -> None:
        """Send a request without waiting: answers come in the order of the requests. Raises as `ask` does."""
        await self._frames.send(encode_request(request))

    async def response(self, most: int = MAX_RESPONSE_BYTES) -> bytes:
        """The raw response to the oldest request that has none yet. Raises as `ask` does."""
        answer = await self._frames.receive(most)
        if answer is None:
            raise RemoteError(Reason.UNAVAILABLE, "the stream was closed without an answer")
        return answer


@asynccontextmanager
async def open_session(transport: Transport, peer: PeerId, patience_s: float) -> AsyncIterator[Session]:
    """A stream to a connected peer, closed at the end and reset on any exception."""
    stream: Stream | None = None
    try:
        with trio.move_on_after(patience_s):
            stream = await transport.open_stream(peer, STREAM_PROTOCOL)
        if stream is None:
            raise RemoteError(Reason.TIMEOUT, "it does not take a stream")
        yield Session(FrameStream(stream, patience_s))
        await stream.close()
    except BaseException:
        if stream is not None:
            with trio.CancelScope(shield=True):
                await stream.reset()
        raise


async def ask_once(transport: Transport, peer: PeerId, request: Request, patience_s: float, most: int) -> bytes:
    """One request on a stream of its own."""
    async with open_session(transport, peer, patience_s) as session:
        return await session.ask(request, most)


async def serve(stream: Stream, answer: Answerer, patience_s: float) -> None:
    """Answer the requests of one stream until the far end closes it or falls silent. Raises as FrameStream does."""
    requests, responses = FrameStream(stream, IDLE_S), FrameStream(stream, patience_s)
    while True:
        raw = await requests.receive(MAX_REQUEST_BYTES)
        if raw is None:
            return
        await responses.send(await answer(raw))
