"""What pubsub may cost in a second: by peer, and by all of them together.

A check of a broadcast costs about 0.7 ms (two signatures, and passing it on), and the keys that sign are free. So the
sum is bounded, not only each peer's part; and when others use up the sum, each peer still has a share for what it says
of itself: a small one, and a neighbour all that an honest node announces, so that it is heard in any flood.
"""

from collections import Counter
from typing import Final

from libp2p.peer.id import ID

MAX_PER_SECOND: Final = 200
"""Messages, not heard before, that are taken of one peer: 64 members announcing twice a second are 128."""

MAX_TOTAL_PER_SECOND: Final = 300
"""The same, of all peers together: a fifth of a core."""

SHARE_PER_SECOND: Final = 2
"""Messages that a peer has written itself and that are taken whatever the others send; 256 connections make a third of
a core of it."""

NEIGHBOUR_SHARE_PER_SECOND: Final = 20
"""The same of a neighbour: what an honest announcer keeps to (core/announcement_limit.py). Eight make a ninth of a
core."""

FRAMES_PER_SECOND: Final = 200
"""Frames of one peer before it has to wait for the next second: its messages one by one, and a few of control."""

BYTES_PER_SECOND: Final = 512 * 1024
"""Bytes of frames of one peer in a second: two of the largest, whose parsing costs 10 ms each."""


class PubsubLimit:
    """Counts the current second. Nothing is kept of the one before."""

    def __init__(self) -> None:
        self._second = 0
        self._frames: Counter[ID] = Counter()
        self._bytes: Counter[ID] = Counter()
        self._messages: Counter[ID] = Counter()
        self._own: Counter[ID] = Counter()

    def pause_for(self, peer: ID, size: int, now: float) -> float:
        """A frame of `size` bytes has come: how long (seconds) to wait before it is looked at."""
        self._turn(now)
        self._frames[peer] += 1
        self._bytes[peer] += size
        if self._frames[peer] <= FRAMES_PER_SECOND and self._bytes[peer] <= BYTES_PER_SECOND:
            return 0.0
        return self._second + 1 - now

    def admits(self, peer: ID, now: float, *, own: bool, neighbour: bool) -> bool:
        """Whether one more new message that `peer` sends may be checked; counts it if so. `own`: it is by `peer`."""
        self._turn(now)
        fits = self._messages[peer] < MAX_PER_SECOND and self._messages.total() < MAX_TOTAL_PER_SECOND
        share = NEIGHBOUR_SHARE_PER_SECOND if neighbour else SHARE_PER_SECOND
        if not fits and not (own and self._own[peer] < share):
            return False
        self._messages[peer] += 1
        self._own[peer] += own
        return True

    def _turn(self, now: float) -> None:
        if int(now) != self._second:
            self._second = int(now)
            for counter in (self._frames, self._bytes, self._messages, self._own):
                counter.clear()
