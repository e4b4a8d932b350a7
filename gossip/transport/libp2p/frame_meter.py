"""Judges the frames of a yamux connection by their headers, before a body is read.

Stock code reads up to 16 MiB of body for any stream, known or not, before it looks at a window (yamux.py:1265), so
that each connection pins as much; and it takes any number of frames that carry nothing. Such a frame costs 20 us and
the far end nothing: a flood of them is cut off, since nothing honest sends it.
"""

import struct
from collections.abc import Container
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


class FrameMeter:
    """Follows what is read from a connection, header by header. `streams`: the ids of those that are open."""

    def __init__(self, streams: Container[int]) -> None:
        self._streams = streams
        self._body_left = 0
        self._second = 0
        self._light = 0
        self._openings = 0

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
        self._openings += bool(flags & FLAG_SYN and kind != TYPE_PING)
        self._light += kind == TYPE_PING or (stream not in self._streams and self._body_left < SMALL_BYTES)
        return "frame_flood" if self._light > LIGHT_PER_SECOND else None

    def pause_for(self, now: float) -> float:
        """How long (seconds) to leave the connection alone before it is read on."""
        self._turn(int(now))
        return self._second + 1 - now if self._openings > OPENINGS_PER_SECOND else 0.0

    def _turn(self, second: int) -> None:
        if second != self._second:
            self._second, self._light, self._openings = second, 0, 0
