"""Stock yamux on the wire, steadier at this end.

py-libp2p's muxer is subclassed where it loses data or trusts the far end; the frames are those of the yamux spec, so
go, rust and js peers notice nothing. What changes here (single streams: `libp2p_yamux_stream`), with the line of
libp2p 0.8.1 that it replaces:

- frames go through an `Outbox`, so nobody holds a lock while the socket is full (trap 5, yamux.py:874);
- a connection on which nothing arrives for some beats is closed: stock code pings too, but ignores that no answer
  comes (trap 16, yamux.py:719);
- streams beyond a bound are reset: stock code accepts any number (yamux.py:1293);
- frames are judged by their headers (`libp2p_frames`), and others get a turn while they are read;
- nothing is kept of a stream that has ended: a reader of stock code that is woken by the end puts an event back for it,
  for ever (trap 21, yamux.py:557 and 1148): 0.4 kB a stream, which is 0.8 kB a round of three nodes;
- who reads a stream that this very end resets is woken: stock code forgets what it waits for, so that a circuit
  whose far end fell silent stayed connected for ever (trap 22, yamux.py:974);
- records go between here and the socket with fewer copies (`libp2p_records`, yamux.py:1177).

`MuxerMultistream` hard-codes the class for `/yamux/1.0.0` (trap 19), so the muxer selection is subclassed as well.
"""

import struct
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any, Final

import trio
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.connection.exceptions import RawConnError
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    GO_AWAY_NORMAL,
    HEADER_SIZE,
    TYPE_PING,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from gossip.core.ids import PeerId
from gossip.transport.libp2p.fault_guard import Faults
from gossip.transport.libp2p.frame_meter import FrameMeter, StrangerFrames
from gossip.transport.libp2p.noise_records import Records
from gossip.transport.libp2p.outbox import Outbox, OutboxClosedError, OutboxFullError
from gossip.transport.libp2p.yamux_stream import SteadyStream

MAX_STREAMS: Final = 64
"""Streams a connection. Ours uses about ten; each may hold 256 KiB unread, 16 MiB in all."""

FLUSH_S: Final = 0.3
"""How long closing waits for queued frames: a round trip or two. What a stopped peer did not take is lost."""

FIRST_PING_S: Final = 0.5
"""As in stock yamux: lets the connection settle; the round-trip time found sizes the receive window."""

READS_A_TURN: Final = 32
"""Reads in a row before other tasks get a turn, 1 ms at most: one Noise message may hold five thousand frames, and
stock code handles those that carry nothing without ever waiting."""


BODY_S: Final = 30.0
"""How long the body of a frame may take once its header is there, as in stock yamux: 64 KiB at 2 KiB/s."""


@dataclass(frozen=True, kw_only=True)
class MuxSettings:
    """What a connection needs to know of the transport. `keeps`: whether a peer is one whose connection must stay;
    `strangers`: the frames of all others."""

    heartbeat_s: float
    missed_beats: int
    stall_s: float
    faults: Faults
    keeps: Callable[[PeerId], bool]
    strangers: StrangerFrames = field(default_factory=StrangerFrames)


class _Streams(dict[int, YamuxStream]):
    """The streams of a connection; every one becomes a `SteadyStream` at birth, wherever stock code creates it."""

    def __setitem__(self, stream_id: int, stream: YamuxStream) -> None:
        stream.__class__ = SteadyStream
        super().__setitem__(stream_id, stream)


class _Events(dict[int, trio.Event]):
    """What the readers of the streams of a connection wait for; of streams that have ended none is taken."""

    def __init__(self, streams: Container[int]) -> None:
        super().__init__()
        self._streams = streams

    def __setitem__(self, stream_id: int, event: trio.Event) -> None:
        if stream_id in self._streams:
            super().__setitem__(stream_id, event)

    def pop(self, stream_id: int, default: Any = None) -> Any:
        """Forget what is waited for, and wake who waits: nothing else would, once the stream is forgotten."""
        event = super().pop(stream_id, default)
        if event is not None:
            event.set()
        return event


