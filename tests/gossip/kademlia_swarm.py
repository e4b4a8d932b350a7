"""A swarm of tables and lookups alone, as fast as memory: for what no simulated network is needed for."""

import random
from dataclasses import dataclass, field

from gossip_samples import SCOPE

from gossip.core.ids import PeerId
from gossip.core.statements import PeerRecord
from gossip.discovery.lookup import WIDTH, Lookup
from gossip.discovery.routing_table import BUCKET, RoutingTable, nearest, place_of_id


def place(peer: PeerId) -> int:
    return place_of_id(SCOPE, peer)


def member(name: object, *, address: str | None = None, version: int = 1) -> PeerRecord:
    """The record of a member that nobody has signed: tables and lookups are given what was checked before."""
    peer = PeerId(f"peer-{name}")
    address = f"/memory/{name}" if address is None else address
    return PeerRecord(
        peer=peer, epoch=1, version=version, addresses=(f"{address}/p2p/{peer}",), raw=f"{peer}/{version}".encode()
    )


def table(me: str = "me") -> RoutingTable:
    return RoutingTable(member(me).peer, SCOPE)


def seen(it: RoutingTable, record: PeerRecord) -> PeerId | None:
    return it.see(record, record.addresses[0])


@dataclass
class VirtualSwarm:
    """`silent` answer nobody; `liars` tell of the liars nearest to the target, whoever that is."""

    rng: random.Random
    records: dict[PeerId, PeerRecord] = field(default_factory=dict)
    tables: dict[PeerId, RoutingTable] = field(default_factory=dict)
    silent: set[PeerId] = field(default_factory=set)
    liars: set[PeerId] = field(default_factory=set)

    def join(self, record: PeerRecord) -> None:
        """One more, that knows one who came before."""
        known = self.rng.choice(list(self.records.values())) if self.records else None
        self.records[record.peer], it = record, RoutingTable(record.peer, SCOPE)
        self.tables[record.peer] = it
        if known is not None:
            seen(it, known)
            self.look_up(record.peer, place(record.peer))

    def find(self, asker: PeerId, sought: PeerId) -> Lookup:
        return self.look_up(asker, place(sought), width=BUCKET)

    def look_up(self, asker: PeerId, target: int, width: int = WIDTH) -> Lookup:
        """As discovery/lookup_task.py does it, all of whose askers are reached."""
        mine = self.tables[asker]
        lookup = Lookup(target=target, me=asker, scope=SCOPE, seeds=mine.closest(target), width=width)
        while asked := lookup.next():
            for record in asked:
                self._ask(asker, lookup, record)
        return lookup

    def _ask(self, asker: PeerId, lookup: Lookup, record: PeerRecord) -> None:
        if record.peer in self.silent:
            lookup.failed(record.peer)
            self.tables[asker].failed(record.peer)
            return
        theirs = self.tables[record.peer]
        told = theirs.closest(lookup.target, BUCKET, without={asker})
        if record.peer in self.liars:
            others = [self.records[peer] for peer in self.liars if peer != asker]
            told = nearest(others, SCOPE, lookup.target)
        lookup.answered(record.peer, self.records[record.peer], told)
        seen(self.tables[asker], self.records[record.peer])
        if record.peer not in self.liars:
            self._place_of_who_left(theirs, seen(theirs, self.records[asker]))

    def _place_of_who_left(self, theirs: RoutingTable, doubtful: PeerId | None) -> None:
        if doubtful is not None and doubtful in self.silent:
            theirs.failed(doubtful)
        elif doubtful is not None:
            theirs.alive(doubtful)

    def refresh(self) -> None:
        """Everybody looks one stale bucket up."""
        for peer, mine in self.tables.items():
            target = mine.stale(0.0, self.rng)
            if target is not None:
                mine.looked_up(target, 0.0)
                self.look_up(peer, target)

    def turn(self, what: str, share: float) -> list[PeerId]:
        """So many become `silent`, or `liars`; the others."""
        bad = set(self.rng.sample(list(self.records), round(share * len(self.records))))
        setattr(self, what, bad)
        return [peer for peer in self.records if peer not in bad]


def grown(count: int, seed: int = 1) -> VirtualSwarm:
    it = VirtualSwarm(random.Random(seed))
    for number in range(count):
        it.join(member(number))
    return it
