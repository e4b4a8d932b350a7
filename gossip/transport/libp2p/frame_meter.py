"""Judges the frames of a yamux connection by their headers, before a body is read.

Stock code reads up to 16 MiB of body for any stream, known or not, before it looks at a window (yamux.py:1265), so
that each connection pins as much; and it takes any number of frames that carry nothing. Such a frame costs 20 us and
the far end nothing: a flood of them is cut off, since nothing honest sends it. Other frames cost as much, however small
they are. So who sends more of them than any link carries has to wait, and so do strangers when all of them together
send too many, since keys are free: but never for a few.
"""

import struct
from collections.abc import Callable, Container
from typing import Final

from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    HEADER_SIZE,
    TYPE_DATA,
    TYPE_GO_AWAY,
    TYPE_PING,
    YAMUX_HEADER_FORMAT,
)

MAX_FRAME_BYTES: Final = 256 * 1024
"""The largest body: yamux's initial window. go, js and rust split at 64 KiB or less, and so do we."""

SMALL_BYTES: Final = 64
"""A body below it counts as none when its stream is unknown: a stream just reset has larger ones under way."""

LIGHT_PER_SECOND: Final = 1000
"""Frames that carry nothing (pings, openings, what belongs to no stream): ten streams opened and closed at once, and
a ping, are under a hundred. A thousand cost 2% of a core."""

OPENINGS_PER_SECOND: Final = 250
"""Streams that a connection may open in a second; for later ones it waits. Each costs 0.3 ms, 8% of a core in all."""

FRAMES_PER_SECOND: Final = 5000
"""Frames of a connection in a second; for later ones it waits. A tenth of a core. At 64 KiB each it is 2.6 Gbit/s."""

STRANGERS_PER_SECOND: Final = 10_000
"""The same of all connections together of peers that we do not keep: a fifth of a core. A stream that is opened counts
as OPENING_FRAMES more."""

FRAMES_OF_STRANGER: Final = 100
"""What a stranger sends in a second whatever the others do: five requests, each with a stream of its own."""

OPENING_FRAMES: Final = 20
"""What a stream that is opened costs, in frames: it is negotiated, served and closed."""


class StrangerFrames:
    """Counts the frames of all strangers together, in the current second."""

    def __init__(self) -> None:
        self._second = 0
        self._frames = 0

    def add(self, frames: int, second: int) -> None:
        """Count so many more."""
        if second != self._second:
            self._second, self._frames = second, 0
        self._frames += frames

    def too_many(self, second: int) -> bool:
        """Return whether there were more in this second than are read at once."""
        return second == self._second and self._frames > STRANGERS_PER_SECOND


class FrameMeter:
    """Follows what is read from a connection, header by header. `streams`: the ids of those that are open.
    `is_stranger`: whether its peer is not kept, asked once a second; `strangers`: what all such peers send."""

    def __init__(self, streams: Container[int], strangers: StrangerFrames, is_stranger: Callable[[], bool]) -> None:
        self._streams = streams
        self._strangers = strangers
        self._is_stranger = is_stranger
        self._counted = True
        self._body_left = 0
        self._second = -1
        self._light = 0
        self._openings = 0
        self._frames = 0

    def judge(self, data: bytes, now: float) -> str | None:
        """The kind of fault in what has just been read (a whole header, or a piece of a body), or None."""
        if self._body_left:
            self._body_left = max(0, self._body_left - len(data))
            return None
        if len(data) != HEADER_SIZE:  # the connection has ended in it
            return None
        _, kind, flags, stream, length = struct.unpack(YAMUX_HEADER_FORMAT, data)
        if kind > TYPE_GO_AWAY:
            return "unknown_frame"
        if kind == TYPE_DATA and length > MAX_FRAME_BYTES:
            return "frame_too_large"
        self._body_left = length if kind == TYPE_DATA else 0
        self._turn(int(now))
        opening = bool(flags & FLAG_SYN and kind != TYPE_PING)
        self._openings += opening
        cost = 1 + OPENING_FRAMES * opening
        self._frames += cost
        if self._counted:
            self._strangers.add(cost, self._second)
        self._light += kind == TYPE_PING or (stream not in self._streams and self._body_left < SMALL_BYTES)
        return "frame_flood" if self._light > LIGHT_PER_SECOND else None

    def pause_for(self, now: float) -> float:
        """How long (seconds) to leave the connection alone before it is read on."""
        self._turn(int(now))
        return self._second + 1 - now if self._has_to_wait() else 0.0

    def _has_to_wait(self) -> bool:
        if self._openings > OPENINGS_PER_SECOND or self._frames > FRAMES_PER_SECOND + OPENING_FRAMES * self._openings:
            return True
        return self._counted and self._frames > FRAMES_OF_STRANGER and self._strangers.too_many(self._second)

    def _turn(self, second: int) -> None:
        if second != self._second:
            self._second, self._light, self._openings, self._frames = second, 0, 0, 0
            self._counted = self._is_stranger()
