"""Many streams, broadcasts and heartbeats over the one stream that a relay carries, in the in-memory network.

It stands for yamux over Noise, and has their sizes: a frame has yamux's header of 12 bytes and Noise's tag of 16. The
tag is a keyed digest of the frame and its place in the sequence, so that a relay which changes, drops, repeats or holds
back a frame for another ends the circuit, as with Noise. Nothing is encrypted: nobody in this process looks.
"""

import math
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import trio

from gossip.core.ids import PeerId
from gossip.transport.base import Stream, TransportError
from gossip.transport.memory.pipe import WINDOW_BYTES
from gossip.transport.memory.wan import LARGEST_PIECE, STREAM_BYTES

HEADER: Final = struct.Struct(">BxxxII")
"""Kind, stream, bytes: as many as yamux's header has."""

TAG_BYTES: Final = 16
"""Of Noise's ChaCha20-Poly1305."""

MAX_FRAME_BYTES: Final = 64 << 10
"""A Noise message."""

MAX_STREAMS: Final = 64
"""At once, of a circuit: libp2p's bound here too (transport/libp2p/yamux.py)."""

OUTBOX_BYTES: Final = 64 << 10
"""What waits to leave; beyond it writers wait, and broadcasts are lost."""

OPEN_S: Final = 10.0
"""Seconds for the two round trips of a stream."""

HEARTBEAT_S: Final = 5.0
SILENT_S: Final = 20.0
"""A circuit over which nothing came for so long is over: four heartbeats, as with libp2p here."""

