"""Frames over a stream, and the two ends of a conversation: one asks, the other answers, in turn.

A frame is a big-endian length of four bytes and a msgpack array. The length is compared with the limit for what is
expected before a byte of the body is read. The wait follows progress: the first byte may take `patience_s`, and each
byte that arrives allows 1/MIN_RATE seconds more, so that a slow link finishes and a peer that trickles does not hold
us. A stream that was not brought to an orderly end is reset under a shield, or its slot would leak.
"""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import KIB, MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES, MIN_RATE, STREAM_PROTOCOL
from gossip.core.messages import Request, encode_request
from gossip.transport.base import Stream, Transport

APART_BYTES: Final = 64 * KIB
"""Bodies from this size on are sent separately from their length, so that neither end copies them: over a data
connection a body is a record of its own."""

IDLE_S: Final = 30.0
"""Seconds that a server waits for the next request on an open stream; a puller asks again within milliseconds."""

Answerer = Callable[[bytes | bytearray], Awaitable[bytes]]

_LENGTH: Final = struct.Struct(">I")


class FrameStream:
    """Reads and writes frames; raises RemoteError for what the far end does wrong, TransportError for the network."""

    def __init__(self, stream: Stream, patience_s: float) -> None:
        self._stream = stream
        self._patience_s = patience_s

    async def send(self, body: bytes) -> None:
        """Send one frame. Raises RemoteError(TIMEOUT) when the far end reads more slowly than MIN_RATE."""
        with trio.move_on_after(self._patience_s + len(body) / MIN_RATE) as scope:
            if len(body) < APART_BYTES:
                await self._stream.send_all(_LENGTH.pack(len(body)) + body)
            else:
                await self._stream.send_all(_LENGTH.pack(len(body)))
                await self._stream.send_all(body)
        if scope.cancelled_caught:
            raise RemoteError(Reason.TIMEOUT, "it does not read what it asked for")

    async def receive(self, most: int) -> bytes | bytearray | None:
        """Return the next frame of at most `most` bytes; None when the far end has closed between frames."""
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

    async def _exactly(self, size: int, deadline: float, may_end: bool = False) -> bytes | bytearray | None:
        data = bytearray()  # not a list of pieces: pieces of two bytes would take twenty times their length
        while len(data) < size:
            with trio.move_on_at(ends_at := deadline + self._progress(data) / MIN_RATE) as scope:
                piece = await self._stream.receive_some(size - len(data))
            if scope.cancelled_caught and deadline + self._progress(data) / MIN_RATE > ends_at:
                continue  # more has come meanwhile
            if scope.cancelled_caught:
                raise RemoteError(Reason.TIMEOUT, "no answer, or one that trickles")
            if not piece:
                if may_end and not data:
                    return None
                raise RemoteError(Reason.PROTOCOL, "the stream ended inside a frame")
            if len(piece) == size:  # in one piece, as over a data connection: not copied
                return piece
            data += piece
        return data

    def _progress(self, data: bytearray) -> int:
        return len(data) + self._stream.pending


class Session:
    """The asking end of one stream."""

    def __init__(self, frames: FrameStream) -> None:
        self._frames = frames

    async def ask(self, request: Request, most: int = MAX_RESPONSE_BYTES) -> bytes | bytearray:
        """Send a request; return the raw response of at most `most` bytes. Raises RemoteError or TransportError."""
        await self.request(request)
        return await self.response(most)

    async def request(self, request: Request) -> None:
        """Send a request without waiting; answers come in the order of the requests. Raises as `ask` does."""
        await self._frames.send(encode_request(request))

    async def response(self, most: int = MAX_RESPONSE_BYTES) -> bytes | bytearray:
        """Return the raw response to the oldest request that has none yet. Raises as `ask` does."""
        answer = await self._frames.receive(most)
        if answer is None:
            raise RemoteError(Reason.UNAVAILABLE, "the stream was closed without an answer")
        return answer


@asynccontextmanager
async def open_session(
    transport: Transport, peer: PeerId, patience_s: float, *, bulk: bool = False, protocol: str = STREAM_PROTOCOL
) -> AsyncIterator[Session]:
    """Open a stream to a connected peer; closed at the end, reset on any exception. `bulk`: much will be asked for."""
    stream: Stream | None = None
    try:
        with trio.move_on_after(patience_s):
            stream = await transport.open_stream(peer, protocol, bulk=bulk)
        if stream is None:
            raise RemoteError(Reason.TIMEOUT, "it does not take a stream")
        yield Session(FrameStream(stream, patience_s))
        await stream.close()
    except BaseException:
        if stream is not None:
            with trio.CancelScope(shield=True):
                await stream.reset()
        raise


async def ask_once(
    transport: Transport,
    peer: PeerId,
    request: Request,
    patience_s: float,
    most: int,
    *,
    protocol: str = STREAM_PROTOCOL,
) -> bytes | bytearray:
    """Send one request on a stream of its own; return the raw response."""
    async with open_session(transport, peer, patience_s, protocol=protocol) as session:
        return await session.ask(request, most)


async def serve(stream: Stream, answer: Answerer, patience_s: float) -> None:
    """Answer the requests of one stream until the far end closes it or falls silent. Raises as FrameStream does."""
    requests, responses = FrameStream(stream, IDLE_S), FrameStream(stream, patience_s)
    while True:
        raw = await requests.receive(MAX_REQUEST_BYTES)
        if raw is None:
            return
        await responses.send(await answer(raw))
