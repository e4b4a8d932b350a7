"""The followers of all neighbours: one for each, for as long as it is a neighbour."""

import trio

from gossip.blobs.attestation_task import SnapshotAttestation
from gossip.blobs.blob_cache_task import BlobCache
from gossip.context import ServiceContext
from gossip.core.api import QueueName, Update
from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.updates.fetcher_task import Fetcher
from gossip.updates.follower_task import Follower
from gossip.updates.traffic import Traffic


class Followers:
    """Starts, wakes and ends one follower a neighbour."""

    def __init__(
        self,
        context: ServiceContext,
        traffic: Traffic,
        updates: trio.MemorySendChannel[Update],
        blob_cache: BlobCache,
    ) -> None:
        self._context = context
        self._traffic = traffic
        self._updates = updates
        self._blob_cache = blob_cache
        self._attestation = SnapshotAttestation(context)
        self._all: dict[PeerId, Follower] = {}

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, peer: PeerId, nursery: trio.Nursery) -> None:
        """Follow this peer, unless it is lost already."""
        neighbour = self._context.engine.neighbour(peer)
        if neighbour is not None:
            fetcher = Fetcher(peer, self._context, self._traffic, self._blob_cache, self._attestation)
            follower = Follower(peer, neighbour, self._context, self._updates, fetcher)
            self._all[peer] = follower
            nursery.start_soon(follower.run)

    def end(self, peer: PeerId) -> None:
        """End the follower of this peer."""
        follower = self._all.pop(peer, None)
        if follower is not None:
            follower.scope.cancel()

    def wake(self, peer: PeerId) -> None:
        """Wake the follower of this peer: there may be something to fetch."""
        if peer in self._all:
            self._all[peer].wake()

    def answer(self, update: Update, error: RemoteError | None) -> None:
        """Pass on whether the runtime has accepted an update of a neighbour."""
        follower = self._all.get(update.peer)
        if follower is not None:
            follower.answer(update, error)

    def queues(self) -> dict[QueueName, int]:
        """Return how many updates wait for the runtime or are processed by it, and how many blobs are being fetched."""
        followers = self._all.values()
        return {
            "updates": sum(it.awaits_answer for it in followers),
            "pulls": sum(it.pulling for it in followers),
        }
