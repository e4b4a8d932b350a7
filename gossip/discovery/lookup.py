"""One lookup: whom to ask next on the way to a place, until those nearest to it have been asked, or who stands there.

Everybody who is asked tells of the members nearest to the target that it knows, by their signed records, and the
nearest of all that were told are asked in turn. An answer is a word of somebody's, so it may lie: what it tells is
asked, never believed. Who tells of nobody, or does not answer, is passed over; nobody is asked twice, and of one
network only so many; and the whole ends after a number of questions. A liar can still send a lookup to others of its
kind, with ids ground to be nearer than anybody honest. So it takes two ways that share nobody (S/Kademlia, Baumgart and
Mies 2007): what is told on one is not heard on the other.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from gossip.core.envelope import Scope, open_envelope
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.networks import network_of
from gossip.core.statements import PeerRecord, parse_record
from gossip.discovery.routing_table import BUCKET, nearest, place_of_id

ALPHA: Final = 3
"""Questions under way at once: Kademlia's own number. One that is not answered holds up a third of a lookup."""

PATHS: Final = 2
"""Ways that share nobody. Each liar is on one at most; a third would cost as much as both for less."""

WIDTH: Final = BUCKET // PATHS
"""A way ends when so many of the nearest that it has heard of have answered: together the 16 that a lookup of a place
is for. One of a member ends when that has answered, so it may take 16 on each way before it gives up: with a fifth
lying, and tables as empty as after a swarm's first lookups, 9 of 300 ended too soon otherwise."""

MAX_QUERIES: Final = 64
"""Questions of one lookup: what two ways of 16 take where half of all are silent."""

MAX_CANDIDATES: Final = 64
"""Members remembered on a way, the nearest ones: four times those that may end it."""

OF_NETWORK: Final = 8
"""Questions of a lookup to members of one /24 or /48: half of those that a way may end with, so that one network alone
never ends it. Whom the lookup is for is asked wherever it is."""


def records_in(raws: Iterable[bytes], scope: Scope, known: Mapping[bytes, PeerRecord]) -> list[PeerRecord]:
    """The records of an answer, checked; those in `known` were before. Raises RemoteError on the first that is bad."""
    return [known.get(raw) or parse_record(open_envelope(raw, scope)) for raw in raws]


@dataclass
class _Path:
    order: list[tuple[int, PeerId]] = field(default_factory=list)
    """By distance: who may be asked, is being asked or has answered."""
    under_way: int = 0


class Lookup:
    """What one lookup knows. `found`: the record of who stands at the target, once it has answered itself."""

    def __init__(self, *, target: int, me: PeerId, scope: Scope, seeds: Sequence[PeerRecord], width: int) -> None:
        """`target`: a place. `seeds`: whom to begin with. `width`: of each way."""
        self.found: PeerRecord | None = None
        self.queries = 0
        self.target = target
        self._me = me
        self._width = width
        self._scope = scope
        self._paths = [_Path() for _ in range(PATHS)]
        self._records: dict[PeerId, PeerRecord] = {}
        self._asked: dict[PeerId, _Path] = {}
        self._under_way: dict[PeerId, PeerRecord] = {}
        self._answered: dict[PeerId, PeerRecord] = {}
        self._failed: dict[PeerId, PeerRecord] = {}
        self._networks: Counter[str] = Counter()
        for number, record in enumerate(nearest(seeds, scope, target, MAX_CANDIDATES)):
            self._hear(self._paths[number % PATHS], record)

    @property
    def known(self) -> dict[bytes, PeerRecord]:
        """The records heard so far, by their bytes: they need no second check."""
        return {record.raw: record for record in self._records.values() if record.raw}

    @property
    def over(self) -> bool:
        """Whether nobody is to be asked any more, now or after the answers that are still to come."""
        return self.found is not None or (not self._under_way and self._pick() is None)

    def next(self) -> list[PeerRecord]:
        """Return whom to ask now: each is then `answered` or `failed`."""
        chosen = []
        while self.found is None and len(self._under_way) < ALPHA and (picked := self._pick()) is not None:
            path, peer = picked
            path.under_way += 1
            self.queries += 1
            self._asked[peer] = path
            self._under_way[peer] = self._records[peer]
            self._networks.update(_networks_of(self._records[peer]))
            chosen.append(self._records[peer])
        return chosen

    def answered(self, peer: PeerId, own: PeerRecord | None, told: Sequence[PeerRecord]) -> None:
        """`peer` told of these. `own`: its own record as it gave it. Raises RemoteError for an answer that is out of
        order: it counts as none."""
        if peer not in self._under_way:
            return
        distances = [self._distance(record.peer) for record in told]
        if any(after <= before for before, after in pairwise(distances)):
            self.failed(peer)
            raise RemoteError(Reason.PROTOCOL, "members that are not in the order of their distance")
        path = self._end(peer)
        self._answered[peer] = own or self._records[peer]
        if self._distance(peer) == 0:
            self.found = self._answered[peer]
        for record in told:
            self._hear(path, record)

    def failed(self, peer: PeerId) -> None:
        """Note that `peer` gave no answer, or none that can be used."""
        if peer not in self._under_way:
            return
        with_record = self._under_way[peer]
        path, name = self._end(peer), (self._distance(peer), peer)
        if name in path.order:
            path.order.remove(name)
        self._failed[peer] = with_record
        self._hear(path, self._records[peer])  # perhaps a newer one was told meanwhile

    def closest(self) -> list[PeerRecord]:
        """Of those that answered the nearest to the target, nearest first."""
        return nearest(self._answered.values(), self._scope, self.target)

    def _end(self, peer: PeerId) -> _Path:
        del self._under_way[peer]
        self._asked[peer].under_way -= 1
        return self._asked[peer]

    def _distance(self, peer: PeerId) -> int:
        return place_of_id(self._scope, peer) ^ self.target

    def _hear(self, path: _Path, record: PeerRecord) -> None:
        peer, name = record.peer, (self._distance(record.peer), record.peer)
        if peer == self._me or not record.addresses:
            return
        if (known := self._records.get(peer)) is None or _age(known) < _age(record):
            self._records[peer] = record
        failed = self._failed.get(peer)
        if name[0] == 0 and failed is not None and _age(failed) < _age(self._records[peer]):
            del self._failed[peer], self._asked[peer]  # an old record of whom we look for must not hide it
        if peer not in self._asked and name not in path.order:
            insort(path.order, name)
            del path.order[MAX_CANDIDATES:]

    def _pick(self) -> tuple[_Path, PeerId] | None:
        if self.queries >= MAX_QUERIES:
            return None
        for path in sorted(self._paths, key=lambda each: each.under_way):
            path.order = [each for each in path.order if self._may_stay(path, each)]
            peer = next((peer for _, peer in path.order[: self._width] if peer not in self._asked), None)
            if peer is not None:
                return path, peer
        return None

    def _may_stay(self, path: _Path, candidate: tuple[int, PeerId]) -> bool:
        distance, peer = candidate
        if peer in self._asked:
            return self._asked[peer] is path
        networks = _networks_of(self._records[peer])
        return distance == 0 or all(self._networks[network] < OF_NETWORK for network in networks)


def _networks_of(record: PeerRecord) -> set[str]:
    return {network for address in record.addresses if (network := network_of(address))}


def _age(record: PeerRecord) -> tuple[int, int]:
    return record.epoch, record.version
