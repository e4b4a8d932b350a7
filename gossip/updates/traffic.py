"""Counts the bytes of payloads in both directions, times them, and knows who has been sent our newest one."""

from collections.abc import Callable, Mapping
from typing import Literal

from gossip.core.api import GossipStats
from gossip.core.ids import Digest, PeerId
from gossip.updates.exchange_times import ExchangeTimes
from gossip.updates.layer_plan import LayerPlan
from gossip.updates.neighbour import Neighbour
from gossip.updates.publisher import Publisher
from gossip.updates.throughput import Throughput


class Traffic:
    """Counts updates and snapshots separately: a compressor makes only updates smaller."""

    def __init__(
        self,
        stats: GossipStats,
        publisher: Publisher,
        neighbours: Mapping[PeerId, Neighbour],
        exchange_times: ExchangeTimes,
    ) -> None:
        self._stats = stats
        self._publisher = publisher
        self._neighbours = neighbours
        self.speeds = Throughput(neighbours)
        self._exchange_times = exchange_times
        self.layers = LayerPlan(neighbours, self.speeds)

    def blob_fetched(self, seconds: float) -> None:
        """Note that a blob is here as a whole, so many seconds after the first request for it."""
        self._stats.blob_seconds.add(seconds)

    def snapshot_served(self) -> None:
        """Note that a snapshot of ours was offered to a peer that asked for it."""
        self._stats.snapshots_served += 1

    def received(self, *, snapshot: bool) -> Callable[[int], None]:
        """Return a counter for verified bytes that come in."""
        return self._snapshot_in if snapshot else self._payload_in

    def sent(self, address: Digest, size: int) -> None:
        """Note that `size` bytes of a blob of ours are sent."""
        if self._publisher.is_offer(address):
            self._stats.snapshot_bytes_sent += size
        else:
            self._stats.payload_bytes_sent += size

    def passed_on(self, size: int, *, snapshot: bool) -> None:
        """Note that `size` bytes of a blob outside our chain are sent: another's, or a part of an all-reduce."""
        if snapshot:
            self._stats.snapshot_bytes_sent += size
        else:
            self._stats.payload_bytes_sent += size

    def crossed(self, direction: Literal["sent", "received"], size: int) -> None:
        """Note that `size` bytes of a region's model passed to another region, or came from one."""
        if direction == "sent":
            self._stats.crossed_bytes_sent += size
        else:
            self._stats.crossed_bytes_received += size

    def delivered(self, peer: PeerId, address: Digest, now: float, *, all_of_it: bool) -> None:
        """Note that `peer` was sent all of a blob of ours, or wants no more of it: it has the rest from others. Of a
        refinement nobody else has any."""
        neighbour = self._neighbours.get(peer)
        if (layer := self._publisher.layer_at(address)) > 0:
            if all_of_it:
                self.layers.sent(peer, layer)
            return
        if neighbour is not None and neighbour.delivered != address:
            self._exchange_times.delivered(peer, address, now)
        if neighbour is not None:
            neighbour.delivered = address

    def all_delivered(self) -> bool:
        """Return whether every neighbour has been sent the whole of our newest payload."""
        newest = self._publisher.newest
        if newest is None or newest.body.size == 0:
            return True
        return all(neighbour.delivered == newest.address for neighbour in self._neighbours.values())

    def _snapshot_in(self, size: int) -> None:
        self._stats.snapshot_bytes_received += size

    def _payload_in(self, size: int) -> None:
        self._stats.payload_bytes_received += size
