"""Counts the bytes of payloads in both directions, times them, and knows who has been sent our newest one."""

from collections.abc import Callable, Mapping
from typing import Literal

from gossip.core.api import GossipStats
from gossip.core.ids import Digest, PeerId
from gossip.updates.exchange_times import ExchangeTimes
from gossip.updates.layer_plan import LayerPlan
from gossip.updates.neighbour import Neighbour
from gossip.updates.publisher import Publisher
from gossip.updates.throughput import Throughput, Transfer


class Traffic:
    """Counts updates and snapshots separately: a compressor makes only updates smaller."""

    def __init__(
        self,
        stats: GossipStats,
        publisher: Publisher,
        neighbours: Mapping[PeerId, Neighbour],
        exchange_times: ExchangeTimes,
        liars: int,
    ) -> None:
        self._stats = stats
        self._publisher = publisher
        self._neighbours = neighbours
        self.speeds = Throughput(neighbours)
        self._exchange_times = exchange_times
        self.layers = LayerPlan(neighbours, self.speeds, liars)

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

    def delivered(self, peer: PeerId, address: Digest, now: float) -> None:
        """Note that `peer` was sent all of an update or a snapshot of ours, or wants no more: it has the rest from
        others. No-op for a refinement."""
        neighbour = self._neighbours.get(peer)
        if self._publisher.layer_at(address) > 0:
            return
        if neighbour is not None and neighbour.delivered != address:
            self._exchange_times.delivered(peer, address, now)
            self.layers.updated(peer, now)
        if neighbour is not None:
            neighbour.delivered = address

    def layer_ended(self, upload: Transfer, address: Digest, now: float, *, carried: int | None) -> None:
        """Note that a neighbour has read so many bytes of a blob of ours; None: it broke it off. No-op but for a
        refinement of our newest update."""
        if (layer := self._publisher.layer_at(address)) == 0:
            return
        if carried is None:
            self.layers.broken_off(upload.peer, layer)
        elif carried == upload.size:
            self.layers.sent(upload.peer, layer, carried, now - upload.began, now)

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
