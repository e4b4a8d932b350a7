"""The protocol's state machine: all that a node decides about others, with no clock, RNG or I/O of its own.

Events go in, actions come out. An event is a method: its name says what happened, and it is given `now` (seconds,
monotonic) where that matters. It updates the tables, and leaves actions (gossip/actions.py), which the service drains
and performs: tell the observer, close a connection, start or stop following a neighbour. A question changes nothing.
Methods that judge a peer's bytes raise RemoteError. The caller passes it to `offence`, the one place where a refusal is
counted, charged and told. Tables: at most `degree` neighbours, and the bounds named in the modules used.

The engine is made of parts. A task that works with one of them is given it when the service is built, and names it in
its signature. Nothing outside this file reaches through the engine to a part (decision 0053).
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Final, Protocol

from gossip.actions import Action, ActionQueue, Broadcast, Disconnect, WakeRegional, WakeSync
from gossip.core.api import Fetch, Head, LinkSpeed, NeighbourStatus, RegionLayout, RunInfo
from gossip.core.backoff import peer_in
from gossip.core.config import GossipConfig
from gossip.core.digests import digest_of
from gossip.core.envelope import EnvelopeKind, Scope, open_envelope, open_from, seal
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId
from gossip.core.messages import FindRequest, Hello, PauseRequest, ShiftRequest
from gossip.core.statements import (
    PeerRecord,
    SnapshotOffer,
    UpdateHeader,
    goodbye_statement,
    parse_regional,
    parse_snapshot_offer,
    parse_update_header,
    record_statement,
)
from gossip.core.work_limit import WorkLimit
from gossip.discovery.dht import KademliaNode
from gossip.discovery.peerstore import PeerStore, RecordTrust
from gossip.discovery.record_exchange import RecordExchange
from gossip.discovery.topology import agreed_edges, tag_of
from gossip.hellos.hello import HelloOutcomes, Hellos, HelloTerms
from gossip.hellos.hello_records import HelloRecords
from gossip.hellos.places import Places
from gossip.membership.invite import Role
from gossip.regions.bridges import Bridges
from gossip.regions.region_labels import RegionLabels, bound_to_none
from gossip.regions.regional_inbox import RegionalInbox
from gossip.regions.regional_models import RegionalModels
from gossip.regions.residency import Residency
from gossip.updates.announced_pauses import AnnouncedPauses, pause_request
from gossip.updates.audits import LOG_SHARE, LOG_SHARE_OF_REGION, Heard, LinkAudit
from gossip.updates.broadcast_validator import BroadcastValidator
from gossip.updates.exchange_times import ExchangeTimes
from gossip.updates.hash_chain import EquivocationError, Verdict
from gossip.updates.mesh import Mesh, MeshEvidence
from gossip.updates.neighbour import Neighbour, Work
from gossip.updates.peer_score import PeerScores
from gossip.updates.publisher import Payload, Publisher
from gossip.updates.pull_priority import PullPriority
from gossip.updates.roles import Roles
from gossip.updates.round_members import RoundMembers
from gossip.updates.seen import Seen
from gossip.updates.shift_claims import ShiftClaims
from gossip.updates.standing import Standing
from gossip.updates.traffic import Traffic

MAX_SEEN: Final = 4096
"""Broadcasts remembered by digest: 20 s of 100 peers that announce twice a second. 128 KiB."""

MODEL_AGE: Final = 2
"""The age in links of the oldest model that a newcomer takes: half of what staleness allows. So it can wait for the
others' models, and the neighbour serves one snapshot to all newcomers for some rounds (updates/publisher.py)."""

TWIN_REFUSALS: Final = 3
"""Refusals of our newest link as an old one, with no neighbour's welcome between them, that show another process with
our key. One comes of a connection that was held up, and one liar alone cannot keep the others from welcoming us."""

TWIN: Final = (
    "another node runs with our identity, from a copy of this folder or of its identity.key: the one that was started "
    "last is heard, and the other trains alone; stop one of them, or give it a new folder (and in a private swarm an "
    "invite of its own)"
)
"""What the operator of either is told."""

JITTER_LEAST: Final = 0.75
JITTER_MOST: Final = 1.25
"""Bounds of the factor by which each pause of periodic work is drawn."""


class Connections(Protocol):
    """What a transport knows of who is connected (gossip/transport/base.py)."""

    @property
    def peers(self) -> frozenset[PeerId]:
        """Peers with a live connection."""

    def network_of(self, peer: PeerId) -> str | None:
        """The network that a connection to `peer` leads to; see core/networks.py."""

    def dialled_us(self, peer: PeerId) -> bool:
        """Whether a live connection to `peer` is one that it dialled."""


class NoConnections:
    """Connections of an engine that has no transport: there are none."""

    peers: frozenset[PeerId] = frozenset()

    def network_of(self, peer: PeerId) -> str | None:
        """Return None: no network is known."""
        return None

    def dialled_us(self, peer: PeerId) -> bool:
        """Return False: nobody dialled us."""
        return False


