"""How fast blobs come and go, by neighbour: measured on the transfers that happen anyway.

A transfer's speed is its size over the time from the first request to its end, waiting for answers included. That is
what a round really gets from a link beside all other transfers. A link that slows down counts as slow at once, by its
newest transfer or the one under way (on a broken link a transfer may never end). It counts as fast again when the
median of the newest few says so.
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, Literal

from gossip.core.api import LinkSpeed
from gossip.core.ids import PeerId

Direction = Literal["sent", "received"]

WINDOW: Final = 5
"""Transfers remembered in each direction: a recovery shows after three, two lucky ones in a row do not."""

LEAST_S: Final = 1e-6
"""Seconds. No transfer counts as faster: clocks resolve no less, and a speed stays a finite number."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Transfer:
    """A blob on its way: `size` bytes since `began`."""

    peer: PeerId
    direction: Direction
    size: int
    began: float

    def speed(self, now: float) -> float:
        """Return bytes a second as if it ended now: never less than the final speed."""
        return self.size / max(LEAST_S, now - self.began)


class Throughput:
    """Speeds of the peers in `known`; a peer that has left is forgotten. At most a few transfers of each are under
    way."""

    def __init__(self, known: Container[PeerId]) -> None:
        self._known = known
        self._done: dict[tuple[PeerId, Direction], deque[float]] = {}
        self._under_way: set[Transfer] = set()

    def begin(self, peer: PeerId, direction: Direction, size: int, now: float) -> Transfer:
        """Begin the transfer of a blob of `size` bytes; `end` must follow."""
        transfer = Transfer(peer=peer, direction=direction, size=size, began=now)
        self._under_way.add(transfer)
        return transfer

    def end(self, transfer: Transfer, now: float, *, whole: bool, carried: int | None = None) -> None:
        """End a transfer. A broken one shows only that the link was no faster. `carried`: bytes that it really took,
        where the rest came by other ways or before."""
        self._under_way.discard(transfer)
        self._done = {key: speeds for key, speeds in self._done.items() if key[0] in self._known}
        if whole and carried is not None:
            transfer = replace(transfer, size=carried)
        key, speed = (transfer.peer, transfer.direction), transfer.speed(now)
        told = transfer.size > 0 and transfer.peer in self._known
        if told and (whole or speed < self._ended(key)):
            self._done.setdefault(key, deque(maxlen=WINDOW)).append(speed)

    def of(self, peer: PeerId, now: float) -> LinkSpeed:
        """Return the measured speeds of the link to a peer."""
        return LinkSpeed(sent=self._speed(peer, "sent", now), received=self._speed(peer, "received", now))

    def could_send(self, peer: PeerId, least: float) -> bool:
        """Return whether a peer might send `least` bytes a second more: it did lately, or nothing is known of it and it
        sends us nothing now."""
        ended = self._ended((peer, "received"))
        busy = any((it.peer, it.direction) == (peer, "received") for it in self._under_way)
        return ended >= least and not (busy and ended == float("inf"))

    def _speed(self, peer: PeerId, direction: Direction, now: float) -> float | None:
        under_way = [
            it.speed(now) for it in self._under_way if (it.peer, it.direction) == (peer, direction) and it.size
        ]
        speed = min([self._ended((peer, direction)), *under_way])
        return speed if speed < float("inf") else None

    def _ended(self, key: tuple[PeerId, Direction]) -> float:
        """Return the speed by finished transfers, in bytes a second; infinity when there is none."""
        done = self._done.get(key)
        return min(median(done), done[-1]) if done else float("inf")
