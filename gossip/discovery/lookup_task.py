"""Looks members up by their ids: when the runtime asks, when no address of an old neighbour answers any more, and now
and then for a place of our own, so that the table fills, and others learn of us.

A lookup dials strangers because others named them, though with signed records. So it keeps the dialler's rules, dials
few at once, and disconnects from each that is nothing more to us. While everybody in the swarm has a place beside us
there is nothing to look up.
"""

import random
from typing import Final

import trio

from gossip.context import ServiceContext
from gossip.core.backoff import Backoff
from gossip.core.errors import GossipError, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_FIND_ANSWER_BYTES
from gossip.core.messages import Refused
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.statements import PeerRecord
from gossip.discovery.dht import FINDS_BURST, FINDS_PER_S, KademliaNode
from gossip.discovery.dialler_task import Dialler
from gossip.discovery.lookup import Lookup
from gossip.discovery.peerstore import PeerStore, RecordTrust
from gossip.session import ask_once
from gossip.transport.base import TransportError
from gossip.updates.mesh import Mesh

LOOK_TABLE_S: Final = 5.0
"""Seconds between two looks at which peers were verified since: half a heartbeat."""

FIRST_S: Final = 30.0
REFRESH_S: Final = 300.0
"""Seconds of pause after the first lookup of a place of our own, doubling up to the second. A swarm that starts at once
has empty tables at first; later a lookup of 16 to 20 questions in five minutes is four messages a minute, beside the 48
hellos of eight neighbours."""

QUESTION_S: Final = 5.0
"""Seconds for a dial, and for the answer's first byte: two lost SYNs. A slower member knows no more than others."""

MAX_LOOKUPS: Final = 2
"""Lookups under way at once, of 3 questions each: the runtime's need not wait for a refresh. Their dials count among
the dialler's four, and are six at most."""

EVICTIONS_BURST: Final = 4
EVICTIONS_PER_S: Final = 1 / 15
"""Probes per second of members whose place in the table another peer waits for: four a minute, however many come."""

SOUGHT_MIN_S: Final = 60.0
SOUGHT_MAX_S: Final = 3600.0
"""Longest pause in seconds before a lost peer is looked up again; one that has left is found by nobody."""


