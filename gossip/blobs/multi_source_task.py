"""Pulls a neighbour's payload from any peer that has it: first from its author, alone as long as the author is quick.

Other neighbours help when the author is slow, silent, gone or refuses. At most HELPERS of them help, first those that
help us least already, in an order of our own, so that not everybody asks the same one. One that lacks the blob costs a
small refusal and is asked again later; one that lies costs a chunk, is charged, and not asked again. The pull fails
when the author has failed, and no neighbour has anything to give, or they have had their time; what is verified by then
is kept (blob_cache_task.py).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

import trio

from gossip.blobs.blob_cache_task import HELP_STREAMS, StreamSlots
from gossip.blobs.blob_fetch_task import BULK_BYTES, BlobFetch, fetch_blob_from
from gossip.blobs.download import LACKS_S, AuthorLiedError, Download
from gossip.context import ServiceContext
from gossip.core.digests import digest_of
from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import CHUNK_BYTES
from gossip.core.messages import Refused
from gossip.session import open_session
from gossip.transport.base import TransportError
from gossip.updates.throughput import Throughput

HELP_AFTER_S: Final = 1.0
"""Seconds that an author has to show that it is quick: most updates are here by then, and nobody else was asked."""

HELPERS: Final = 6
"""Neighbours that help with one blob at a time: a full mesh of 8 without its author and us."""

HELP_RATIO: Final = 2.0
"""Times as fast as the author a neighbour must have been to be asked for help: where all links are alike, all are as
busy with their own payloads, and would only send some chunks twice."""

ASK_AGAIN_S: Final = 5.0
"""Seconds until a peer that had nothing of a blob is asked again, while the author sends: it may have begun
meanwhile."""

OTHERS_S: Final = 75.0
"""Seconds that the others have once the author has failed: a chunk at limits.MIN_RATE takes 74, with the patience for
its first byte. The next pull begins with the author again, and with what is verified. Or else one helper that always
says that it is about to have a chunk would keep us from an author whose connection broke once."""


class MultiSourceFetch:
    """One fetch of one payload from several sources. `error`: why the author did not deliver, if it did not."""

    def __init__(self, context: ServiceContext, speeds: Throughput, pulling: BlobFetch, places: StreamSlots) -> None:
        self.error: RemoteError | TransportError | None = None
        self._context = context
        self._speeds = speeds
        self._pulling = pulling
        self._download = pulling.download
        self._author = pulling.download.author
        self._places = places
        self._began = self._began_at_author = trio.current_time()
        self._scopes: dict[PeerId, trio.CancelScope] = {}
        """Cancel scopes of the sources that were asked and have not ended."""
        self._no_more = False
        self._rests_until: dict[PeerId, float] = {}
        self._spoilt: set[PeerId] = set()

    async def run(self) -> bool:
        """Run until the payload is here (True) or nobody has more of it; then `error` says why its author failed."""
        if self._download.size <= CHUNK_BYTES:  # one chunk cannot be shared: nobody is asked beside its author
            self.error = await self._work(self._author)
            self._pulling.changed.beat()
            if self._over:
                return self._download.done
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_author)
            nursery.start_soon(self._ask_others, nursery)
            while not self._over:
                await self._pulling.changed.wait()
            for peer, scope in self._scopes.items():
                # When all is here, the stream of one that owes us nothing ends in an orderly way.
                if not (self._download.done and self._download.idle(peer)):
                    scope.cancel()
        return self._download.done

    @property
    def _over(self) -> bool:
        return self._download.done or self._no_more

    async def _ask_author(self) -> None:
        now = trio.current_time
        while not self._download.done and self.error is None:
            self.error = await self._work(self._author)
            self._pulling.changed.beat()
            while self.error is None and not self._download.done and not self._download.author_wanted(now()):
                with trio.move_on_after(LACKS_S):  # what was refused lately is wanted again after a while
                    await self._pulling.changed.wait()

    async def _ask_others(self, nursery: trio.Nursery) -> None:
        failed_at = math.inf
        while not self._over:
            now = trio.current_time()
            if self.error is not None:
                failed_at = min(failed_at, now)
            if self._wants_help(now):
                for peer in self._candidates(now):
                    self._rests_until[peer] = float("inf")
                    self._places.take(peer)
                    nursery.start_soon(self._help, peer)
                nobody = self.error is not None and not self._helping and not self._untried()
                if nobody or now >= self._others_until(failed_at):
                    self._no_more = True
                    self._pulling.changed.beat()
                    return
            with trio.move_on_after(HELP_AFTER_S):
                await self._pulling.changed.wait()

    def _others_until(self, failed_at: float) -> float:
        """Return until when the others help with what the author has failed to give. What it has refused it will not
        give later: that ends when nothing comes any more."""
        refused = isinstance(self.error, Refused)
        return OTHERS_S + (max(failed_at, self._download.arrived_at) if refused else failed_at)

    def _wants_help(self, now: float) -> bool:
        if self.error is not None or self._download.size <= CHUNK_BYTES:  # one chunk cannot be shared
            return self.error is not None
        return now >= self._began + HELP_AFTER_S and self._download.slow(self._author)

    @property
    def _helping(self) -> int:
        return sum(until == float("inf") for until in self._rests_until.values())

    def _untried(self) -> list[PeerId]:
        """Neighbours that were not asked yet in this pull."""
        return [peer for peer in self._context.engine.neighbours if peer not in (self._author, *self._rests_until)]

    def _candidates(self, now: float) -> list[PeerId]:
        self._forget_departed()
        if not self._download.idle_chunks:
            return []
        rested = [] if self.error is not None else [peer for peer, until in self._rests_until.items() if until <= now]
        known = set(self._context.engine.neighbours) - self._spoilt
        there = [peer for peer in (*self._untried(), *rested) if peer in known]
        there = [peer for peer in there if self._places.taken(peer, now) < HELP_STREAMS and self._worth(peer, now)]
        there.sort(key=lambda peer: (self._places.taken(peer, now), self._draw(peer)))
        most = 1 if self._download.size <= CHUNK_BYTES else HELPERS
        return there[: max(0, most - self._helping)]

    def _forget_departed(self) -> None:
        """Forget peers that left, or peers that come in turn would fill memory while a fetch lasts."""
        here = self._context.engine.neighbours
        self._spoilt.intersection_update(here)
        still = {peer: until for peer, until in self._rests_until.items() if until == float("inf") or peer in here}
        self._rests_until = still

    def _worth(self, peer: PeerId, now: float) -> bool:
        carried = self._download.carried(self._author) + CHUNK_BYTES  # all but one chunk has been counted
        pace = carried / max(HELP_AFTER_S, now - self._began_at_author)
        return self.error is not None or self._speeds.could_send(peer, HELP_RATIO * pace)

    def _draw(self, peer: PeerId) -> bytes:
        return digest_of(self._download.address + f"{self._pulling.me} {peer}".encode())

    async def _help(self, peer: PeerId) -> None:
        orderly = False
        try:
            error = await self._work(peer)
            orderly = isinstance(error, Refused) or (error is None and peer not in self._scopes)
            if error is not None and not orderly:
                self._spoilt.add(peer)
            if isinstance(error, RemoteError) and not isinstance(error, Refused):
                self._context.offence(self._author if isinstance(error, AuthorLiedError) else peer, error)
        finally:
            self._places.free(peer, trio.current_time(), orderly=orderly)
            self._rests_until[peer] = trio.current_time() + ASK_AGAIN_S
            self._pulling.changed.beat()

    async def _work(self, peer: PeerId) -> RemoteError | TransportError | None:
        if self._over:  # since it was started
            return None
        context, download = self._context, self._download
        patience_s, bulk = context.config.request_timeout_s, download.size >= BULK_BYTES
        if peer == self._author:
            self._began_at_author = trio.current_time()
        with trio.CancelScope() as scope:
            self._scopes[peer] = scope
            try:
                async with open_session(context.transport, peer, patience_s, bulk=bulk) as session:
                    with measured(self._speeds, download) if peer == self._author else nullcontext():
                        await fetch_blob_from(session, peer, self._pulling)
                    del self._scopes[peer]
                context.engine.heard(peer, trio.current_time())
            except (RemoteError, TransportError) as error:
                return error
            finally:
                download.leave(peer)
        return None


@contextmanager
def measured(speeds: Throughput, download: Download) -> Iterator[None]:
    """Measure the link to the author by what it sends of a download; the author leaves the download at the end."""
    author = download.author
    transfer = speeds.begin(author, "received", download.bytes_missing, trio.current_time())
    orderly = False
    try:
        yield
        orderly = True
    finally:
        speeds.end(transfer, trio.current_time(), whole=orderly, carried=download.carried(author))
        download.leave(author)
