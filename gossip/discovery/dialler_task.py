"""Finds neighbours: dials bootstrap and learned addresses, and says hello to connected peers.

While there are fewer neighbours than we look for, every address that is due is tried. First come the peers that the
rings put beside us if the reports are true (discovery/topology.py); they are tried even when all places are taken,
since a dial is how they get a right to one. Then come the operator's peers, then those that we have reached before, and
then those that others reported, in which networks take turns. All have a back-off with jitter. The operator's are tried
for as long as it takes. A learned record is dropped when it has failed a few times, but not while nobody at all is
connected: then the fault is ours, and the peerstore is the way back. A hello makes a connection a neighbour. It is
repeated too: the far end may be full, or not ready yet.

An address that others report may be a victim's, reported to a thousand nodes at once. So such addresses are dialled one
at a time for each host, and a host or a peer that did not answer more and more rarely, whatever is reported of it.
"""

import random
from collections import Counter, OrderedDict
from itertools import islice
from typing import Final

import trio

from gossip.context import Notifier, ServiceContext
from gossip.core.backoff import Backoff, addresses_in, host_of, peer_in
from gossip.core.errors import GossipError, LocalError
from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.statements import PeerRecord
from gossip.discovery.peerstore import PeerStore, RecordTrust
from gossip.hellos.hello import HELLO_PER_S
from gossip.hellos.hello_task import say_hello
from gossip.reachability.probe_task import AddressProber
from gossip.regions.bridges import Bridges
from gossip.transport.base import TransportError
from gossip.updates.mesh import Mesh

MAX_DIALS: Final = 4
"""Dials under way: half the default degree, so that the number of neighbours seldom overshoots at the start. Hellos do
not count, or a few connected peers that never answer them would keep us from dialling anybody."""

MAX_DIALS_ALONE: Final = 16
"""The same while nobody is connected: after an outage many peers of the peerstore may be gone, and each dial takes
time."""

FORGET_AFTER: Final = 6
"""Failed dials of each address (of all together, where the record is unverified) after which a learned record is
dropped: a minute of back-off; others may report it again."""

RUMOUR_MAX_S: Final = 3600.0
"""Longest back-off in seconds of a peer or host that we know by an unverified record and that did not answer. With a
doubling pause that is a dozen dials in the first hour and one in each later one, so that few of a thousand nodes' dials
hit a victim."""

VISIT_EVERY_S: Final = 30.0
"""Seconds between two visits: a node that looks for no neighbour exchanges hellos with a peer that it knows only from
records. So members learn of others than their neighbours' neighbours, and records of members that left are detected.
Two dials a minute are less than what heartbeats cost, and of 64 members each has met all others in half an hour."""

MAX_HINTS: Final = 64
"""Addresses from the local network, which are tried like unverified records; the oldest is dropped first."""

MAX_LOST: Final = 16
"""Peers that belong beside us or are the operator's, answer nowhere, and are remembered to be looked up by id."""

MAX_GIVEN_UP: Final = 256
"""Peers whose record was dropped as nobody answered, and of which is remembered where they had proved their key: as
many as records are kept."""

VIA_MAX_S: Final = 10.0
"""Longest back-off in seconds of the relay that we depend on: nobody else can be dialled meanwhile, and it is near."""

CALL_ADDRESSES: Final = 2
"""Addresses of one peer that are tried for one question of a lookup: it can ask others."""

MAX_FILE_PEERS: Final = 256
"""Lines of the peers file that are used: as many as records are kept."""


