"""Peer records as they come in hellos: the sender's own, and those of others that it passes on."""

from collections.abc import Callable, Container
from typing import Final

from gossip.core.envelope import EnvelopeKind, Scope, open_envelope, open_from
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_HELLO_RECORDS
from gossip.core.messages import Hello
from gossip.core.networks import group_of
from gossip.core.rate_limit import KeyedTokenBucket, TokenBucket
from gossip.core.statements import parse_record
from gossip.discovery.peerstore import PeerStore

RECORDS_PER_S: Final = 2.0
"""New records a second that are accepted from a peer, after a first hello's 32: a swarm of a thousand in some minutes.
The rest is not checked, since a check costs 0.1 ms and a key nothing."""

STRANGERS_BURST: Final = 1024
STRANGERS_PER_S: Final = 64.0
"""New records a second from all senders that are no neighbours: 0.1 s of checks at once, and half a percent of a core.
At the start of a swarm all records are new, and soon hardly any. Chosen."""


class RecordExchange:
    """Adds records to the peerstore. `dialable(peer, now)`: whether this peer is of use to us at all. `network_of`: the
    network of a connected peer. Records from `neighbours` are not limited by those from others."""

    def __init__(
        self,
        peerstore: PeerStore,
        scope: Scope,
        dialable: Callable[[PeerId, float], bool],
        network_of: Callable[[PeerId], str | None],
        neighbours: Container[PeerId],
    ) -> None:
        self._peerstore = peerstore
        self._neighbours = neighbours
        self._strangers = TokenBucket(burst=STRANGERS_BURST, per_s=STRANGERS_PER_S)
        self._scope = scope
        self._dialable = dialable
        self._network_of = network_of
        self._told = KeyedTokenBucket(burst=MAX_HELLO_RECORDS, per_s=RECORDS_PER_S)

    def take(self, teller: PeerId, hello: Hello, now: float) -> None:
        """Process the records of one hello. Raises RemoteError."""
        if hello.record:
            own = parse_record(open_from(hello.record, self._scope, teller, EnvelopeKind.RECORD))
            self._peerstore.learn(own, first_hand=True, calls_from=self._network_of(teller))
        known = {record.raw for record in self._peerstore.known()}
        for raw in hello.records:
            if raw not in known and self._listens(teller, now):
                self._learn(raw, group_of(teller, self._network_of(teller)), now)

    def _listens(self, teller: PeerId, now: float) -> bool:
        """Return whether one more new record of a sender is checked; count it if so."""
        heard = teller in self._neighbours or self._strangers.left(now) >= 1
        if not (heard and self._told.take(teller, now)):
            return False
        if teller not in self._neighbours:
            self._strangers.spend(1, now)
        return True

    def _learn(self, raw: bytes, teller: str, now: float) -> None:
        record = parse_record(open_envelope(raw, self._scope))
        if self._dialable(record.peer, now):
            self._peerstore.learn(record, first_hand=False, teller=teller)