OPENING: Final = bytes(STREAM_BYTES // 2 - HEADER.size - TAG_BYTES)
"""What a message of the choice of a protocol is filled up to: each end sends two for a stream."""


class FrameKind(IntEnum):
    """What a frame is. HELLO to SETUP: of the handshake. OPEN to READY: of a stream's two round trips. STOP: what is
    still sent is not read."""

    HELLO = 0
    ADMISSION = 1
    REFUSAL = 2
    SETUP = 3
    OPEN = 4
    SEEN = 5
    GO = 6
    READY = 7
    DATA = 8
    WINDOW = 9
    END = 10
    STOP = 11
    RESET = 12
    BROADCAST = 13
    PING = 14


@dataclass(frozen=True)
class MuxFrame:
    """One frame, as it came."""

    kind: int
    number: int
    payload: bytes


class SealedFrames:
    """Frames over a circuit's stream, each proved to be the other end's next one."""

    def __init__(self, stream: Stream, me: PeerId, peer: PeerId) -> None:
        self.stream = stream
        self._me, self._peer = me, peer
        self._buffer = bytearray()
        self.rekey(b"")

    def rekey(self, nonces: bytes) -> None:
        """Begin anew with keys that depend on these bytes. The pair's own key is its names: what nobody but these two
        has in life, nobody but these two uses here."""
        self._keys = {
            peer: blake2b(f"{sorted((self._me, self._peer))} {peer}".encode() + nonces).digest()
            for peer in (self._me, self._peer)
        }
        self._sent = self._came = 0

    def sealed(self, kind: FrameKind, number: int = 0, payload: bytes = b"") -> bytes:
        """Return the next frame's bytes."""
        frame = HEADER.pack(kind, number, len(payload)) + payload
        tag = self._tag(self._me, self._sent, frame)
        self._sent += 1
        return frame + tag

    async def send(self, kind: FrameKind, number: int = 0, payload: bytes = b"") -> None:
        """Send one frame. Raises TransportError."""
        await self.stream.send_all(self.sealed(kind, number, payload))

    async def receive(self) -> MuxFrame | None:
        """Return the next frame, None at the end. Raises TransportError for one that the other end has not sent."""
        header = await self._exactly(HEADER.size)
        if header is None:
            return None
        kind, number, size = HEADER.unpack(header)
        if size > MAX_FRAME_BYTES:
            raise TransportError(f"a frame of {size} bytes over a circuit")
        rest = await self._exactly(size + TAG_BYTES)
        if rest is None:
            return None
        payload = rest[:size]
        if rest[size:] != self._tag(self._peer, self._came, header + payload):
            raise TransportError("what came over the circuit is not what the other end sent")
        self._came += 1
        return MuxFrame(kind, number, payload)

    def _tag(self, sender: PeerId, place: int, frame: bytes) -> bytes:
        return blake2b(frame, digest_size=TAG_BYTES, key=self._keys[sender], salt=place.to_bytes(16, "big")).digest()

    async def _exactly(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            piece = await self.stream.receive_some(MAX_FRAME_BYTES)
            if not piece:
                return None
            self._buffer += piece
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


class CircuitStream:
    """One stream of a circuit, with yamux's window in each direction."""

    def __init__(self, circuit: "CircuitConnection", number: int, protocol: str) -> None:
        self.protocol = protocol
        self.ready = False
        """Whether the far end has taken it."""
        self._circuit = circuit
        self._number = number
        self._buffer = bytearray()
        self._credit = WINDOW_BYTES
        self._unreported = 0
        """Bytes that were read, and whose sender does not know it."""
        self._ended = self._stopped = self._closed = self._broken = False
        self._changed = trio.Event()

    @property
    def remote(self) -> PeerId:
        """The peer at the other end of the circuit."""
        return self._circuit.peer

    @property
    def pending(self) -> int:
        """0: frames are handed over as they come."""
        return 0

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send all of `data`, as the window and the circuit have room."""
        await trio.lowlevel.checkpoint_if_cancelled()
        view = memoryview(data).cast("B")
        while len(view):
            await self._wait_while(lambda: not self._stopped and (self._credit <= 0 or self._circuit.crowded))
            if self._stopped:
                raise TransportError("the stream is gone")
            piece = bytes(view[: min(LARGEST_PIECE, self._credit)])
            view = view[len(piece) :]
            self._credit -= len(piece)
            self._circuit.queue(FrameKind.DATA, self._number, piece)

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least 1 and at most `max_bytes` bytes; b"" at the end."""
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._wait_while(lambda: not self._buffer and not self._ended)
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self._unreported += len(data)
        if self._unreported >= WINDOW_BYTES // 2 and not self._ended:
            self._circuit.queue(FrameKind.WINDOW, self._number, self._unreported.to_bytes(4, "big"))
            self._unreported = 0
        return data

    async def close(self) -> None:
        """Done sending; what the other end may still send is thrown away."""
        if not self._broken and not self._closed:
            self._closed = True
            self._buffer.clear()
            self._circuit.queue(FrameKind.END, self._number)
            if not self._ended:
                self._circuit.queue(FrameKind.STOP, self._number)
            self._circuit.forget(self._number)
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        """Abandon both directions at once."""
        self.break_off()

    def break_off(self) -> None:
        """`reset`, for those who cannot await."""
        if not self._broken and not self._closed:
            self._circuit.queue(FrameKind.RESET, self._number)
            self._circuit.forget(self._number)
        self.breaks()

    async def until_ready(self) -> None:
        """Wait until the far end has taken it. Raises TransportError."""
        await self._wait_while(lambda: not self.ready)

    # -- called by its circuit

    def takes(self, frame: MuxFrame) -> None:
        """A frame for it has come. Raises TransportError for what no sound far end sends."""
        match frame.kind:
            case FrameKind.DATA:
                if len(self._buffer) + self._unreported + len(frame.payload) > WINDOW_BYTES:
                    raise TransportError("more came over a stream than its window has room for")
                self._buffer += frame.payload
            case FrameKind.WINDOW:
                self._credit += int.from_bytes(frame.payload, "big")
            case FrameKind.END:
                self._ended = True
            case FrameKind.STOP:
                self._stopped = True
            case FrameKind.READY:
                self.ready = True
            case FrameKind.RESET:
                self._circuit.forget(self._number)
                self._broken = True
        self.beat()

    def breaks(self) -> None:
        """It or its circuit is gone."""
        self._broken = True
        self.beat()

    def beat(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = trio.Event()

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        self._check()
        while condition():
            await self._changed.wait()
            self._check()

    def _check(self) -> None:
        if self._broken or self._closed:
            raise TransportError("the stream is gone")


class CircuitConnection:
    """A connection over a circuit, once both ends have proved who they are. `dials`: whether we asked for it. `serve`:
    of a stream that the far end opens; `hear`: of a broadcast, with its number; `over`: at the end."""

    def __init__(
        self,
        frames: SealedFrames,
        peer: PeerId,
        *,
        dials: bool,
        serve: Callable[[CircuitStream], None],
        hear: Callable[[int, bytes], None],
        over: Callable[["CircuitConnection"], None],
    ) -> None:
        self.peer = peer
        self.closed = trio.Event()
        self._frames = frames
        self._serve, self._hear, self._over = serve, hear, over
        self._streams: dict[int, CircuitStream] = {}
        self._next, self._theirs = (1, 0) if dials else (2, 1)
        """The number of our next stream; what theirs are, modulo 2."""
        self._outbox: deque[bytes] = deque()
        self._queued = 0
        self._wake = trio.Event()
        self._heard_at = -math.inf
        # It ends when the transport says so, which first stops telling what is lost.
        self._scope = trio.CancelScope(shield=True)

    @property
    def crowded(self) -> bool:
        """Whether as much waits to leave as may."""
        return self._queued >= OUTBOX_BYTES

    async def run(self) -> None:
        """Carry frames both ways until it is over. Raises nothing of the network's."""
        self._heard_at = trio.current_time()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._heartbeats)
                    with suppress(TransportError):
                        await self._read()
                    nursery.cancel_scope.cancel()
        finally:
            await self.reset()

    async def open(self, protocol: str) -> CircuitStream:
        """Open a stream: two round trips, as over a direct connection. Raises TransportError."""
        if self.closed.is_set() or len(self._streams) >= MAX_STREAMS:
            raise TransportError("the circuit is over, or has as many streams as may be")
        number, self._next = self._next, self._next + 2
        stream = self._streams[number] = CircuitStream(self, number, protocol)
        self.queue(FrameKind.OPEN, number, protocol.encode() + OPENING[len(protocol) :])
        try:
            with trio.move_on_after(OPEN_S):
                await stream.until_ready()
            if not stream.ready:
                raise TransportError("the far end of the circuit takes no stream")
        except BaseException:
            stream.break_off()
            raise
        return stream

    def broadcast(self, number: int, data: bytes) -> None:
        """Send a broadcast, unless too much waits already."""
        if not self.crowded:
            self.queue(FrameKind.BROADCAST, 0, number.to_bytes(8, "big") + data)

    def queue(self, kind: FrameKind, number: int = 0, payload: bytes = b"") -> None:
        """Let a frame leave behind those that wait."""
        if self.closed.is_set():
            return
        frame = self._frames.sealed(kind, number, payload)
        self._outbox.append(frame)
        self._queued += len(frame)
        self._wake.set()

    def forget(self, number: int) -> None:
        """A stream is over."""
        self._streams.pop(number, None)

    def close(self) -> None:
        """End it, for both."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._scope.cancel()
        for stream in list(self._streams.values()):
            stream.breaks()
        self._streams.clear()
        self._over(self)

    async def reset(self) -> None:
        """End it, and the relay's part of it."""
        self.close()
        with trio.CancelScope(shield=True):
            await self._frames.stream.reset()

    # -- insides

    async def _write(self) -> None:
        with suppress(TransportError):
            while True:
                while not self._outbox:
                    self._wake = trio.Event()
                    await self._wake.wait()
                piece = b""
                while self._outbox and len(piece) < LARGEST_PIECE:
                    piece += self._outbox.popleft()
                await self._frames.stream.send_all(piece)
                self._queued -= len(piece)
                for stream in list(self._streams.values()):
                    stream.beat()

    async def _heartbeats(self) -> None:
        while trio.current_time() < self._heard_at + SILENT_S:
            self.queue(FrameKind.PING)
            await trio.sleep(HEARTBEAT_S)
        await self._frames.stream.reset()

    async def _read(self) -> None:
        while (frame := await self._frames.receive()) is not None:
            self._heard_at = trio.current_time()
            self._take(frame)

    def _take(self, frame: MuxFrame) -> None:
        stream = self._streams.get(frame.number)
        match frame.kind:
            case FrameKind.PING:
                return
            case FrameKind.BROADCAST:
                self._hear(int.from_bytes(frame.payload[:8], "big"), frame.payload[8:])
            case FrameKind.OPEN:
                self._opened(frame, stream)
            case FrameKind.SEEN if stream is not None:
                self.queue(FrameKind.GO, frame.number, OPENING)
            case FrameKind.GO if stream is not None:
                self.queue(FrameKind.READY, frame.number, OPENING)
                self._serve(stream)
            case _ if stream is not None:  # others are of a stream that was reset
                stream.takes(frame)

    def _opened(self, frame: MuxFrame, stream: CircuitStream | None) -> None:
        if stream is not None or frame.number % 2 != self._theirs or len(self._streams) >= MAX_STREAMS:
            raise TransportError("a stream over a circuit that cannot be")
        protocol = frame.payload.rstrip(b"\0").decode(errors="replace")
        self._streams[frame.number] = CircuitStream(self, frame.number, protocol)
        self.queue(FrameKind.SEEN, frame.number, OPENING)