class SteadyYamux(Yamux):  # type: ignore[misc]
    """One yamux connection."""

    def __init__(self, secured_conn: Any, peer_id: Any, is_initiator: bool, settings: MuxSettings) -> None:
        super().__init__(secured_conn, peer_id, is_initiator=is_initiator)
        self.settings = settings
        self.streams = _Streams()
        self.stream_events = _Events(self.streams)
        self._outbox = Outbox()
        self._heard = 0
        peer = PeerId(str(peer_id))
        self._meter = FrameMeter(self.streams, settings.strangers, lambda: not settings.keeps(peer))
        self._records = Records(secured_conn)
        self.over = False
        """Whether it has been served to its end."""
        self.at_end: Callable[[], None] = lambda: None
        """Called once then, whichever end closed it and whatever was cancelled meanwhile."""
        self._note_arrivals()

    def _note_arrivals(self) -> None:
        """Count the reads that bring something: any byte is a sign of life, also a PONG behind a bulk transfer."""

        async def noted(n: int | None = None) -> bytes:
            data = await self._records.read(n)
            self._heard += 1
            fault = self._meter.judge(data, trio.current_time())
            if fault is not None:
                self.violated(fault)
                raise RawConnError(fault)
            pause = self._meter.pause_for(trio.current_time())
            if pause or self._heard % READS_A_TURN == 0:
                await trio.sleep(pause)
            return data

        self.secured_conn.read = noted

    @property
    def lost(self) -> bool:
        """Whether the connection is gone or going: an end of stream then is no clean one (trap 6)."""
        return bool(self.event_shutting_down.is_set())

    @property
    def dialled(self) -> tuple[str, int] | None:
        """Host and port, if we dialled it. Raises OSError once it is gone."""
        return self._records.peer_name if self.is_initiator_value else None

    @property
    def remote_host(self) -> str | None:
        """The far end's IP address; None once it is gone, and for one that is good on one link alone."""
        try:
            host, _ = self._records.peer_name
        except OSError:
            return None
        return None if "%" in host else host

    async def start(self) -> None:
        """Serve until the connection ends; whatever ends it, the bookkeeping is cleaned up and sockets closed."""
        try:
            await super().start()
        finally:
            self._outbox.close()
            if not self.event_closed.is_set():
                with trio.move_on_after(1, shield=True):
                    await self._cleanup_on_error()
            self.over = True
            self.at_end()

    async def _measure_rtt_loop(self) -> None:
        """Started by the base class in its nursery: the pump and the heartbeat live here."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pump)
            nursery.start_soon(self._beat)

    async def _pump(self) -> None:
        try:
            await self._outbox.pump(self._records.write)
        except Exception as error:
            self.settings.faults.note("connection_write", error)
            await self.secured_conn.close()  # wakes the reader, which cleans up

    async def _beat(self) -> None:
        """Ping each beat; close after `missed_beats` in a row without a byte.

        Beats are counted, not seconds: a node that was itself stopped for a minute must not blame its peers.
        """
        missed, heard = 0, -1
        await trio.sleep(FIRST_PING_S)
        while not self.lost:
            missed = 0 if self._heard != heard else missed + 1
            if missed >= self.settings.missed_beats:
                self.settings.faults.note("silent_peer")
                await self.secured_conn.close()
                return
            heard = self._heard
            self._ping()
            await trio.sleep(self.settings.heartbeat_s)

    def _ping(self) -> None:
        self._ping_id += 1
        self._ping_sent_time = trio.current_time()
        ping = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, self._ping_id & 0xFFFFFFFF)
        try:
            self._outbox.put_control(ping)
        except OutboxFullError:
            self.violated("control_flood")
        except OutboxClosedError:
            return

    async def _read_data_body(self, length: int) -> bytes:
        """A frame's body, in one piece. Raises IncompleteReadError when the connection ends in it, TooSlowError."""
        with trio.fail_after(BODY_S):
            data: bytes = await self.secured_conn.read(length)
        if len(data) < length:
            raise IncompleteReadError("within a frame", expected_bytes=length, received_bytes=len(data))
        return data

    async def _write_frame(self, data: bytes) -> None:
        """Hand a frame over. Control frames never wait, so nothing that closes or resets can be held up."""
        try:
            if len(data) == HEADER_SIZE:
                self._outbox.put_control(data)
            else:
                await self._outbox.put_data(data)
        except OutboxClosedError as error:
            if isinstance(error, OutboxFullError):
                self.violated("control_flood")
            raise RawConnError("connection closed") from None

    def violated(self, kind: str) -> None:
        """The far end broke the rules of yamux: close the connection, from a task of its own."""
        self.settings.faults.note(kind)
        if self._nursery is not None and not self.lost:
            self._nursery.start_soon(self.secured_conn.close)

    async def accept_stream(self) -> YamuxStream:
        """The next stream that the far end opens, beyond `MAX_STREAMS` refused with a reset."""
        while True:
            stream: YamuxStream = await super().accept_stream()
            if len(self.streams) <= MAX_STREAMS:
                return stream
            self.settings.faults.note("too_many_streams")
            await stream.reset()

    async def close(self, error_code: int = GO_AWAY_NORMAL) -> None:
        """Give queued frames a moment to leave, then close. Never blocks on a stopped peer."""
        if not self.lost:
            with trio.move_on_after(FLUSH_S):
                await self._outbox.flush()
        await super().close(error_code)


class SteadyMuxer(MuxerMultistream):  # type: ignore[misc]
    """Negotiates `/yamux/1.0.0` as usual and builds `SteadyYamux` for it."""

    def __init__(self, protocol: str, settings: MuxSettings) -> None:
        super().__init__({protocol: SteadyYamux})
        self._settings = settings

    async def new_conn(self, conn: Any, peer_id: Any) -> Any:
        """The muxed connection over a secured one."""
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        muxed = SteadyYamux(conn, peer_id, conn.is_initiator, self._settings)
        return self._annotate_connection(muxed, conn, protocol)