class Dialler:
    """One periodic task, and a short-lived one for each dial or hello."""

    def __init__(
        self, context: ServiceContext, mesh: Mesh, bridges: Bridges, peerstore: PeerStore, rng: random.Random
    ) -> None:
        """`mesh` and `bridges` say who is wanted, `peerstore` where each can be dialled. The dialler changes none of
        them: it reports the result of a dial to the engine."""
        config = context.config
        self._context = context
        self._mesh = mesh
        self._bridges = bridges
        self._peerstore = peerstore
        self._rng = rng
        self._configured = {address: peer_in(address) for address in config.named_peers}
        self._via = peer_in(config.via) if config.via else None
        most = min(VIA_MAX_S, config.redial_max_s)
        self._via_dials = Backoff(least=min(config.redial_min_s, most), most=most, rng=rng)
        self._operators = frozenset(self._configured)
        self._dials = Backoff(least=config.redial_min_s, most=config.redial_max_s, rng=rng)
        self._hellos = Backoff(least=config.redial_min_s, most=config.redial_max_s, rng=rng)
        self._rumours = Backoff(least=config.redial_min_s, most=RUMOUR_MAX_S, rng=rng)
        self._hosts = Backoff(least=config.redial_min_s, most=RUMOUR_MAX_S, rng=rng)
        self._refusals = Backoff(least=config.redial_min_s, most=config.redial_max_s, rng=rng)
        self._forgiven = KeyedTokenBucket(burst=1, per_s=HELLO_PER_S / 4)
        # Quick at first, then no quicker than heartbeats: neighbours accept twice as many hellos, and charge for more.
        self._asks = Backoff(least=config.redial_min_s, most=max(config.redial_max_s, config.heartbeat_s), rng=rng)
        self._address_prober = AddressProber(
            context, Backoff(least=config.redial_max_s, most=RUMOUR_MAX_S, rng=rng), self._hosts
        )
        self.lost: OrderedDict[PeerId, None] = OrderedDict()
        """Peers that belong beside us, or are the operator's, and answer at none of their addresses."""
        self._given_up: OrderedDict[PeerId, str] = OrderedDict()
        """Where each peer whose record was dropped had last proved its key."""
        self._dialling: dict[PeerId, str] = {}
        self._greeting: set[PeerId] = set()
        self._complained: set[str] = set()
        self._hints: OrderedDict[str, PeerId] = OrderedDict()
        self._woken = Notifier()
        self._visit_at = 0.0

    def connected(self, peer: PeerId) -> None:
        """Say hello on a new connection at once."""
        self._hellos.succeeded(peer)
        self._woken.beat()

    def hint(self, address: str) -> None:
        """Add an unproved address at which a member may be."""
        self._hints[address] = peer_in(address)
        self._hints.move_to_end(address)
        while len(self._hints) > MAX_HINTS:
            self._hints.popitem(last=False)
        self._woken.beat()

    @property
    def idle(self) -> bool:
        """Return whether no dial is under way."""
        return not self._dialling

    @property
    def cut_off(self) -> bool:
        """Return whether nobody can be reached, as the relay that we depend on is away."""
        return self._via is not None and self._via not in self._context.transport.peers

    def _pauses(self, peer: PeerId) -> Backoff:
        """Return the back-off between dials of a peer's addresses."""
        return self._via_dials if peer == self._via else self._dials

    def operators(self) -> list[PeerRecord]:
        """Return the operator's peers as seeds for a lookup: these addresses are unsigned."""
        return [PeerRecord(peer=peer, epoch=0, version=0, addresses=(it,), raw=b"") for it, peer in self._bootstrap()]

    def found(self, peer: PeerId) -> None:
        """Note that a peer answered at an address of a newer record: it is dialled at once if it is wanted."""
        self.lost.pop(peer, None)
        self._context.engine.peer_found(peer)
        self._woken.beat()

    async def call(self, record: PeerRecord, within_s: float) -> bool:
        """Connect to a peer for a question, unless its addresses are not due: they have the same pauses as all others.
        Return whether it is connected."""
        peer = record.peer
        if peer in self._context.transport.peers:
            return True
        for address in self._callable(record)[:CALL_ADDRESSES]:
            if peer in self._dialling:
                break
            self._dialling[peer] = host_of(address)
            if await self._dial(address, peer, within_s):
                return True
        return False

    def _callable(self, record: PeerRecord) -> list[str]:
        peer, now = record.peer, trio.current_time()
        if not self._mesh.dialable(peer, now):
            return []
        trusted = {*self._operators, *(self._peerstore.addresses(peer) if self._trusted(peer) else ())}
        hosts, last = set(self._dialling.values()), self._peerstore.reached_at(peer)
        return [
            address
            for address in sorted(record.addresses, key=lambda each: each != last)
            if self._dials.due(address, now) and (address in trusted or self._rumour_due(address, peer, hosts, now))
        ]

    async def run(self) -> None:
        """Dial and say hello until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._look_round()
                self._greet_some(nursery)
                self._dial_some(nursery)
                self._ask_some(nursery)
                self._visit_somebody(nursery)
                if not self.cut_off:
                    self._address_prober.start_some(nursery)
                with trio.move_on_after(self._context.config.redial_min_s * self._rng.uniform(0.75, 1.25)):
                    await self._woken.wait()

    def _look_round(self) -> None:
        """Try peers that the rings newly put beside us at once, even if they refused us before, each once in four
        seconds: it accepts a hello a second. Where there are more members than a peerstore holds, records are lost
        and learned again, and with each of them who belongs beside us changes; without the limit a peer that has no
        room for us would be asked each time, and charge us."""
        now, before = trio.current_time(), self._mesh.belonging
        self._context.engine.look_round(now)
        for peer in self._mesh.belonging - before:
            if self._forgiven.take(peer, now):
                self._refusals.succeeded(peer)

    def _greet_some(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        partners = self._context.engine.partners
        for peer in sorted(self._context.transport.peers):
            free = peer not in partners and peer not in self._greeting
            if free and self._hellos.due(peer, now) and self._has_room_for(peer, now):
                self._greeting.add(peer)
                nursery.start_soon(self._greet, peer)

    def _would_take(self, peer: PeerId, now: float) -> bool:
        """Return whether an answer of this peer would be of use. The operator's peers of another region may be all that
        is left of it after an outage."""
        return self._mesh.would_take(peer, now) or (peer in self._mesh.anchors and self._bridges.seeks(peer))

    def _has_room_for(self, peer: PeerId, now: float) -> bool:
        """Return whether we greet a connected peer. Who is connected only for a question is of no use as a bridge."""
        return self._mesh.dialable(peer, now) and (self._mesh.has_room_for(peer, now) or self._bridges.seeks(peer))

    def _dial_some(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        mine = self._bootstrap()
        bridging = self._bridges.wanted.difference(self._bridges.table)
        due = self._due(mine, None if self._mesh.has_places else self._mesh.called_for(now) | bridging)
        taken = ((address, peer) for address, peer in due if peer in bridging or self._would_take(peer, now))
        most = MAX_DIALS if self._context.transport.peers else MAX_DIALS_ALONE
        for address, peer in list(islice(taken, max(0, most - len(self._dialling)))):
            self._dialling[peer] = host_of(address)
            nursery.start_soon(self._dial, address, peer)

    def _ask_some(self, nursery: trio.Nursery) -> None:
        """Ask a neighbour, or a bridge, for more addresses before its next heartbeat, when we have places left and
        nobody to dial. The first members of a region have met nobody else than members of others."""
        now, kept = trio.current_time(), self._bridges.kept()
        met = (*self._mesh.table, *(peer for peer in self._bridges.table if peer in kept))
        due = [peer for peer in met if self._asks.due(peer, now) and peer not in self._greeting]
        if due and self._mesh.has_places and not self._dialling:
            peer = self._rng.choice(due)
            self._asks.failed(peer, now)  # each time more rarely
            self._greeting.add(peer)
            nursery.start_soon(self._greet, peer)

    def _visit_somebody(self, nursery: trio.Nursery) -> None:
        """Beyond a full mesh, once we have the neighbours that we look for: meet another member, then disconnect."""
        now = trio.current_time()
        if self._mesh.has_places or not self._mesh.wide or now < self._visit_at or self._dialling:
            return
        self._visit_at = now + VISIT_EVERY_S * self._context.engine.jitter()
        if due := self._due([], None):
            address, peer = self._rng.choice(due)
            self._dialling[peer] = host_of(address)
            self._greeting.add(peer)
            nursery.start_soon(self._visit, address, peer)

    async def _visit(self, address: str, peer: PeerId) -> None:
        try:
            answered = await self._dial(address, peer)
            if answered:
                await say_hello(self._context, peer)
        finally:
            self._greeting.discard(peer)

    def _due(self, mine: list[tuple[str, PeerId]], only: frozenset[PeerId] | None) -> list[tuple[str, PeerId]]:
        """Return addresses to try now, one for each peer: first peers that the rings put beside us, then `mine`, then
        those that we have reached before. `only`: only these peers, whatever free places there are."""
        now, connected = trio.current_time(), self._context.transport.peers
        chosen: dict[PeerId, str] = {}
        hosts = set(self._dialling.values())
        pairs = [*mine, *self._learned(only)]
        if self.cut_off:
            pairs = [pair for pair in pairs if pair[1] == self._via]
        for address, peer in pairs:
            free = peer not in connected and peer not in self._dialling and peer not in chosen
            ripe = self._pauses(peer).due(address, now) and self._refusals.due(peer, now)
            if not free or not ripe or not self._mesh.dialable(peer, now):
                continue
            known = self._trusted(peer) and address in self._peerstore.addresses(peer)
            known = known or address == self._proved_at(peer)
            if (address, peer) in mine or known or self._rumour_due(address, peer, hosts, now):
                chosen[peer] = address
                hosts.add(host_of(address))
        belonging, turns = self._mesh.belonging, self._turns(list(chosen))
        return sorted(
            [(address, peer) for peer, address in chosen.items()],
            key=lambda pair: (pair[1] not in belonging, turns[pair[1]]),
        )

    def _turns(self, peers: list[PeerId]) -> dict[PeerId, int]:
        """Return each peer's rank in its network, after our neighbours: the first of each network is dialled before any
        second one, or a crowd's many records would come before everybody else's. The operator's come first."""
        counted = Counter(map(self._mesh.group_of, self._mesh.table))
        turns = {}
        for peer in peers:
            group = self._mesh.group_of(peer)
            turns[peer] = -1 if peer in self._mesh.anchors else counted[group]
            counted[group] += 1
        return turns

    def _trusted(self, peer: PeerId) -> bool:
        return self._peerstore.standing(peer) >= RecordTrust.KEPT

    def _proved_at(self, peer: PeerId) -> str:
        """Return where the peer last proved its key to us; "" where it has not. No liar sends us there. Where we alone
        can dial, nobody else ends an outage between the two of us, which may outlast the peer's record here."""
        return self._peerstore.reached_at(peer) or self._given_up.get(peer, "")

    def _rumour_due(self, address: str, peer: PeerId, hosts: set[str], now: float) -> bool:
        host = host_of(address)
        return host not in hosts and self._hosts.due(host, now) and self._rumours.due(peer, now)

    def _bootstrap(self) -> list[tuple[str, PeerId]]:
        """Return the operator's addresses in a random order, so that not all nodes dial the first of the list."""
        addresses = dict(self._configured)
        path = self._context.config.peers_file
        for address in addresses_in(path)[:MAX_FILE_PEERS] if path else []:
            try:
                addresses[address] = peer_in(address)
            except LocalError as error:
                self._complain(address, str(error))
        self._operators = frozenset(addresses)
        self._context.engine.set_anchors(frozenset(addresses.values()))
        return self._shuffled(list(addresses.items()))

    def _learned(self, only: frozenset[PeerId] | None) -> list[tuple[str, PeerId]]:
        peers = [record.peer for record in self._peerstore.known()] if only is None else sorted(only)
        pairs = self._shuffled([(address, peer) for peer in peers for address in self._peerstore.addresses(peer)])
        # Of a peer's addresses the one that failed least: each gets its turn, however many there are.
        pairs = sorted(pairs, key=lambda pair: (-self._peerstore.standing(pair[1]), self._dials.failures(pair[0])))
        return [*pairs, *(pair for pair in self._hints.items() if only is None or pair[1] in only)]

    def _shuffled(self, pairs: list[tuple[str, PeerId]]) -> list[tuple[str, PeerId]]:
        self._rng.shuffle(pairs)
        return pairs

    def _complain(self, address: str, why: str) -> None:
        if address not in self._complained and len(self._complained) < MAX_FILE_PEERS:
            self._complained.add(address)
            self._context.warn(why)

    async def _dial(self, address: str, peer: PeerId, within_s: float | None = None) -> bool:
        """Dial an address; return whether the peer answered."""
        within_s = self._context.config.dial_timeout_s if within_s is None else within_s
        why = f"no answer within {within_s:g} s"
        try:
            if not self._context.engine.may_dial(address):
                raise TransportError("its relay is not of our region, which has a policy of its own")
            with trio.move_on_after(within_s) as scope:
                await self._context.transport.dial(address)
            if not scope.cancelled_caught:
                self._note_reached(address, peer)
                self._pauses(peer).succeeded(address)
                self._rumours.succeeded(peer)
                self._hosts.succeeded(host_of(address))
                self.lost.pop(peer, None)
                self._woken.beat()
                return True
        except GossipError as error:
            why = str(error)
        finally:
            del self._dialling[peer]
        self._failed(address, peer, why)
        return False

    def _note_reached(self, address: str, peer: PeerId) -> None:
        """Note the address. If the peer has dialled us meanwhile there may be only that connection: a probe shows the
        rest."""
        transport = self._context.transport
        if not transport.dialled_us(peer):
            self._context.engine.peer_reached(peer, address, transport.network_of(peer))

    def _failed(self, address: str, peer: PeerId, why: str) -> None:
        now = trio.current_time()
        self._pauses(peer).failed(address, now)
        if self._pauses(peer).failures(address) == 1 and address in self._operators:  # it may be mistyped
            self._context.engine.dial_failed(peer, f"{address}: {why}")
            self._context.perform()
        if address in self._hints:
            self._rumours.failed(peer, now)
            self._hosts.failed(host_of(address), now)
            if self._dials.failures(address) >= FORGET_AFTER:
                del self._hints[address]
        elif self._context.transport.peers and address in self._peerstore.addresses(peer):
            self._missed(address, peer, now)
        elif self._context.transport.peers and address not in self._operators:  # a lookup's: nobody we know
            self._rumours.failed(peer, now)
            self._hosts.failed(host_of(address), now)
        self._note_lost(peer)

    def _note_lost(self, peer: PeerId) -> None:
        ours = peer in self._mesh.belonging or peer in self._mesh.anchors
        if ours and self._context.transport.peers and self._failed_everywhere(peer):
            self.lost[peer] = None
            self.lost.move_to_end(peer)
            while len(self.lost) > MAX_LOST:
                self.lost.popitem(last=False)

    def _missed(self, address: str, peer: PeerId, now: float) -> None:
        """Note that a learned address does not answer, while we are not cut off ourselves."""
        if self._failed_everywhere(peer):
            self._context.engine.peer_unreachable(peer, now)
        if address != self._proved_at(peer):
            self._rumours.failed(peer, now)
            self._hosts.failed(host_of(address), now)
        worn = all(self._dials.failures(each) >= FORGET_AFTER for each in self._peerstore.addresses(peer))
        if worn or (not self._trusted(peer) and self._rumours.failures(peer) >= FORGET_AFTER):
            self._give_up(peer)

    def _give_up(self, peer: PeerId) -> None:
        if proved_at := self._proved_at(peer):
            self._given_up[peer] = proved_at
            self._given_up.move_to_end(peer)
            while len(self._given_up) > MAX_GIVEN_UP:
                self._given_up.popitem(last=False)
        self._context.engine.peer_given_up(peer)

    def _failed_everywhere(self, peer: PeerId) -> bool:
        return all(self._dials.failures(address) for address in self._peerstore.addresses(peer))

    async def _greet(self, peer: PeerId) -> None:
        try:
            if await say_hello(self._context, peer):
                self._hellos.succeeded(peer)
                self._refusals.succeeded(peer)
            else:  # not greeted again at once while connected, nor dialled again at once otherwise
                self._hellos.failed(peer, trio.current_time())
                self._refusals.failed(peer, trio.current_time())
        finally:
            self._greeting.discard(peer)
