"""One task writes to a connection; everybody else hands it frames.

Stock yamux lets every task write under a lock, which has three faults. A cancelled writer leaves half a frame on the
wire and so kills the connection of everybody else. The reader writes its PONGs and ACKs under the same lock, so that
two ends with full socket buffers wait for each other for ever (trap 5: yamux.py:1487). And closing waits for that
lock too, for ever when the far end is stopped. Here control frames (12 bytes) are queued without waiting, data frames
wait, cancellably, for one of a few places; what is queued goes out in order, small frames joined into one record.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

DATA_FRAMES: Final = 4
"""Data frames queued a connection (256 KiB): keeps the pump busy, yet a new request waits behind little."""

CONTROL_BYTES: Final = 64 * 1024
"""Control bytes queued a connection, some 5,000 frames: more is a peer that asks (pings, streams) and never reads."""

RECORD_BYTES: Final = 65_519
"""Plaintext of one full Noise message: 65,535 less the tag of 16. Joined frames never exceed it (trap 12)."""

RECORDS_A_WRITE: Final = 4
"""Records handed to the socket at once: one system call for all that is queued, and 0.3 ms to encrypt."""


class OutboxClosedError(Exception):
    """The connection is gone."""


class OutboxFullError(OutboxClosedError):
    """A peer let the control queue overflow: it asks and does not read."""


class Outbox:
    """The frames of one connection, in order."""

    def __init__(self) -> None:
        self._frames: deque[tuple[bytes, bool]] = deque()
        self._control_bytes = 0
        self._data_frames = 0
        self._busy = False
        self._closed = False
        self._wake = trio.Event()
        self._room = trio.lowlevel.ParkingLot()

    @property
    def empty(self) -> bool:
        """Whether everything handed over has been written (or thrown away, once closed)."""
        return self._closed or not (self._frames or self._busy)

    def put_control(self, frame: bytes) -> None:
        """Queue a frame without payload. Raises OutboxClosedError or OutboxFullError."""
        if self._closed:
            raise OutboxClosedError
        if self._control_bytes + len(frame) > CONTROL_BYTES:
            raise OutboxFullError
        self._control_bytes += len(frame)
        self._push(frame, data=False)

    async def put_data(self, frame: bytes) -> None:
        """Queue a data frame when there is room. Raises OutboxClosedError."""
        while self._data_frames >= DATA_FRAMES and not self._closed:
            await self._room.park()
        if self._closed:
            raise OutboxClosedError
        self._data_frames += 1
        self._push(frame, data=True)
        # A task that only ever writes would starve the others otherwise.
        await trio.lowlevel.checkpoint()

    async def pump(self, write: Callable[[Sequence[bytes]], Awaitable[None]]) -> None:
        """Write what is queued, some records at a time, until cancelled, or until `write` raises."""
        try:
            while True:
                while self._frames:
                    records = self._next_records()
                    self._busy = True
                    await write(records)
                    self._busy = False
                    self._room.unpark_all()
                self._wake = trio.Event()
                await self._wake.wait()
        finally:
            self.close()

    async def flush(self) -> None:
        """Wait until all is written; bound it with a timeout, since the far end may be stopped."""
        while not self.empty:
            await self._room.park()

    def close(self) -> None:
        """Throw away what is queued and wake everyone who waits."""
        self._closed = True
        self._frames.clear()
        self._room.unpark_all()

    def _push(self, frame: bytes, *, data: bool) -> None:
        self._frames.append((frame, data))
        self._wake.set()

    def _next_records(self) -> list[bytes]:
        records: list[bytes] = []
        while self._frames and len(records) < RECORDS_A_WRITE:
            records.append(self._next_record())
        return records

    def _next_record(self) -> bytes:
        """The next frame, and those after it that fit into the same Noise message."""
        parts = [self._take()]
        size = len(parts[0])
        while self._frames and size + len(self._frames[0][0]) <= RECORD_BYTES:
            parts.append(self._take())
            size += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take(self) -> bytes:
        frame, data = self._frames.popleft()
        if data:
            self._data_frames -= 1
        else:
            self._control_bytes -= len(frame)
        return frame
