"""The followers of all neighbours: one each, from when it becomes one until it is none any more."""

import trio

from gossip.blobs.attestation_task import SnapshotAttestation
from gossip.blobs.blob_cache_task import BlobCache
from gossip.context import ServiceContext
from gossip.core.api import QueueName, Update
from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.updates.follower_task import Follower


class Followers:
    """By neighbour."""

    def __init__(self, context: ServiceContext, updates: trio.MemorySendChannel[Update], blob_cache: BlobCache) -> None:
        self._context = context
        self._updates = updates
        self._blob_cache = blob_cache
        self._attestation = SnapshotAttestation(context)
        self._all: dict[PeerId, Follower] = {}

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, peer: PeerId, nursery: trio.Nursery) -> None:
        """Follow this peer, unless it is lost again already."""
        neighbour = self._context.engine.neighbours.get(peer)
        if neighbour is not None:
            follower = Follower(peer, neighbour, self._context, self._updates, self._blob_cache, self._attestation)
            self._all[peer] = follower
            nursery.start_soon(follower.run)

    def end(self, peer: PeerId) -> None:
        """Follow it no more."""
        follower = self._all.pop(peer, None)
        if follower is not None:
            follower.scope.cancel()

    def wake(self, peer: PeerId) -> None:
        """There may be something to fetch of it."""
        if peer in self._all:
            self._all[peer].wake()

    def answer(self, update: Update, error: RemoteError | None) -> None:
        """The runtime's verdict on an update of a neighbour."""
        follower = self._all.get(update.peer)
        if follower is not None:
            follower.answer(update, error)

    def queues(self) -> dict[QueueName, int]:
        """How many updates wait for the runtime, or are in its hands; how many blobs are being pulled."""
        followers = self._all.values()
        return {
            "updates": sum(it.awaits_answer for it in followers),
            "pulls": sum(it.pulling for it in followers),
        }