class LookupTask:
    """One task that maintains the table, and runs lookups as they are wanted."""

    def __init__(
        self,
        context: ServiceContext,
        dht: KademliaNode,
        peerstore: PeerStore,
        mesh: Mesh,
        dialler: Dialler,
        rng: random.Random,
    ) -> None:
        """`mesh` says whether there are members to look up at all, and who is wanted as a neighbour."""
        self._context = context
        self._dht = dht
        self._peerstore = peerstore
        self._mesh = mesh
        self._dialler = dialler
        self._rng = rng
        self._slots = trio.Semaphore(MAX_LOOKUPS)
        self._asked = KeyedTokenBucket(burst=FINDS_BURST / 2, per_s=FINDS_PER_S / 2)  # half of what others accept
        self._evictions = KeyedTokenBucket(burst=EVICTIONS_BURST, per_s=EVICTIONS_PER_S)
        self._sought = Backoff(least=SOUGHT_MIN_S, most=SOUGHT_MAX_S, rng=rng)
        self._pause_s = FIRST_S
        self._refresh_at: float | None = None

    async def run(self) -> None:
        """Maintain the table until cancelled."""
        while True:
            await trio.sleep(LOOK_TABLE_S)
            for peer in self._dht.look(trio.current_time()):
                await self._doubt(peer)
            # Neighbours first: nothing is looked up while they are being dialled, or while there are none.
            if self._mesh.wide and self._context.transport.peers and self._dialler.idle:
                await self._refresh_if_due()
                await self._seek_one()

    async def find(self, peer: PeerId) -> tuple[str, ...] | None:
        """Return where a member of our run can be dialled, by its signed and proved record; None when it was not found.
        A known member is not looked up."""
        if peer == self._context.engine.me:
            return self._context.addresses()
        if (known := self._known(peer)) is not None:
            return known
        found = (await self._look_up(self._dht.place(peer), member=True)).found
        return None if found is None or found.peer != peer else found.addresses

    async def _look_up(self, target: int, *, member: bool) -> Lookup:
        """Ask members towards a place, until the nearest have been asked or the wanted one has answered."""
        async with self._slots:
            lookup = self._dht.begin(target, trio.current_time(), self._dialler.operators(), member=member)
            async with trio.open_nursery() as nursery:
                self._ask_some(lookup, nursery)
        return lookup

    def _known(self, peer: PeerId) -> tuple[str, ...] | None:
        if peer in self._context.engine.neighbours or self._peerstore.standing(peer) is RecordTrust.VERIFIED:
            return self._peerstore.addresses(peer) or None
        return None

    # -- a lookup

    def _ask_some(self, lookup: Lookup, nursery: trio.Nursery) -> None:
        for record in lookup.next():
            nursery.start_soon(self._ask_and_go_on, lookup, record, nursery)
        if lookup.found is not None:
            nursery.cancel_scope.cancel()  # the others need not answer any more

    async def _ask_and_go_on(self, lookup: Lookup, record: PeerRecord, nursery: trio.Nursery) -> None:
        connected = record.peer in self._context.transport.peers
        try:
            doubtful = await self._ask(lookup, record)
        finally:
            if not connected:
                await self._hang_up(record.peer)
        self._ask_some(lookup, nursery)
        if doubtful is not None:
            await self._doubt(doubtful)

    async def _ask(self, lookup: Lookup, record: PeerRecord) -> PeerId | None:
        context, peer = self._context, record.peer
        if not self._asked.take(peer, trio.current_time()):
            lookup.failed(peer)
            return None
        if not await self._dialler.call(record, QUESTION_S):
            lookup.failed(peer)
            self._missed(peer)
            return None
        request = self._dht.request(lookup.target)
        try:
            raw = await ask_once(context.transport, peer, request, QUESTION_S, MAX_FIND_ANSWER_BYTES)
            return self._dht.on_answer(lookup, peer, raw)
        except (Refused, TransportError):
            lookup.failed(peer)
        except RemoteError as error:
            lookup.failed(peer)
            context.offence(peer, error)
        return None

    async def _hang_up(self, peer: PeerId) -> None:
        """Disconnect from a peer that we dialled only for a question. One that may become a neighbour is greeted
        instead; one that has become a bridge to its region meanwhile stays."""
        if peer not in self._context.transport.peers or peer in self._context.engine.partners:
            return
        if not self._mesh.has_room_for(peer, trio.current_time()):
            with trio.CancelScope(shield=True):
                await self._context.transport.disconnect(peer)

    # -- the table

    async def _doubt(self, peer: PeerId) -> None:
        """Probe a member whose place in the table another peer waits for. Its record may have made room for others in
        the peerstore since, and with it where it was reached last."""
        if peer in self._context.transport.peers:
            self._dht.table.alive(peer)
        elif self._evictions.take("", trio.current_time()):
            address = self._peerstore.reached_at(peer) or self._dht.table.reached_at(peer)
            try:
                with trio.fail_after(QUESTION_S):
                    await self._context.transport.probe(address)
            except (GossipError, trio.TooSlowError):
                self._missed(peer)
            else:
                self._dht.table.alive(peer)

    def _missed(self, peer: PeerId) -> None:
        if self._context.transport.peers:  # otherwise we are cut off ourselves
            self._dht.table.failed(peer)

    async def _refresh_if_due(self) -> None:
        """Refresh our own place first, and then the bucket that was looked up longest ago."""
        now = trio.current_time()
        if self._refresh_at is None:
            self._refresh_at = now
        if now < self._refresh_at:
            return
        mine = self._dht.place(self._context.engine.me)
        first = self._pause_s == FIRST_S
        stale = None if first else self._dht.table.stale(now, self._rng)
        await self._look_up(mine if stale is None else stale, member=False)
        self._refresh_at = trio.current_time() + self._pause_s * self._context.engine.jitter()
        self._pause_s = min(REFRESH_S, 2 * self._pause_s)

    async def _seek_one(self) -> None:
        """Look up one peer that belongs beside us, or that the operator named, and whose every address has failed."""
        now = trio.current_time()
        there = self._context.transport.peers
        due = [peer for peer in self._dialler.lost if peer not in there and self._sought.due(peer, now)]
        if due:
            peer = self._rng.choice(due)
            self._sought.failed(peer, now)
            lookup = await self._look_up(self._dht.place(peer), member=True)
            if lookup.found is not None:
                self._sought.succeeded(peer)
                self._dialler.found(peer)
