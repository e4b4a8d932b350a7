"""One lookup: whom to ask next towards a place, until the nearest members have answered, or the wanted one has.

Every member that is asked returns the signed records of the members nearest to the target that it knows, and the
nearest of all returned are asked in turn. An answer is only a claim, so it may lie: the members that it names are
asked, never believed. A member that names nobody, or does not answer, is passed over. Nobody is asked twice, and of one
network only so many; and a lookup ends after a number of questions. A liar can still send a lookup to others of its
kind, with ids ground to be nearer than any honest one. So it takes two paths that share no member (S/Kademlia, Baumgart
and Mies 2007): what is reported on one is not used on the other.
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
"""Questions under way at once: Kademlia's own number. One that is not answered delays a third of a lookup."""

PATHS: Final = 2
"""Paths that share no member. Each liar is on one at most; a third path would cost half as much again for less gain."""

WIDTH: Final = BUCKET // PATHS
"""A path ends when so many of the nearest members that it knows have answered: together the 16 that a lookup of a place
returns. A lookup of a member ends when that has answered, so it may take 16 on each path before it gives up: with a
fifth lying, and tables as empty as after a swarm's first lookups, 9 of 300 ended too soon otherwise."""

MAX_QUERIES: Final = 64
"""Questions of one lookup: what two paths of 16 take where half of all members are silent."""

MAX_CANDIDATES: Final = 64
"""Members remembered on a path, the nearest ones: four times those that may end it."""

OF_NETWORK: Final = 8
"""Questions of a lookup to members of one /24 or /48: half of those that a path may end with, so that one network alone
never ends it. The wanted member is asked wherever it is."""


def records_in(raws: Iterable[bytes], scope: Scope, known: Mapping[bytes, PeerRecord]) -> list[PeerRecord]:
    """Return the checked records of an answer; those in `known` were checked before. Raises RemoteError on the first
    bad one."""
    return [known.get(raw) or parse_record(open_envelope(raw, scope)) for raw in raws]


@dataclass
class _Path:
    order: list[tuple[int, PeerId]] = field(default_factory=list)
    """Members that may be asked, are being asked or have answered, by distance."""
    under_way: int = 0


class Lookup:
    """The state of one lookup. `found`: the record of the wanted member, once it has answered itself."""

    def __init__(self, *, target: int, me: PeerId, scope: Scope, seeds: Sequence[PeerRecord], width: int) -> None:
        """`target`: a place. `seeds`: members to begin with. `width`: of each path."""
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
        """The records received so far, by their bytes: they need no second check."""
        return {record.raw: record for record in self._records.values() if record.raw}

    @property
    def over(self) -> bool:
        """Whether nobody is to be asked any more, now or after the answers that are still to come."""
        return self.found is not None or (not self._under_way and self._pick() is None)

    def next(self) -> list[PeerRecord]:
        """Return whom to ask now; each must then be reported as `answered` or `failed`."""
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
        """Process the records that `peer` returned. `own`: its own record as it gave it. Raises RemoteError for an
        answer that is out of order: it counts as no answer."""
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
        self._hear(path, self._records[peer])  # perhaps a newer one was received meanwhile

    def closest(self) -> list[PeerRecord]:
        """Return the members that answered, nearest to the target first."""
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
            del self._failed[peer], self._asked[peer]  # an old record of the wanted member must not hide it
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