class Engine:
    """All that one node knows of its swarm. Parts that tasks are given: `mesh`, `bridges`, `regional_models`,
    `residency`, `peerstore`, `dht`, `publisher`, `pulls`, `traffic`, `exchange_times`, `peer_scores`. All other public
    fields are only read from outside."""

    def __init__(
        self,
        *,
        identity: Identity,
        config: GossipConfig,
        run: RunInfo,
        rng: random.Random,
        roles: Roles | None = None,
        liars: int = 1,
        withstood_by: int = 3,
        connections: Connections = NoConnections(),
        layout: RegionLayout = RegionLayout(),
        bound: Callable[[PeerId], frozenset[str]] = bound_to_none,
    ) -> None:
        """`liars`: how many liars may be among the neighbours, and among the members of a region that publish its
        model. `withstood_by`: how few members, own model included, withstand these in a round; 0: no number does.
        `bound`: the regions that a member's certificates allow, none where they allow all."""
        self.me = identity.peer_id
        self._connections = connections
        self.scope = Scope(swarm=config.named, run=run.run_id)
        self._roles = roles or Roles(self.me)
        self._actions = ActionQueue()
        self.peer_scores = PeerScores(self._actions)
        self.stats = self.peer_scores.stats
        self.peerstore = PeerStore(self._takes_record, self._needs_record) if layout.own else PeerStore()
        self._vouched: frozenset[PeerId] = frozenset()
        """Members of whom so many neighbours tell that not all of these lie, as of the last look round."""
        self._of_region = 0
        """How many members of our region there surely are, as of then; 0 in a run without regions."""
        self._labels = RegionLabels(self.peerstore.region_of, bound if layout.own else bound_to_none, self.peer_scores)
        self.publisher = Publisher(identity, self.scope, config.history, config.max_payload_bytes)
        self.bridges = Bridges(self.me, self.scope, layout, self._labels.region_of, self._is_met, self._met_changes)
        at_home = {peer_in(config.via)} if config.via and config.via_region == layout.own else set()
        self.residency = Residency(layout, self._labels.region_of, at_home)
        self.regional_models = RegionalModels(self.me, self.scope, self.bridges, liars, self._standing_of)
        self.mesh = Mesh(
            me=self.me,
            scope=self.scope,
            degree=config.degree,
            rng=rng,
            scores=self.peer_scores.scores,
            actions=self._actions,
            roles=self._roles,
            evidence=MeshEvidence(
                standing=self._standing_of,
                network=self._network_of,
                dialled_us=connections.dialled_us,
                ours=self.bridges.is_ours,
            ),
        )
        self.neighbours: Mapping[PeerId, Neighbour] = self.mesh.table
        self._pauses = AnnouncedPauses(self.neighbours)
        self._shifts = ShiftClaims(self.neighbours)
        self.pulls = PullPriority(lambda: self.neighbours, self._actions)
        self._round_members = RoundMembers(
            liars=liars,
            withstood_by=withstood_by,
            max_staleness=config.max_staleness,
            probation_rounds=config.probation_rounds,
        )
        self.exchange_times = ExchangeTimes(self.neighbours)
        self.traffic = Traffic(self.stats, self.publisher, self.neighbours, self.exchange_times, liars)
        self.layers = self.traffic.layers
        self._work = WorkLimit(self.neighbours.keys())
        self._identity = identity
        self._liars = liars
        self._config = config
        self._run = run
        self._rng = rng
        self._seen = Seen(MAX_SEEN)
        self._audit = LinkAudit(LOG_SHARE_OF_REGION if layout.own else LOG_SHARE)
        self._validator = BroadcastValidator(self.peer_scores, self._roles, self.offence)
        self._regional_inbox = RegionalInbox(
            self.regional_models,
            max_payload_bytes=config.max_payload_bytes,
            region_of=self._labels.region_of,
            residency=self.residency,
            is_here=self._is_here,
            validator=self._validator,
            peer_scores=self.peer_scores,
            offence=self.offence,
        )
        dialable = self.mesh.dialable
        exchange = RecordExchange(self.peerstore, self.scope, dialable, connections.network_of, self.neighbours.keys())
        self._hello_records = HelloRecords(self.peerstore, self.mesh, self.bridges, exchange, rng)
        self._places = Places(
            mesh=self.mesh,
            bridges=self.bridges,
            roles=self._roles,
            residency=self.residency,
            actions=self._actions,
            silence_s=config.silence_s,
        )
        self._hellos = Hellos(
            HelloTerms(scope=self.scope, genesis=run.genesis),
            mesh=self.mesh,
            roles=self._roles,
            places=self._places,
            records=self._hello_records,
            outcomes=HelloOutcomes(
                own=self._own_words,
                banned=self.is_banned,
                offence=self.offence,
                proof=self._audit.proof_against,
                learn_link=self._learn_from_hello,
            ),
            actions=self._actions,
        )
        self.dht = KademliaNode(
            me=self.me,
            scope=self.scope,
            genesis=run.genesis,
            peerstore=self.peerstore,
            dialable=dialable,
            network_of=connections.network_of,
        )
        self._warned_of_twin = False
        self._too_old_in_a_row = 0
        self.fetch: Fetch = "updates"
        """What is fetched from the neighbours: updates, models or nothing."""

    def drain(self) -> list[Action]:
        """Return the actions that are to be performed, in order, and forget them."""
        return self._actions.drain()

    # -- broadcasts

    def on_message(self, forwarder: PeerId, data: bytes, now: float) -> bool:
        """Handle a broadcast. Return True to pass it on; False when it is bad, was passed on a moment ago, or concerns
        nobody around here (updates/audits.py)."""
        if self.is_banned(forwarder, now):
            return False
        name = digest_of(data)
        if (passed_on := self._heard_again(name, forwarder, now)) is not None:
            return passed_on
        try:
            envelope = open_envelope(data, self.scope)
            if envelope.raw != data:  # in another form of msgpack: the same statement all the same
                name = digest_of(envelope.raw)
                if (passed_on := self._heard_again(name, forwarder, now)) is not None:
                    return passed_on
            if envelope.statement.kind is EnvelopeKind.REGIONAL:
                if self._regional_inbox.hear(name, forwarder, parse_regional(envelope), now):
                    self._actions.add(WakeRegional())
                return False  # members pass it on once they have its blob
            link = self._check_link(parse_update_header(envelope))
        except RemoteError as error:
            self.offence(forwarder, error, now)
            return False
        is_neighbour = link.peer in self.neighbours
        if self.bridges.is_from_elsewhere(link.peer, forwarder, is_neighbour=is_neighbour):
            self.bridges.says_round(link.peer, link.body.round)
            return False  # nobody here follows it
        self._seen.add(name, link.peer, now)
        return self._validator.listens(forwarder, link.peer, now) and self._on_broadcast_link(forwarder, link, now)

    def _heard_again(self, name: Digest, forwarder: PeerId, now: float) -> bool | None:
        """Handle a broadcast that was heard before; return whether to pass it on. None: it was not."""
        if self.regional_models.has_it(name, forwarder):
            if self.regional_models.is_awaited(name):
                self._actions.add(WakeRegional())
            return False
        signer = self._seen.signer(name)
        if signer is None:
            return None
        listens = self._validator.listens(forwarder, signer, now)
        return listens and signer in self.neighbours and self._seen.passes_again(name, now)

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        """Return the connected members of other regions to which a broadcast is of no use: a link that we pass on, and
        a model of a region that is not beside theirs. Of our own links they read the round. A model that is said again
        is of no use to who has said it too."""
        if not self.bridges.own:
            return frozenset()
        name = digest_of(data)
        region = self.regional_models.region_of(name)
        if region is None and self._seen.signer(name) in (None, self.me):
            return frozenset()
        elsewhere = (peer for peer in self._connections.peers if not self.bridges.is_ours(peer))
        without = frozenset(peer for peer in elsewhere if region is None or not self.bridges.is_needed(region, peer))
        return without | self.regional_models.have_heard(name)

    def _on_broadcast_link(self, forwarder: PeerId, link: UpdateHeader, now: float) -> bool:
        if link.peer == self.me:
            self._look_for_twin(link)
        neighbour = self.neighbours.get(link.peer)
        heard = self._hear(link, now)
        if heard.against is not None:  # the signer's offence; others should see it too, so it is passed on
            # A stranger that never comes to us takes no place among the banned: keys cost nothing.
            if self._audit.followed(link.peer) or link.peer in self._connections.peers:
                self.offence(link.peer, EquivocationError(heard.against.raw, link.raw), now)
            return True
        if neighbour is None or heard.too_soon:
            return heard.passes
        try:
            replayed = self._take(neighbour, link, now) is Verdict.REPLAYED
        except RemoteError as error:
            self.offence(link.peer, error, now)
            return True
        if replayed and not heard.late:  # counted, but not charged: who does not follow the signer acts in good faith
            self.peer_scores.refuse(forwarder, RemoteError(Reason.REPLAYED, f"an old link of {link.peer}"))
        return heard.late or not replayed

    def _takes_record(self, record: PeerRecord) -> bool:
        return self._labels.takes(record)

    def _needs_record(self, record: PeerRecord) -> bool:
        return record.region == self.bridges.own or record.region in self.bridges.adjacent

    def _is_here(self, peer: PeerId) -> bool:
        return peer in self.neighbours or peer in self._connections.peers

    def regional_refused(self, peer: PeerId, error: RemoteError, now: float) -> None:
        """Charge the author of a region's model that is not what it says, or that the runtime could not read."""
        self._regional_inbox.charge_author(peer, error, now)

    def _hear(self, link: UpdateHeader, now: float) -> Heard:
        """Compare a link with what is known of its signer, neighbour or not."""
        follows = link.peer in self.neighbours
        heard = self._audit.hear(link, follows=follows, members=self.swarm_size, now=now)
        for each in heard.shows:
            self._actions.add(Broadcast(raw=each.raw))
        if heard.too_soon:
            self.peer_scores.refuse(link.peer, RemoteError(Reason.FLOODED, "it begins anew again and again"))
        return heard

    def _check_link(self, link: UpdateHeader) -> UpdateHeader:
        if link.body.genesis is not None and link.body.genesis != self._run.genesis:
            raise RemoteError(Reason.WRONG_MODEL, "another initial model")
        return link

    def _learn(self, neighbour: Neighbour, link: UpdateHeader, now: float) -> Verdict:
        """Take in a link that a neighbour itself gave us. Raises EquivocationError and other RemoteErrors."""
        heard = self._hear(link, now)
        if heard.against is not None:
            raise EquivocationError(heard.against.raw, link.raw)
        return Verdict.DUPLICATE if heard.too_soon else self._take(neighbour, link, now)

    def _take(self, neighbour: Neighbour, link: UpdateHeader, now: float) -> Verdict:
        largest = max([link.body.size, *(layer.size for layer in link.body.layers)])
        if largest > self._config.max_payload_bytes:
            raise RemoteError(Reason.OVERSIZE, f"a payload of {largest} bytes is announced")
        verdict = neighbour.chain.learn(link)
        if self.fetch == "nothing" and verdict is Verdict.NEWS:
            self._round_members.contributed(link.peer)
        self._wake(neighbour, now)
        return verdict

    def _wake(self, neighbour: Neighbour, now: float) -> None:
        """Wake a neighbour's follower, and start measuring how long it takes to fetch and apply what is new."""
        announced, applied = neighbour.chain.announced, neighbour.chain.applied
        if announced is not None and (applied is None or announced.place > applied.place):
            self.exchange_times.heard(neighbour.peer, announced.place, now)
        self._actions.add(WakeSync(peer=neighbour.peer))

    def _look_for_twin(self, link: UpdateHeader) -> None:
        newest = self.publisher.newest
        if newest is not None and link.place > newest.place:
            self._warn_of_twin()

    def _warn_of_twin(self) -> None:
        """Tell the operator, once, that another process signs with our key."""
        if not self._warned_of_twin:
            self._warned_of_twin = True
            self._actions.tell("warning", self.me, detail=TWIN)

    # -- hellos

    def set_record(self, addresses: tuple[str, ...], beside: tuple[bytes, ...], *, epoch: int, version: int) -> None:
        """Sign the record of our addresses and of our neighbours' tags. Only trainers have a record."""
        if not self._roles.publishes:
            return
        statement = record_statement(
            epoch=epoch, version=version, addresses=addresses, beside=beside, region=self.bridges.own
        )
        self.dht.record = seal(self._identity, self.scope, statement).raw

    def hello_for(self, peer: PeerId, now: float) -> bytes:
        """Return our hello to `peer`."""
        return self._hellos.to(peer, now)

    def on_hello(self, peer: PeerId, raw: bytes, now: float) -> bytes:
        """Handle a peer's hello; return ours as the answer. Raises RemoteError."""
        return self._hellos.answer(peer, raw, now)

    def on_hello_answer(self, peer: PeerId, raw: bytes, now: float) -> None:
        """Handle the answer to our hello: both admit each other, or the connection is of no use. Raises RemoteError."""
        self._hellos.take_answer(peer, raw, now)
        if peer in self.neighbours:  # others need not have read our link
            self._too_old_in_a_row = 0

    @property
    def met_bootstrap(self) -> bool:
        """Whether one of the operator's peers is a bootstrap node."""
        return self._hellos.met_bootstrap

    def _own_words(self) -> tuple[bytes, bytes]:
        """Return what a hello says of ourselves: our newest link and our record."""
        newest = self.publisher.newest if self._roles.publishes else None
        return b"" if newest is None else newest.raw, self.dht.record

    def _learn_from_hello(self, peer: PeerId, hello: Hello, now: float) -> None:
        neighbour = self.neighbours.get(peer)
        if neighbour is not None:
            neighbour.heard_at = now
            neighbour.neighbours = hello.neighbours
        if hello.link and (neighbour is not None or peer in self.bridges.table):
            link = self._check_link(parse_update_header(open_from(hello.link, self.scope, peer, EnvelopeKind.LINK)))
            if neighbour is None:
                self.bridges.says_round(peer, link.body.round)
            elif self._learn(neighbour, link, now) is Verdict.REPLAYED:
                raise RemoteError(Reason.REPLAYED, "a hello with an old link")

    def hello_refused(self, peer: PeerId, refusal: RemoteError) -> None:
        """Count a peer's refusal of our hello under its reason, without a charge, and drop that peer.

        Warns of another process with our key where one after another says that our newest link is an old one. libp2p
        drops what others forward under our own name, so nothing but these refusals tells of it.
        """
        self.peer_scores.refuse(peer, refusal)
        self._too_old_in_a_row += refusal.reason is Reason.REPLAYED
        if self._too_old_in_a_row >= TWIN_REFUSALS:
            self._warn_of_twin()
        self.mesh.drop(peer, f"it refused our hello: {refusal}")

    # -- who comes and who goes

    def peer_connected(self, peer: PeerId, now: float) -> bool:
        """Handle a new connection. Return True to greet the peer; False when it is banned, and is disconnected."""
        banned = self.is_banned(peer, now)
        if banned:
            self.mesh.drop(peer, "banned")
        return not banned

    def peer_lost(self, peer: PeerId, now: float) -> None:
        """Handle the loss of the last connection to a peer."""
        self._roles.lose(peer)
        self.bridges.lose(peer)
        self._hello_records.forget(peer)
        self.regional_models.lose(peer)
        self.mesh.vanish(peer, "the connection is lost", now)

    def heard(self, peer: PeerId, now: float) -> None:
        """Note a sign of life of a peer that nobody else could have given."""
        self._roles.heard(peer, now)
        self.bridges.heard(peer, now)
        neighbour = self.neighbours.get(peer)
        if neighbour is not None:
            neighbour.heard_at = now

    def fell_silent(self, peer: PeerId, now: float) -> None:
        """Drop a neighbour, or a bridge, that was not heard of for too long."""
        self.mesh.vanish(peer, "it fell silent", now)
        self.bridges.lose(peer)
        self._actions.add(Disconnect(peer=peer))

    def let_go(self, peer: PeerId) -> None:
        """End the connection to a bridge that neither side needs."""
        self._places.let_go(peer)

    def look_round(self, now: float) -> None:
        """Draw the rings anew from all peers whose record has an address: those that we have verified and, to know whom
        to dial, those that others named. Call it as time passes."""
        known = dict.fromkeys(record.peer for record in (*self.peerstore.established(), *self.peerstore.known()))
        there = [peer for peer in known if self._roles.trains(peer) and self.peerstore.addresses(peer)]
        for peer in [peer for peer in self.neighbours if not self.bridges.is_ours(peer)]:
            self.mesh.drop(peer, "it is of another region")
        self._vouched = self._hello_records.vouched(self._liars + 1)
        partners = self.partners
        dialable = {*partners, *(peer for peer in there if self.mesh.dialable(peer, now))}
        self.bridges.look_round(dialable, lambda peer: peer in partners or self.mesh.is_there(peer, now))
        self._of_region = sum(map(self._is_sure, self.bridges.members_of(self.bridges.own))) if self.bridges.own else 0
        self.mesh.look_round((peer for peer in there if self.bridges.is_ours(peer)), now)

    def _standing_of(self, peer: PeerId) -> RecordTrust:
        """Return how far a peer's record is trusted when places are given; a circuit proves no address."""
        standing = self.peerstore.standing(peer)
        if standing is RecordTrust.VERIFIED and self.peerstore.relayed(peer):
            return RecordTrust.FIRST_HAND
        return standing

    def _is_met(self, peer: PeerId) -> bool:
        return self._standing_of(peer) >= RecordTrust.FIRST_HAND or peer in self._vouched

    def _is_sure(self, peer: PeerId) -> bool:
        """Return whether we, or a neighbour that does not lie, have reached a member where it says it is."""
        reached = self._standing_of(peer) is RecordTrust.VERIFIED
        return peer == self.me or peer in self._vouched or reached

    def _met_changes(self) -> int:
        return self.peerstore.met_changes

    def _network_of(self, peer: PeerId) -> str | None:
        """Return the network of a peer as far as it is known; "" for a connected peer of which nothing is known."""
        if self.peerstore.addresses(peer):
            return self.peerstore.network_of(peer)
        network = self._connections.network_of(peer)
        return network if network is not None or peer in self._connections.peers else ""

    def goodbye(self) -> bytes:
        """Admit nobody from now on, since we are about to leave. Return our signed goodbye."""
        self.mesh.leaving = True
        newest = self.publisher.newest
        epoch, seq = newest.place if newest else (0, 0)
        return seal(self._identity, self.scope, goodbye_statement(epoch=epoch, seq=seq)).raw

    def left(self) -> list[PeerId]:
        """Drop all neighbours, since we leave. Return who they were, so that goodbye can be said to them."""
        peers = [*self.neighbours, *self.bridges.table]
        for peer in peers:
            self.mesh.lose(peer, "we leave")
            self.bridges.lose(peer)
        return peers

    def on_goodbye(self, peer: PeerId, raw: bytes, now: float) -> None:
        """Handle a peer's goodbye: it leaves the run. Raises RemoteError."""
        open_from(raw, self.scope, peer, EnvelopeKind.GOODBYE)
        self.peerstore.forget(peer)
        self._roles.lose(peer)
        self.bridges.lose(peer)
        self.mesh.depart(peer, now)

    # -- pauses

    def on_pause(self, peer: PeerId, request: PauseRequest, now: float) -> None:
        """Handle a neighbour's word that it is paused. Raises RemoteError."""
        neighbour = self.neighbours[peer]
        link = self._check_link(parse_update_header(open_from(request.link, self.scope, peer, EnvelopeKind.LINK)))
        if self._learn(neighbour, link, now) is Verdict.REPLAYED:
            raise RemoteError(Reason.REPLAYED, "a pause after an old link")
        self._pauses.say(peer, link.place, request.seconds, now)

    def pause_after(self, seconds: float | None) -> PauseRequest | None:
        """Return our word that we are paused for so long (None: unknown) after our newest link; None where there is no
        link: nobody waits for us."""
        newest = self.publisher.newest
        return None if newest is None else pause_request(newest.raw, seconds)

    def pauses_said(self, now: float) -> dict[PeerId, float | None]:
        """Return the neighbours that say that they are paused, and for how many seconds more (None: unknown)."""
        return self._pauses.returns(now)

    # -- shifts of data

    def on_shift(self, peer: PeerId, request: ShiftRequest, now: float) -> None:
        """Handle a neighbour's claim that its data have shifted. Raises RemoteError."""
        neighbour = self.neighbours[peer]
        link = self._check_link(parse_update_header(open_from(request.link, self.scope, peer, EnvelopeKind.LINK)))
        if self._learn(neighbour, link, now) is Verdict.REPLAYED:
            raise RemoteError(Reason.REPLAYED, "a shift as of an old link")
        self._shifts.say(peer, link.body.round)

    def shift_word(self) -> ShiftRequest | None:
        """Return our claim that our data have shifted, as of our newest link; None where there is none."""
        newest = self.publisher.newest
        return None if newest is None else ShiftRequest(link=newest.raw)

    def shifts_said(self) -> dict[PeerId, int]:
        """Return the neighbours that say that their data have shifted, and by which round each said so last."""
        return self._shifts.rounds()

    # -- addresses

    def set_anchors(self, peers: frozenset[PeerId]) -> None:
        """Set the peers that the operator named: they have a right to a place."""
        self.mesh.anchors = peers

    def peer_reached(self, peer: PeerId, address: str, network: str | None) -> None:
        """Note that a peer proved its key at this address, in this network (None: through a relay)."""
        self.peerstore.reached(peer, address, network)

    def peer_found(self, peer: PeerId) -> None:
        """Note that a lookup found a peer at the address of a newer record: it may have a place on the rings again."""
        self.mesh.present(peer)

    def peer_unreachable(self, peer: PeerId, now: float) -> None:
        """Note that a peer answers at none of its addresses: others take its places on the rings for a while."""
        self.mesh.absent(peer, now)

    def peer_given_up(self, peer: PeerId) -> None:
        """Drop the record of a peer that has not answered for too long."""
        self.peerstore.forget(peer)

    def dial_failed(self, peer: PeerId, detail: str) -> None:
        """Tell the operator that an address from the configuration could not be dialled."""
        self._actions.tell("dial_failed", peer, detail=detail)

    def on_find(self, peer: PeerId, request: FindRequest, now: float) -> tuple[bytes, list[bytes]]:
        """Answer a peer that asks who is nearest to a place: our record and theirs. Raises RemoteError."""
        self._roles.check_find(peer, request)
        return self.dht.on_find(peer, request, now)

    def to_probe(self, now: float) -> list[PeerRecord]:
        """Return the records to be tried before they are passed on: those of peers that gave them to us and have not
        answered at any of their addresses. Each of these peers is connected, or sent a find request lately."""
        there = self._connections.peers
        unproven = self.peerstore.of_standing(RecordTrust.FIRST_HAND)
        return [record for record in unproven if record.peer in there or self.dht.awaits(record.peer, now)]

    def known_graph(self, now: float) -> dict[bytes, frozenset[bytes]]:
        """Return who is a neighbour of whom, where both say so in their newest records; ourselves included."""
        rows = {
            tag_of(record.peer): record.beside
            for record in self.peerstore.known()
            if record.peer in self.neighbours or self.mesh.is_there(record.peer, now)
        }
        return agreed_edges({**rows, tag_of(self.me): self.beside})

    @property
    def swarm_size(self) -> int:
        """How many members the swarm has, or our region, ourselves included: as far as our places on the rings say, and
        at least those that there surely are."""
        return max(self.mesh.rings.members, self._of_region)

    @property
    def peers_known(self) -> int:
        """How many peers' records are held, of neighbours and others."""
        return len(self.peerstore)

    # -- who is with us

    def neighbour(self, peer: PeerId) -> Neighbour | None:
        """Return what is known of a neighbour; None for a peer that is not one."""
        return self.neighbours.get(peer)

    @property
    def listeners(self) -> Collection[PeerId]:
        """Observers and relays that fetch from us."""
        return self._roles.listeners

    def may_dial(self, address: str) -> bool:
        """Return whether an address may be dialled: where our region has a policy, a circuit to one of its members only
        through one of its relays."""
        return self.residency.may_dial(address)

    def serves_neighbour(self, peer: PeerId) -> bool:
        """Return whether a neighbour is still served: it names no other region by now than one with a policy."""
        return self.residency.serves(peer)

    def serves(self, peer: PeerId) -> bool:
        """Whether a peer may fetch from us: neighbours, listeners, and members of other regions that are connected."""
        return peer in self.neighbours or peer in self._roles.listeners or peer in self.bridges.table

    @property
    def partners(self) -> frozenset[PeerId]:
        """Neighbours, and members of other regions that are connected: with these we stay in touch."""
        return self._places.partners

    @property
    def companions(self) -> frozenset[PeerId]:
        """Peers that may be asked for a favour: neighbours, and members with the role of a relay."""
        return frozenset(self.neighbours).union(self._roles.relays())

    @property
    def beside(self) -> tuple[bytes, ...]:
        """The tags of our neighbours, in order."""
        return tuple(sorted(tag_of(peer) for peer in self.neighbours))

    @property
    def tracked_neighbours(self) -> int:
        """How many neighbours have an estimate that the runtime tracks."""
        return sum(neighbour.tracked for neighbour in self.neighbours.values())

    def status(self, now: float) -> dict[PeerId, NeighbourStatus]:
        """Return the present state of every neighbour; staleness is against our own newest round."""
        ours = self.publisher.newest.body.round if self.publisher.newest else 0
        return {
            peer: it.status(
                ours=ours,
                theirs=self.round_of(it),
                score=self.peer_scores.scores.points(peer, now),
                address=next(iter(self.peerstore.addresses(peer)), ""),
            )
            for peer, it in self.neighbours.items()
        }

    def link_speeds(self, now: float) -> dict[PeerId, LinkSpeed]:
        """Return how fast updates go to each neighbour and come from it."""
        return {peer: self.traffic.speeds.of(peer, now) for peer in self.neighbours}

    @property
    def role(self) -> Role | None:
        """Our own role; in an open swarm everybody is a trainer. None: our membership has ended."""
        return self._roles.ours

    # -- our own chain

    def check_publishes(self) -> None:
        """Raise LocalError where our role publishes nothing."""
        if not self._roles.publishes:
            raise LocalError(f"a member of role {self.role or 'none'} publishes nothing")

    def begin_epoch(self, *, epoch: int, round: int, base: Payload | Digest, now: float) -> None:
        """Begin a chain at `round`, from the genesis (its digest) or from a snapshot. Raises LocalError on an old
        epoch, and where our role publishes nothing."""
        self.check_publishes()
        self.publisher.begin(epoch=epoch, round=round, base=base)
        self._round_members.chain_began(now)

    def publish(
        self,
        *,
        round: int,
        codec: str,
        payload: Payload,
        steps: int,
        tokens: int,
        state: Payload | None,
        layers: Sequence[tuple[str, Payload]] = (),
        now: float,
    ) -> None:
        """Publish the runtime's next delta, marked with `state` if there is one. Raises LocalError before the first
        epoch, or on a payload that cannot be sent."""
        link = self.publisher.extend(
            round=round, codec=codec, payload=payload, steps=steps, tokens=tokens, state=state, layers=layers
        )
        self.layers.published()
        self.exchange_times.published(link.address, now)

    def on_blob_asked(self, peer: PeerId, address: Digest) -> None:
        """Handle a request for a blob of ours. Raises RemoteError for a refinement that has no place for the edge to
        `peer`; of whom it is served, ours is fetched."""
        if (layer := self.publisher.layer_at(address)) > 0:
            if not self.layers.asked(peer, layer):
                raise RemoteError(Reason.UNAVAILABLE, "the link has no time for more refinements")
            self._actions.add(WakeSync(peer=peer))

    def all_delivered(self) -> bool:
        """Return whether every neighbour has been sent the whole of our newest payload."""
        return self.traffic.all_delivered()

    @property
    def head(self) -> Head:
        """Our newest link. Raises LocalError before the first epoch."""
        return self.publisher.head()

    # -- the operator

    def warn(self, message: str) -> None:
        """Tell the operator of something that is no peer's offence."""
        self._actions.tell("warning", self.me, detail=message)

    def tell_reachability(self, words: str) -> None:
        """Tell the operator whether others can dial us."""
        self._actions.tell("reachability", self.me, detail=words)

    def jitter(self) -> float:
        """Return a factor for periodic work, so that no two nodes stay in step."""
        return self._rng.uniform(JITTER_LEAST, JITTER_MOST)

    # -- catching up

    def next_work(self, peer: PeerId, now: float) -> Work | None:
        """Return what to fetch from a neighbour now. Raises EquivocationError."""
        neighbour = self.neighbours.get(peer)
        if neighbour is None or self.fetch == "nothing":
            return None
        return neighbour.next_work(now) if self.fetch == "updates" else neighbour.next_model(now, behind=MODEL_AGE)

    def set_fetch(self, fetch: Fetch, now: float) -> None:
        """Set what is fetched from now on. A change from or to "nothing" voids what is held of the neighbours."""
        if "nothing" in (fetch, self.fetch) and fetch != self.fetch:
            for neighbour in self.neighbours.values():
                neighbour.begin_anew(now)
        self.fetch = fetch
        self._wake_all(now)

    def _wake_all(self, now: float) -> None:
        for neighbour in self.neighbours.values():
            self._wake(neighbour, now)

    def on_links(self, peer: PeerId, raws: tuple[bytes, ...], now: float) -> None:
        """Handle the answer to FetchHeaders. Raises RemoteError."""
        neighbour = self.neighbours.get(peer)
        if neighbour is None:
            return
        for raw in raws:
            link = parse_update_header(open_from(raw, self.scope, peer, EnvelopeKind.LINK))
            if self._learn(neighbour, self._check_link(link), now) is Verdict.REPLAYED:
                raise RemoteError(Reason.REPLAYED, "old links in answer to a request")
        neighbour.links_arrived(now)

    def on_offer(self, peer: PeerId, raw: bytes, at_least: tuple[int, int]) -> SnapshotOffer:
        """Handle the answer to FetchSnapshot; return what is offered. Raises RemoteError."""
        offer = parse_snapshot_offer(open_from(raw, self.scope, peer, EnvelopeKind.OFFER))
        if offer.size > self._config.max_payload_bytes:
            raise RemoteError(Reason.OVERSIZE, f"a snapshot of {offer.size} bytes is offered")
        neighbour = self.neighbours.get(peer)
        if neighbour is not None:
            neighbour.chain.check_offer(offer)
        if offer.place < at_least:
            raise RemoteError(Reason.STALE, "a snapshot older than the one asked for")
        return offer

    def accepted(self, what: UpdateHeader | SnapshotOffer, now: float) -> None:
        """Note that the runtime has applied an update."""
        self.stats.updates_accepted += 1
        neighbour = self.neighbours.get(what.peer)
        if neighbour is not None:
            neighbour.accepted(what)
            self._round_members.contributed(what.peer)
        if isinstance(what, UpdateHeader):
            self.layers.applied(what, now)
        else:
            self.layers.void(what.peer)
        delta = isinstance(what, UpdateHeader) and what.body.kind == "delta"
        self.exchange_times.applied(what.peer, what.place, now, delta=delta)

    def rejected(self, what: UpdateHeader | SnapshotOffer, error: RemoteError, now: float) -> None:
        """Charge the sender of an update that the runtime refused."""
        neighbour = self.neighbours.get(what.peer)
        if neighbour is not None:
            neighbour.rejected(what, error.reason, now)
        self.layers.void(what.peer)
        self.offence(what.peer, error, now)

    def trained(self, encode_s: float, now: float) -> None:
        """Note that we trained a round and took so many seconds to encode its update: neighbours held back may go
        on."""
        held_back = [neighbour for peer, neighbour in self.neighbours.items() if self._work.pause(peer, now) > 0]
        self._work.trained(encode_s)
        for neighbour in held_back:  # the others wait for nothing that this changes
            self._wake(neighbour, now)

    def update_read(self, peer: PeerId, seconds: float, now: float) -> None:
        """Note how many seconds of computing the runtime took to read an update of a peer."""
        self._work.spend(peer, seconds, now)

    def read_seconds(self) -> dict[PeerId, float]:
        """Return the seconds of computing that each neighbour's updates have taken since it became one."""
        return self._work.spent()

    def hold_back(self, peer: PeerId, now: float) -> float:
        """Return for how many seconds nothing more is fetched from a neighbour, because reading its updates took too
        long; 0: go on. Tells the observer of it now and then."""
        pause = self._work.pause(peer, now)
        if pause > 0 and (complaint := self._work.complaint(peer, now)) is not None:
            self._actions.tell("throttled", peer, detail=complaint)
        return pause

    # -- rounds

    def seated_of(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return, of these, the established peers, and of those on probation as many as there may be liars."""
        return self._round_members.seated(peers)

    def seated(self) -> dict[PeerId, Neighbour]:
        """Return the neighbours that count in a round, and in the vote on the swarm's round."""
        return {peer: self.neighbours[peer] for peer in self.seated_of(self.neighbours)}

    def standing(self, round: int, now: float) -> Standing:
        """Return what each neighbour is for `round`."""
        seated = self.seated()
        swarm, paused = self._swarm_round_among(seated, now), self.paused(round, now)
        return self._round_members.standing(round, self._rounds_of(seated), swarm=swarm, paused=paused, now=now)

    def _rounds_of(self, seated: Mapping[PeerId, Neighbour]) -> dict[PeerId, int | None]:
        return {peer: self.round_of(it) for peer, it in seated.items()}

    @property
    def least_members(self) -> int:
        """How few members, own model included, a round has to have where one of this run withstood the liars."""
        return self._round_members.least_members

    def paused(self, round: int, now: float) -> frozenset[PeerId]:
        """Return the neighbours that are not waited for: those that have said that they are paused, and have not
        announced this round, and those that we have chosen not to wait for."""
        paused = self._pauses.excused(round, now)
        return paused | self.pulls.unawaited(paused)

    def fetch_first(self, first: Set[PeerId] | None, *, awaited: Set[PeerId], least: int) -> None:
        """Set from whom is fetched first, and for whom of them rounds wait (updates/pull_priority.py)."""
        self.pulls.choose(first, awaited=awaited, least=least)

    @property
    def unawaited(self) -> frozenset[PeerId]:
        """The neighbours that we have chosen not to wait for."""
        return self.pulls.unawaited()

    def degrees_of(self, peers: Iterable[PeerId]) -> dict[PeerId, int]:
        """Return how many neighbours each of these neighbours has, as its newest hello says."""
        return {peer: self.neighbours[peer].neighbours for peer in peers if peer in self.neighbours}

    def round_of(self, neighbour: Neighbour) -> int | None:
        """Return a neighbour's round: of its newest update that is here or, where nothing is fetched, that it
        announced."""
        return neighbour.announced_round if self.fetch == "nothing" else neighbour.applied_round

    def round_closed(self) -> None:
        """Note that a round of ours has closed, and which neighbours have served it."""
        self._round_members.round_closed(self.neighbours)

    @property
    def outvoted_liars(self) -> bool:
        """Whether there were ever members enough to outvote the liars. From then on a few are never believed."""
        return self._round_members.outvoted_liars

    def stood_with(self) -> Set[PeerId]:
        """Return the members of rounds that withstood the liars, in this process and before; the newest ones."""
        return self._round_members.stood_with

    def stood_before(self, peers: Collection[PeerId]) -> None:
        """Note that, before this process began, rounds with these members withstood the liars."""
        self._round_members.stood_before(peers)

    def round_outvoted_liars(self, members: Iterable[PeerId] = ()) -> None:
        """Note that a round had members enough to outvote the liars: from now on a few neighbours are never
        believed."""
        self._round_members.round_outvoted_liars(members)

    def donors(self, round: int) -> dict[PeerId, int]:
        """Return by how many rounds each seated neighbour whose model is here is behind `round`, of those that are no
        further behind than a member may be. Unlike a member, a donor may be ahead, however far."""
        return self._round_members.donors(round, self._rounds_of(self.seated()))

    def swarm_round(self, now: float) -> int | None:
        """Return the highest round that more than `liars` and more than half of the seated neighbours have announced,
        or as many of those that have not said that they are paused; None when too few have announced any. What a paused
        one said last is old, and a majority of old rounds would take who wakes to an old model."""
        return self._swarm_round_among(self.seated(), now)

    def _swarm_round_among(self, seated: Mapping[PeerId, Neighbour], now: float) -> int | None:
        said = {peer: it.announced_round for peer, it in seated.items()}
        newest = self.publisher.newest
        own = None if newest is None else newest.body.round
        return self._round_members.swarm_round(said, own=own, paused=self._pauses.returns(now).keys())

    # -- offences

    def membership_ended(self, peer: PeerId, why: RemoteError) -> None:
        """Count a former member under the reason, and forget it with all that it sent us."""
        self.peer_scores.refuse(peer, why)
        self.peerstore.forget(peer)
        self.dht.table.forget(peer)
        self._roles.lose(peer)
        self.bridges.lose(peer)
        self.regional_models.forget(peer)
        self.mesh.drop(peer, f"it is no member any more: {why}")

    def is_banned(self, peer: PeerId, now: float) -> bool:
        """Return whether a peer is banned."""
        return self.peer_scores.scores.banned(peer, now)

    def proofs(self) -> dict[PeerId, tuple[bytes, bytes]]:
        """Return two contradicting signed envelopes of each peer that was caught with two histories."""
        return dict(self.peer_scores.proofs)

    def offence(self, peer: PeerId, error: RemoteError, now: float) -> None:
        """Count, tell and charge a peer's breach of the protocol; at 100 points the peer is banned."""
        if self.peer_scores.charge(peer, error, now):
            self.peerstore.forget(peer)
            self.bridges.lose(peer)
            self.regional_models.forget(peer)
            self.mesh.drop(peer, "banned")
