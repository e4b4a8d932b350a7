"""Who wants to know what is sent over the in-memory network, message by message, to account for it."""

from collections.abc import Callable
from typing import Protocol

from gossip.core.ids import PeerId

StreamTap = Callable[[PeerId, bytes | memoryview], None]
"""Called with who writes to a stream, and what, before it is on its way."""


class TrafficTap(Protocol):
    """Is called before anything is sent. It must not raise, and changes nothing."""

    def broadcast(self, sender: PeerId, data: bytes, copies: int, *, own: bool, kept: Callable[[PeerId], bool]) -> None:
        """`sender` sends so many copies of a broadcast, its `own` or one that it passes on. `kept`: whether a peer is a
        neighbour of the sender, or listens to it."""

    def stream(self, opener: PeerId, other: PeerId, protocol: str, overhead: int) -> StreamTap:
        """A stream is opened, which costs each end `overhead` bytes beside what is written to it. Return what is
        called with that."""
