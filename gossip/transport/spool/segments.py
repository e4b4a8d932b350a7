"""A stream of bytes as numbered files in a folder: what each end writes, reads and removes next. No I/O.

Each direction is a sequence of segments: files `u000000000000`, `u000000000001`, ... from the node to the relay, and
`d...` back. A segment appears whole (it is renamed into place), is read in its turn, and is removed by its reader: that
is the acknowledgement. A writer has at most `WINDOW_BYTES` unacknowledged, so the folder stays that small. Bytes are
those of a secured connection: who changes, repeats or removes a segment ends it, and reads ciphertext.
"""

import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from gossip.transport.base import TransportError

SEGMENT_BYTES: Final = 256 << 10
"""Bytes of a segment at most: four Noise messages. Larger ones are no faster on the disks that were tried, and are
ready later."""

WINDOW_BYTES: Final = 2 << 20
"""Bytes of a direction that are in the folder at most: with 64 nodes and two directions 256 MiB."""

BUFFER_BYTES: Final = 512 << 10
"""Bytes that wait in memory at each end of each direction; beyond it writers wait."""


class SessionOverError(TransportError):
    """The far end, or we ourselves, have removed the session."""


UP, DOWN = "u", "d"
"""The direction of a segment: from a node to the relay, and back."""

_NAME: Final = re.compile(r"([ud])(\d{12})", re.ASCII)


def segment_name(direction: str, number: int) -> str:
    """Return the name of a segment's file."""
    return f"{direction}{number:012d}"


def parse_segment(name: str) -> tuple[str, int] | None:
    """Return the direction and the number of a segment; None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


@dataclass(frozen=True, kw_only=True)
class SpoolTurn:
    """What an end does at a time: write these segments in order, then read and remove those that are there from number
    `first` on, up to `room` bytes."""

    writes: tuple[tuple[str, bytes], ...] = field(repr=False)
    incoming: str
    first: int
    room: int


@dataclass(frozen=True, kw_only=True)
class SpoolAnswer:
    """What came of it. `written`: how many segments; fewer than wanted where the disk is full. `names`: all that was in
    the folder. `pieces`: what was read, in order."""

    written: int
    names: Collection[str]
    pieces: tuple[bytes, ...] = field(repr=False)


class SegmentPipe:
    """Both directions at one end. `outgoing`: the direction in which it writes."""

    def __init__(self, outgoing: str) -> None:
        self.received = bytearray()
        """What came and was not taken."""
        self.over = False
        """Whether the far end has said that no more comes."""
        self.gap = False
        """Whether the next segment is not there, and a later one is."""
        self._outgoing = outgoing
        self._incoming = DOWN if outgoing == UP else UP
        self._waiting = bytearray()
        self._ending = self._ended = False
        self._unacknowledged: OrderedDict[int, int] = OrderedDict()
        self._next_out = self._next_in = 0

    @property
    def crowded(self) -> bool:
        """Whether a writer has to wait."""
        return len(self._waiting) >= BUFFER_BYTES

    @property
    def unsent(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._waiting) or (self._ending and not self._ended)

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes to be sent."""
        self._waiting += data

    def end(self) -> None:
        """Say that no more will be sent: an empty segment, after all others."""
        self._ending = True

    def plan(self) -> SpoolTurn:
        """Return what is to be done next; nothing is taken as done before `took`."""
        writes: list[tuple[str, bytes]] = []
        at, free = 0, WINDOW_BYTES - sum(self._unacknowledged.values())
        while at < len(self._waiting) and free > 0:
            piece = bytes(self._waiting[at : at + min(SEGMENT_BYTES, free)])
            writes.append((segment_name(self._outgoing, self._next_out + len(writes)), piece))
            at, free = at + len(piece), free - len(piece)
        if self._ending and not self._ended and at == len(self._waiting):
            writes.append((segment_name(self._outgoing, self._next_out + len(writes)), b""))
        room = 0 if self.over else max(0, BUFFER_BYTES - len(self.received))
        return SpoolTurn(writes=tuple(writes), incoming=self._incoming, first=self._next_in, room=room)

    def took(self, turn: SpoolTurn, answer: SpoolAnswer) -> bool:
        """Note what came of a turn; return whether anything moved. Raises TransportError for a segment that no honest
        end writes."""
        before = len(self._unacknowledged)
        for _, data in turn.writes[: answer.written]:
            del self._waiting[: len(data)]
            self._ended = not data
            self._unacknowledged[self._next_out] = len(data)
            self._next_out += 1
        for number in list(self._unacknowledged):
            if segment_name(self._outgoing, number) not in answer.names:
                del self._unacknowledged[number]
        for piece in answer.pieces:
            if len(piece) > SEGMENT_BYTES or self.over:
                raise TransportError("a segment of the spool folder is none that the far end may write")
            self.over = not piece
            self.received += piece
            self._next_in += 1
        later = (each for each in map(parse_segment, answer.names) if each is not None and each[0] == self._incoming)
        self.gap = not answer.pieces and any(number > self._next_in for _, number in later)
        self.gap = self.gap and segment_name(self._incoming, self._next_in) not in answer.names
        return bool(answer.written or answer.pieces or len(self._unacknowledged) < before)
