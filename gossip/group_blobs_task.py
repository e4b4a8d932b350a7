"""Blobs that members of a group pull from each other, in one go of exchanging: an all-reduce, or a secure sum.

Blobs of ours that others may still be pulling after its end are held until the next one is over. A pull that fails by
the network's fault may be tried again; one that fails by the peer's is charged.
"""

from collections import deque
from typing import Final

import trio

from gossip.blobs.blob import BlobStore
from gossip.blobs.blob_fetch_task import BULK_BYTES, Meter, fetch_blob
from gossip.context import ServiceContext
from gossip.core.errors import RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.messages import Refused
from gossip.session import open_session
from gossip.transport.base import TransportError
from gossip.updates.publisher import Payload

EXCHANGES_HELD: Final = 2
"""Exchanges whose blobs are held: this one, and the last, which a slower member may still be pulling."""

EXCHANGE_VECTORS: Final = 2
"""Times our vector that the blobs of one exchange take: itself, and what we reduced or summed, which is no larger."""

MAX_PULLS: Final = 8
"""Pulls under way at once, as many as a node has neighbours by default: 32 MiB unverified at most."""

MAX_PULLS_PASSED: Final = 4 * MAX_PULLS
"""The same where pulls are slow: half of the largest group. As many on a link of 5 Mbit/s are each still faster than
limits.MIN_RATE, below which they are given up."""

PASSED_AFTER_S: Final = 2.0
"""Seconds in which pulls wait and none gets a place, after which there is one place more: members that trickle could
else hold all of them, and nobody else would be asked. Honest pulls that share a full link only become as many more as
take longer than this. Chosen."""

PULL_PAUSE_S: Final = 0.2
"""Seconds before a pull that failed is tried again: a lost connection is dialled within seconds."""


class HeldBlobs:
    """What the members of a group may pull from us. `vector_bytes`: the most that our vector takes."""

    def __init__(self, vector_bytes: int) -> None:
        self.store = BlobStore(EXCHANGES_HELD * EXCHANGE_VECTORS * vector_bytes)
        self._held: deque[list[Digest]] = deque()

    def begin(self) -> None:
        """Begin an exchange: drop the blobs of all but the last one."""
        while len(self._held) >= EXCHANGES_HELD:
            for address in self._held.popleft():
                self.store.drop(address)
        self._held.append([])

    def put(self, payload: Payload) -> Digest:
        """Hold a blob of the exchange that was begun last; return its address."""
        address = self.store.put(payload.manifest, payload.data)
        self._held[-1].append(address)
        return address


class _Places:
    """Places for the pulls of one exchange: MAX_PULLS, and one more whenever pulls have waited for PASSED_AFTER_S in
    which none got one, up to MAX_PULLS_PASSED."""

    def __init__(self) -> None:
        self._room = trio.Semaphore(MAX_PULLS)
        self._count = MAX_PULLS
        self._taken_at = float("-inf")

    async def __aenter__(self) -> None:
        began = trio.current_time()
        while True:
            with trio.move_on_at(self._more_at(began)):
                await self._room.acquire()
                self._taken_at = trio.current_time()
                return
            if trio.current_time() >= self._more_at(began):  # otherwise another has had a place meanwhile
                self._count += 1
                self._taken_at = trio.current_time()
                self._room.release()

    async def __aexit__(self, *_: object) -> None:
        self._room.release()

    def _more_at(self, began: float) -> float:
        """Return when a pull that has waited since `began` makes one place more."""
        return max(began, self._taken_at) + PASSED_AFTER_S if self._count < MAX_PULLS_PASSED else float("inf")


class PullFailedError(Exception):
    """A pull failed. `again`: by the network's fault, so that it may be tried again."""

    def __init__(self, *, again: bool) -> None:
        super().__init__("may be tried again" if again else "is given up")
        self.again = again


class Puller:
    """Pulls blobs of chunks of `chunk_bytes` for one exchange, a few at once."""

    def __init__(self, context: ServiceContext, meter: Meter, chunk_bytes: int) -> None:
        self._context = context
        self._meter = meter
        self._chunk_bytes = chunk_bytes
        self._room = _Places()

    async def pull(self, peer: PeerId, address: Digest, size: int, span: range | None) -> bytes:
        """Return the blob `address` of `size` bytes, or its chunks `span`. Raises PullFailedError: a peer that answered
        wrongly is charged; after the network's fault it is raised PULL_PAUSE_S later."""
        try:
            async with self._room:
                return await self._fetch(peer, address, size, span)
        except Refused:
            raise PullFailedError(again=False) from None  # it has dropped it: it is further than we are
        except RemoteError as error:
            self._context.offence(peer, error)
            raise PullFailedError(again=False) from error
        except TransportError as error:
            await trio.sleep(PULL_PAUSE_S)
            raise PullFailedError(again=True) from error

    async def _fetch(self, peer: PeerId, address: Digest, size: int, span: range | None) -> bytes:
        context, patience_s = self._context, self._context.config.request_timeout_s
        async with open_session(context.transport, peer, patience_s, bulk=size >= BULK_BYTES) as session:
            return await fetch_blob(session, address, size, context.hasher, self._meter, span, self._chunk_bytes)
