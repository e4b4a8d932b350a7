"""A member's part in finding others by their ids: which records it passes on, whom its table holds, what it asks.

Any peer of the run may ask, neighbour or not. Its own record comes with the question, as in a hello. It is probed
(reachability/probe_task.py), and once it has answered its record is passed on. So a newcomer that looks up its own id
becomes known to the members nearest to it.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gossip.core.envelope import EnvelopeKind, Scope, open_from
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.messages import FindRequest, check_run, parse_find_answer
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.statements import PeerRecord, parse_record
from gossip.discovery.lookup import WIDTH, Lookup, records_in
from gossip.discovery.peerstore import PeerStore, RecordTrust
from gossip.discovery.routing_table import BUCKET, PLACE_BITS, RoutingTable, nearest, place_of_id

FINDS_BURST: Final = 16
FINDS_PER_S: Final = 0.5
"""Find requests per second of a peer that are answered: a lookup asks a peer once, and a node makes one in five
minutes, besides those that its runtime wants. Each costs 1 ms, most of it to write sixteen records."""

MAX_CALLERS: Final = 64
CALLER_S: Final = 120.0
"""Seconds for which askers that have disconnected are still probed: two tries with a minute between."""


def named(place: int) -> Digest:
    """Return the wire form of a place: 32 bytes, big-endian."""
    return Digest(place.to_bytes(PLACE_BITS // 8, "big"))


def placed(target: Digest) -> int:
    """Return the place that 32 bytes name."""
    return int.from_bytes(target, "big")


def asker_of(request: FindRequest, scope: Scope, peer: PeerId) -> PeerRecord | None:
    """Return the record that the asker gives of itself, if any. Raises RemoteError."""
    if not request.record:
        return None
    return parse_record(open_from(request.record, scope, peer, EnvelopeKind.RECORD))


class KademliaNode:
    """The routing table, and both ends of a find request. `dialable(peer, now)`: whether a peer is of use to us at
    all. `network_of`: the network of a connected peer."""

    def __init__(
        self,
        *,
        me: PeerId,
        scope: Scope,
        genesis: Digest,
        peerstore: PeerStore,
        dialable: Callable[[PeerId, float], bool],
        network_of: Callable[[PeerId], str | None],
    ) -> None:
        self.table = RoutingTable(me, scope)
        self.record = b""
        """Our own record, as it was last signed."""
        self._me = me
        self._scope = scope
        self._genesis = genesis
        self._peerstore = peerstore
        self._dialable = dialable
        self._network_of = network_of
        self._finds = KeyedTokenBucket(burst=FINDS_BURST, per_s=FINDS_PER_S)
        self._callers: OrderedDict[PeerId, float] = OrderedDict()
        self._seen: frozenset[PeerId] = frozenset()

    def place(self, peer: PeerId) -> int:
        """Return a peer's place."""
        return place_of_id(self._scope, peer)

    # -- asked

    def on_find(self, peer: PeerId, request: FindRequest, now: float) -> tuple[bytes, list[bytes]]:
        """Return our record, and those of the members that are nearest to the target. Raises RemoteError."""
        if not self._finds.take(peer, now):
            raise RemoteError(Reason.FLOODED, "too many find requests")
        check_run(request, self._scope, self._genesis)
        if (asker := asker_of(request, self._scope, peer)) is not None:
            self._met(asker, now)
        found = [record.raw for record in self._nearest(placed(request.target), peer, now)]
        return self.record, found

    def awaits(self, peer: PeerId, now: float) -> bool:
        """Return whether a peer that has asked us, and may have disconnected, is to be probed."""
        return self._callers.get(peer, now) > now

    def _nearest(self, target: int, asker: PeerId, now: float) -> list[PeerRecord]:
        gone = {peer for peer in self.table.peers() if not self._dialable(peer, now)}
        found = self.table.closest(target, BUCKET, without=gone | {asker})
        if not found or self.place(found[0].peer) != target:  # perhaps it is one that the table has no room for
            known = self._peerstore.of_standing(RecordTrust.VERIFIED)
            there = [each for each in known if self.place(each.peer) == target and self._dialable(each.peer, now)]
            found = [*(each for each in there if each.peer != asker), *found][:BUCKET]
        return found

    def _met(self, record: PeerRecord, now: float) -> None:
        # As after a hello: or keys of one host, with addresses that they make up, would count for as many networks.
        self._peerstore.learn(record, first_hand=True, calls_from=self._network_of(record.peer))
        if self._peerstore.standing(record.peer) is not RecordTrust.VERIFIED:
            self._callers[record.peer] = now + CALLER_S
            self._callers.move_to_end(record.peer)
            while len(self._callers) > MAX_CALLERS:
                self._callers.popitem(last=False)

    # -- asking

    def request(self, target: int) -> FindRequest:
        """Return the request for the members nearest to a place."""
        scope = self._scope
        return FindRequest(
            swarm=scope.swarm, run=scope.run, genesis=self._genesis, target=named(target), record=self.record
        )

    def begin(self, target: int, now: float, also: list[PeerRecord], *, member: bool) -> Lookup:
        """Begin a lookup from the members that we know; `also`: from these too. `member`: look for the member at the
        place, not for those around it."""
        self.table.looked_up(target, now)
        known = self._peerstore.of_standing(RecordTrust.VERIFIED, RecordTrust.KEPT)
        seeds = {each.peer: each for each in (*also, *nearest(known, self._scope, target), *self.table.closest(target))}
        width = BUCKET if member else WIDTH
        return Lookup(target=target, me=self._me, scope=self._scope, seeds=list(seeds.values()), width=width)

    def on_answer(self, lookup: Lookup, peer: PeerId, raw: bytes | bytearray) -> PeerId | None:
        """Process the answer of `peer` in this lookup; return whom to probe for its place in the table, if anybody.
        Raises Refused or RemoteError: then it counts as no answer."""
        try:
            own, raws = parse_find_answer(raw)
            record = parse_record(open_from(own, self._scope, peer, EnvelopeKind.RECORD)) if own else None
            lookup.answered(peer, record, records_in(raws, self._scope, lookup.known))
        except RemoteError:
            lookup.failed(peer)
            raise
        if record is None:
            return None
        self._peerstore.learn(record, first_hand=True)
        return self._take_in(record)

    # -- the table

    def look(self, now: float) -> list[PeerId]:
        """Add peers that were verified since, and drop those that are gone; return whom to probe for their places."""
        for peer in self.table.peers():
            if not self._dialable(peer, now):
                self.table.forget(peer)
        verified = [
            each for each in self._peerstore.of_standing(RecordTrust.VERIFIED) if self._dialable(each.peer, now)
        ]
        doubtful = []
        for record in verified:
            self._callers.pop(record.peer, None)
            if record.peer in self.table:
                self.table.update(record)
            elif record.peer not in self._seen or self.table.has_room_for(record.peer, self._where(record)):
                doubtful.append(self._take_in(record))
        self._seen = frozenset(record.peer for record in verified)
        return [peer for peer in dict.fromkeys(doubtful) if peer is not None]

    def _take_in(self, record: PeerRecord) -> PeerId | None:
        if self._peerstore.standing(record.peer) is not RecordTrust.VERIFIED:
            return None
        return self.table.see(record, self._where(record))

    def _where(self, record: PeerRecord) -> str:
        return self._peerstore.reached_at(record.peer)
