"""The records of other members that hellos carry: which of ours a peer is told, and what it tells us."""

import random
from functools import partial

from gossip.core.digests import digest_of
from gossip.core.ids import PeerId
from gossip.core.messages import Hello
from gossip.core.statements import PeerRecord
from gossip.discovery.peerstore import PeerStore
from gossip.discovery.record_exchange import RecordExchange
from gossip.discovery.told_records import RecordNames, ToldPeers
from gossip.regions.bridges import Bridges
from gossip.updates.mesh import Mesh


class HelloRecords:
    """What each peer has been told. `mesh`: our neighbours, and the rings they are chosen by."""

    def __init__(
        self, peerstore: PeerStore, mesh: Mesh, bridges: Bridges, exchange: RecordExchange, rng: random.Random
    ) -> None:
        self._peerstore = peerstore
        self._mesh = mesh
        self._bridges = bridges
        self._exchange = exchange
        self._rng = rng
        self._told = ToldPeers()
        """Only in a run with regions; else each neighbour has its own."""
        self._told_by = ToldPeers()
        """The records that each neighbour has told us of, only in a run with regions."""

    def told_to(self, peer: PeerId) -> tuple[bytes, ...]:
        """Return the records in a hello to `peer`: a neighbour gets each once, since it stays. In a run with regions
        every member does, few at a time, and none that it has sent us. Who has given no record may only ask, and hear
        nothing that we say by ourselves."""
        neighbour, rings = self._mesh.table.get(peer), self._mesh.rings
        if not self._bridges.own or self._peerstore.region_of(peer) is None:
            if neighbour is None:
                return self._peerstore.sample(self._rng, without=peer, rings=rings)
            records = self._peerstore.sample(self._rng, without=peer, rings=rings, told=neighbour.told.names())
            neighbour.told.add(records)
            return records
        told = self._told.of(peer)
        records = self._peerstore.sample(
            self._rng,
            without=peer,
            rings=rings,
            told=told.names(),
            regions=self._bridges.needed_by(peer) or frozenset(),
            first=partial(self._bridges.next_to, peer),
        )
        told.add(records)
        return records

    def learn(self, peer: PeerId, hello: Hello, now: float) -> None:
        """Take in the records of a peer's hello. Raises RemoteError."""
        self._exchange.take(peer, hello, now)
        if self._bridges.own:
            self._told.of(peer).add(hello.records)

    def note_told(self, neighbour: PeerId, hello: Hello) -> None:
        """Note which members a neighbour tells us of, for `vouched`. No-op for who is none, and without regions."""
        if self._bridges.own and neighbour in self._mesh.table:
            self._told_by.of(neighbour).add(hello.records)

    def vouched(self, tellers: int) -> frozenset[PeerId]:
        """Return the members of our region of whom neighbours of so many networks have told us, by the very record that
        we hold. Who does not lie tells only of members that gave it their records and answered at one of their
        addresses. Nobody in a run without regions."""
        if not self._bridges.own:
            return frozenset()
        told: dict[str, list[RecordNames]] = {}  # keys are free, and networks are not
        for peer in self._mesh.table:
            told.setdefault(self._peerstore.group_of(peer), []).append(self._told_by.of(peer).names())

        def is_told(record: PeerRecord) -> bool:
            digest = digest_of(record.raw)
            return sum(any(digest in names for names in of_group) for of_group in told.values()) >= tellers

        ours = (record for record in self._peerstore.known() if record.region == self._bridges.own)
        return frozenset(record.peer for record in ours if is_told(record))

    def forget(self, peer: PeerId) -> None:
        """Forget what a peer has, and has told us, whose connection is lost."""
        self._told.forget(peer)
        self._told_by.forget(peer)
