"""A yamux stream that loses nothing and keeps its far end to the window.

Over stock code, with the line of libp2p 0.8.1:

- a writer waits for window as long as `stall_s`, woken by the window update itself, instead of failing after 5 s and
  polling every 10 ms (trap 4, yamux.py:280);
- a reset is felt as one, and what came before it is read first (yamux.py:1058);
- room that was read is given back in halves of the window, not at each read (yamux.py:441);
- the window grows with what is read, not with each read (yamux.py:381), and never beyond a bound; overrunning it costs
  the connection, where stock code logs it and buffers without bound (yamux.py:1546).
"""

import struct
from typing import Final

import trio
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, TYPE_DATA, YAMUX_HEADER_FORMAT, YamuxStream

from gossip.transport.libp2p.outbox import RECORD_BYTES

PIECE_BYTES: Final = RECORD_BYTES - HEADER_SIZE
"""65,507: the largest payload whose frame is one Noise message, 1.6 times faster than yamux's own size (trap 12)."""

STREAM_WINDOW: Final = 4 << 20
"""Largest window of one stream: 335 Mbit/s at a round trip of 100 ms, more than a home link has."""

GROWN_WINDOWS: Final = 16 << 20
"""Sum of the windows of a connection above which none grows: with the unread above, a peer can pin about 32 MiB."""


class SteadyStream(YamuxStream):  # type: ignore[misc]
    """A yamux stream whose writer is woken by credit, and whose far end must keep to its window.

    `send_window`, `recv_window` and `closed` are plain attributes in the base class, set from all over `Yamux`; here
    they are properties over the same slots of `__dict__`, which is how their changes are noticed.
    """

    @property
    def send_window(self) -> int:
        """Bytes the far end is ready to take."""
        return int(self.__dict__["send_window"])

    @send_window.setter
    def send_window(self, value: int) -> None:
        self.__dict__["send_window"] = value
        self._wake_writer(value > 0)

    @property
    def closed(self) -> bool:
        """Whether both directions are done."""
        return bool(self.__dict__["closed"])

    @closed.setter
    def closed(self, value: bool) -> None:
        self.__dict__["closed"] = value
        self._wake_writer(value)

    @property
    def recv_window(self) -> int:
        """Bytes the far end may still send."""
        return int(self.__dict__["recv_window"])

    @recv_window.setter
    def recv_window(self, value: int) -> None:
        self.__dict__["recv_window"] = value
        if value < 0:
            self.conn.violated("window_overrun")

    def _wake_writer(self, ready: bool) -> None:
        event = self.__dict__.get("writer_event")
        if ready and event is not None:
            event.set()

    async def write(self, data: bytes) -> None:
        """Send all of `data`; the window is waited for, at most `stall_s` at a time."""
        view = memoryview(data)
        while view:
            size = await self._credit(min(len(view), PIECE_BYTES))
            header = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, self.stream_id, size)
            await self.conn._write_frame(header + view[:size])
            view = view[size:]

    async def read(self, n: int | None = -1) -> bytes:
        """What has come, at most n bytes of it, once there is any.

        Stock code takes two locks for each read, though nothing in it waits (yamux.py:474 and 1051). It forgets a reset
        stream at once, so that its reader sees a clean end (yamux.py:1058), and what was received before the reset is
        lost, so that a stream reset early looks like a protocol refused. Here a reset is always felt, after what came
        before it.
        """
        while not (buffer := self.conn.stream_buffers.get(self.stream_id)):
            self._check_open(forgotten=buffer is None)
            await self._arrival()
        size = len(buffer) if n is None or n < 0 else min(n, len(buffer))
        with memoryview(buffer) as view, view[:size] as part:
            data = bytes(part)
        del buffer[:size]
        if self.closed and not buffer:
            await self.conn._finalize_stream(self, fully_closed=True)
        await self._auto_tune_and_send_window_update(bytes_read=size)
        return data

    def _check_open(self, *, forgotten: bool) -> None:
        """Raise where nothing more can come."""
        if self.reset_received:
            raise MuxedStreamReset("the stream was reset")
        if forgotten or self.recv_closed or self.conn.event_shutting_down.is_set():
            raise MuxedStreamEOF("the stream has ended")
        if self.closed:
            raise MuxedStreamReset("the stream is closed")

    async def _arrival(self) -> None:
        """Wait until something has come, or will not come any more."""
        event = self.conn.stream_events.get(self.stream_id)
        if event is None:
            raise MuxedStreamEOF("the stream has ended")
        await event.wait()
        self.conn.stream_events[self.stream_id] = trio.Event()

    async def _auto_tune_and_send_window_update(self, *, bytes_read: int = 0) -> None:
        """Give room back once it is half of the window, as go-yamux does.

        Stock code (yamux.py:441) does so after nearly every read: a frame of 12 bytes for each of 64 KiB, which both
        ends encrypt, send, receive and judge on its own.
        """
        self.__dict__["read_since_growth"] = self.__dict__.get("read_since_growth", 0) + bytes_read
        buffered = len(self.conn.stream_buffers.get(self.stream_id, b""))
        room = self.target_recv_window - (self.recv_window + buffered)
        if 2 * room < self.target_recv_window or self.recv_closed:
            return
        self.recv_window += room
        await self.send_window_update(room + self._apply_autotune_epoch(buffered))

    def _apply_autotune_epoch(self, buffered: int) -> int:
        """Double the window, as stock code does, but once a window has been read.

        Stock code (yamux.py:381) doubles at each read, however small, and so gives 16 MiB for six bytes.
        """
        target = self.target_recv_window
        total = sum(stream.target_recv_window for stream in self.conn.streams.values())
        if self.__dict__.get("read_since_growth", 0) < target or 2 * target > STREAM_WINDOW:
            return 0
        if total + target > GROWN_WINDOWS:
            return 0
        self.__dict__["read_since_growth"] = 0
        return int(super()._apply_autotune_epoch(buffered))

    async def _credit(self, wanted: int) -> int:
        """Take up to `wanted` bytes from the window. No await stands between the test and the taking."""
        with trio.move_on_after(self.conn.settings.stall_s):
            while self.send_window <= 0 and not (self.closed or self.send_closed):
                event = self.__dict__["writer_event"] = trio.Event()
                await event.wait()
        if self.closed or self.send_closed:
            raise MuxedStreamReset("the stream is closed")
        if self.send_window <= 0:
            raise MuxedStreamError("the far end stopped reading")
        size = min(wanted, self.send_window)
        self.send_window -= size
        return size
