"""Makes snapshots of our public estimate on demand: one at a time, one for many askers, with pauses between."""

from collections.abc import Callable
from typing import Final

import trio

from gossip.blobs.hashing_task import Hasher
from gossip.blobs.state_digest_task import DutyCycle
from gossip.core.api import SnapshotSource
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.statements import SnapshotOffer
from gossip.updates.publisher import Publisher

REST: Final = 9.0
"""The pause after a snapshot is so many times what it took: snapshots take a tenth of the node's time at most, however
often somebody asks for the newest link's."""


class Snapshots:
    """Answers snapshot requests from what the publisher still holds, or from the runtime's source."""

    def __init__(
        self, publisher: Publisher, source: SnapshotSource, hasher: Hasher, warn: Callable[[str], None]
    ) -> None:
        self._publisher = publisher
        self._source = source
        self._hasher = hasher
        self._warn = warn
        self._rest = DutyCycle(REST)
        self._cutting = trio.Lock()  # a second asker waits for the first one's snapshot and gets the same

    async def offer(self, epoch: int, seq: int) -> SnapshotOffer:
        """Return an offer at (epoch, seq) or later. Raises RemoteError(UNAVAILABLE)."""
        async with self._cutting:
            held = self._publisher.held_offer(epoch, seq)
            offer = held if held is not None else await self._cut()
        if offer.place < (epoch, seq):
            raise RemoteError(Reason.UNAVAILABLE, "the estimate has not come so far yet")
        return offer

    async def _cut(self) -> SnapshotOffer:
        if not self._rest.over:
            raise RemoteError(Reason.UNAVAILABLE, "a snapshot was cut only just now; ask again")
        with self._rest.after():
            return await self._cut_now()

    async def _cut_now(self) -> SnapshotOffer:
        try:
            head, data = await self._source()
            return self._publisher.offer(head, await self._hasher.payload(data))
        except LocalError as error:  # a new epoch began, or many rounds passed meanwhile
            raise RemoteError(Reason.UNAVAILABLE, str(error)) from error
        except Exception as error:  # the runtime's bug must not end the network
            self._warn(f"no snapshot could be made: {error!r}")
            raise RemoteError(Reason.UNAVAILABLE, "no snapshot could be made") from error
