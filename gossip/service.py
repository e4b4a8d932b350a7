"""A node's membership of one run: one nursery, and the few calls that a runtime makes.

The engine (engine.py) decides. This file owns the tasks that perform what it decides: the transport, the dialler, one
follower per neighbour, the announcer, and short-lived tasks that answer requests. It is also the one place where tasks
are given the parts of the engine that they work with. The runtime reads `updates` (each neighbour's in chain order),
answers each with `accepted` or `rejected`, publishes its own, and closes rounds.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, KeysView, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Final, assert_never

import trio

from gossip.actions import Action, Broadcast, Disconnect, EmitEvent, Follow, Unfollow, WakeRegional, WakeSync
from gossip.allreduce.allreduce import Group, ReducedPart
from gossip.allreduce.allreduce_task import AllReducer, ReduceFunction
from gossip.blobs.hashing_task import Hasher
from gossip.blobs.snapshots_task import Snapshots
from gossip.blobs.state_digest_task import StateDigestPublisher
from gossip.class_statistics.ask_task import ask_statistics
from gossip.class_statistics.statement import sealed_statistics
from gossip.context import Notifier, ServiceContext
from gossip.core.api import (
    Arrivals,
    BlobFile,
    Fetch,
    GossipEvent,
    GossipStats,
    Head,
    LinkSpeed,
    NeighbourStatus,
    NewFile,
    Observer,
    QueueName,
    Reachability,
    Recorder,
    RegionalView,
    RegionClaim,
    RegionLayout,
    RoundView,
    RunInfo,
    SnapshotSource,
    StateSource,
    Tracked,
    Update,
    unrecorded,
)
from gossip.core.backoff import peer_in
from gossip.core.config import GossipConfig
from gossip.core.errors import GossipError, LocalError, Reason, RemoteError, lone_local_error
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import KIB
from gossip.core.messages import GoodbyeRequest
from gossip.core.quiet_clock import local_minute, quiet_by
from gossip.discovery.dialler_task import Dialler
from gossip.discovery.lookup_task import LookupTask
from gossip.discovery.mdns_task import mdns_for
from gossip.discovery.peerstore_file_task import PeerStoreKeeper
from gossip.engine import Engine
from gossip.handlers import Handlers
from gossip.membership import Role
from gossip.membership.anti_entropy import AntiEntropy
from gossip.membership.membership_sync_task import MembershipSync, MemberView, service_ports_of
from gossip.membership.private_swarm import PrivateMembership, of_swarm
from gossip.reachability.dialback_task import DialBacks
from gossip.reachability.reachability_task import ReachabilityTask
from gossip.reachability.relay_link_task import RelayLink
from gossip.reachability.relay_task import relay_of
from gossip.regions.region_labels import bound_to_none
from gossip.regions.regional_models_task import RegionalExchange
from gossip.secure_aggregation.packing import Values
from gossip.secure_aggregation.secure_group import SecureGroup, SecureSum
from gossip.secure_aggregation.secure_sum_task import SecureSummer
from gossip.server import Server
from gossip.session import ask_once
from gossip.transport.base import Transport
from gossip.transport.throttled import within
from gossip.transport.wire_bytes import WireBytes
from gossip.updates.announcer_task import Announcer
from gossip.updates.certified_payload import PayloadQuorum
from gossip.updates.certified_payload_task import CertifiedPayloads
from gossip.updates.follower_task import Followers
from gossip.updates.layer_plan_task import LayerWait
from gossip.updates.pauses_task import say_paused
from gossip.updates.roles import Roles
from gossip.updates.round_closer_task import RoundCloser
from gossip.updates.shift_claims_task import ShiftTeller

SHOW_AFTER_S: Final = 1.0
"""Seconds in which a broadcast has reached all members: ten hops of 100 ms."""


def _ignore(event: GossipEvent) -> None:
    """Default observer: ignores all events."""


class GossipService(Handlers):
    """A node's membership of one run. `updates`: what neighbours published; `stats`: counters since the start;
    `relaying`: returns what this node relays for others."""

    def __init__(
        self,
        *,
        identity: Identity,
        transport: Transport,
        config: GossipConfig,
        run: RunInfo,
        rng: random.Random,
        snapshot_source: SnapshotSource,
        tracked: Tracked | None = None,
        observer: Observer = _ignore,
        minute_of_day: Callable[[], int] = local_minute,
        unix_time: Callable[[], float] = time.time,
        private: PrivateMembership | None = None,
        new_file: NewFile | None = None,
        layout: RegionLayout = RegionLayout(),
        recorder: Recorder = unrecorded,
        sums_begun: Path | None = None,
    ) -> None:
        """Raises LocalError when an address in the config is malformed. `private`: the membership that `transport`
        asks. `new_file`: makes files for large blobs, which are in memory without it. `layout`: our region, and
        all others. `recorder`: is called with what passes between regions. `sums_begun`: the file that remembers which
        secure sums were begun; without it a node that restarts must begin none of an earlier round."""
        self._unix_time = unix_time
        if transport.peer_id != identity.peer_id:
            raise LocalError("the transport has another identity than the service")
        config = config if private is None else of_swarm(config, private)
        anti_entropy = self._anti_entropy = None if private is None else AntiEntropy(private.admission)
        # No buffer: an update leaves its follower when the runtime takes it, so that memory is bounded by the degree.
        self._updates_in, self.updates = trio.open_memory_channel[Update](0)
        roles = None
        if anti_entropy is not None:
            via = peer_in(config.via) if config.via else None
            roles = Roles(identity.peer_id, anti_entropy.role_of, anti_entropy.why_out, via)
        self._engine = engine = Engine(
            identity=identity,
            config=config,
            run=run,
            rng=rng,
            roles=roles,
            liars=1 if tracked is None else tracked.liars,
            withstood_by=3 if tracked is None else tracked.withstood_by,
            connections=transport,
            layout=layout,
            bound=bound_to_none if anti_entropy is None else anti_entropy.regions_of,
        )
        self.stats: GossipStats = engine.stats
        self._run_info = run
        self._observer = observer
        self._context = ServiceContext(
            engine=engine,
            transport=within(transport, up=config.up_bytes_per_s, down=config.down_bytes_per_s),
            config=config,
            hasher=Hasher(config.hash_in_thread_above, new_file),
            perform=self._perform,
            changed=Notifier(),
            quiet=quiet_by(config.quiet_hours, minute_of_day),
            tracked=tracked,
        )
        self._identity = identity
        self._allreducer = AllReducer(self._context, identity, engine.traffic)
        self._summer = SecureSummer(self._context, identity, engine.traffic, sums_begun)
        self._certified = CertifiedPayloads(self._context, engine.traffic)
        self._regional = RegionalExchange(
            self._context,
            identity,
            engine.regional_models,
            engine.bridges,
            engine.traffic,
            engine.residency,
            recorder,
        )
        self._membership_sync = None
        if private is not None and anti_entropy is not None:
            ports = service_ports_of(self._context, engine.peer_scores, self._forget)
            self._membership_sync = MembershipSync(private, anti_entropy, ports)
        snapshots = Snapshots(engine.publisher, snapshot_source, self._context.hasher, self._context.warn)
        self._server = Server(
            self._context,
            engine.publisher,
            engine.traffic,
            snapshots,
            self._allreducer,
            self._summer,
            self._regional,
            self._membership_sync,
        )
        self._marker = StateDigestPublisher(engine.publisher, self._context.hasher)
        self._dialler = Dialler(self._context, engine.mesh, engine.bridges, engine.peerstore, rng)
        self._finder = LookupTask(self._context, engine.dht, engine.peerstore, engine.mesh, self._dialler, rng)
        self._relay = relay_of(self._context, identity, unix_time)
        self.relaying = self._relay.reading
        self._dialbacks = DialBacks(transport, config.request_timeout_s, self._context.offence)
        self._peerstore = PeerStoreKeeper(self._context, engine.peerstore)
        self._announcer = Announcer(self._context, engine.publisher)
        self.round_closer = RoundCloser(self._context, engine.exchange_times)
        self._followers = Followers(
            self._context, engine.traffic, self._updates_in, self._server.blob_cache, engine.pulls
        )
        self._shift_teller = ShiftTeller(self._context)
        self._layers = LayerWait(self._context, engine.layers, self._followers)
        self._nursery: trio.Nursery | None = None
        self.newest_members: frozenset[PeerId] = frozenset()
        """Members of the newest closed round, even if they are no longer neighbours."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until cancelled; calls `started()` once listening. Raises LocalError when the transport cannot
        listen."""
        try:
            await self._run(task_status)
        except BaseExceptionGroup as group:
            raise lone_local_error(group) from None

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(self._context.transport.run, self))
            self._nursery = nursery
            # The wall clock only orders our own records across restarts; nothing else depends on it.
            nursery.start_soon(self._announcer.run, int(1000 * self._unix_time()))  # in ms
            self._peerstore.load()
            nursery.start_soon(self._peerstore.run)
            nursery.start_soon(self._dialler.run)
            if self._regional.is_beside_others:
                nursery.start_soon(self._regional.run)
            nursery.start_soon(self._finder.run)
            nursery.start_soon(self._reachability_task().run)
            if self._membership_sync is not None:
                nursery.start_soon(self._membership_sync.run)
            if self._context.config.mdns:
                nursery.start_soon(mdns_for(self._context, self._dialler.hint).run)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # -- the runtime's calls

    def accepted(self, update: Update) -> None:
        """Report that the runtime has applied `update`; the neighbour's next one may come."""
        self._answer(update, None)

    def rejected(self, update: Update, reason: Reason, detail: str = "") -> None:
        """Report that the runtime could not use `update`. Its peer is charged, and untracked until a base or
        snapshot."""
        self._answer(update, RemoteError(reason, detail))

    def spent(self, update: Update, seconds: float) -> None:
        """Report the seconds of computing that reading `update` took; they are paid from its sender's budget."""
        self._engine.update_read(update.peer, seconds, trio.current_time())

    def trained(self, encode_s: float) -> None:
        """Report that the runtime trained a round, and the seconds of computing that writing its update took: each
        neighbour may take about as many for one of its own."""
        self._engine.trained(encode_s, trio.current_time())
        self._perform()

    @property
    def read_seconds(self) -> dict[PeerId, float]:
        """Return the seconds of computing that the updates of each neighbour have taken since it became one."""
        return self._engine.read_seconds()

    @property
    def head(self) -> Head:
        """Return our newest link. Raises LocalError before the first epoch."""
        return self._engine.head

    async def begin_epoch(self, *, epoch: int, round: int, snapshot: bytes | BlobFile | None) -> None:
        """Start our chain at `round`, from the genesis (None) or from these bytes. Raises LocalError on an old
        epoch."""
        base = self._run_info.genesis if snapshot is None else await self._context.hasher.payload(snapshot)
        self._engine.begin_epoch(epoch=epoch, round=round, base=base, now=trio.current_time())
        await self._announce()

    async def publish(
        self,
        *,
        round: int,
        codec: str,
        payload: bytes,
        steps: int,
        tokens: int,
        state: StateSource | None = None,
        layers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Publish the next delta. Now and then it names the state after it, if `state` gives that. `layers`: its
        refinements, coarsest first, each with the name of its codec. Raises LocalError before the first epoch, or on a
        payload that no peer may take."""
        self._engine.check_publishes()
        hashed = await self._context.hasher.payload(payload)
        refinements = [(name, await self._context.hasher.payload(data)) for name, data in layers]
        mark = await self._marker.cut(state)
        self._engine.publish(
            round=round,
            codec=codec,
            payload=hashed,
            steps=steps,
            tokens=tokens,
            state=mark,
            layers=refinements,
            now=trio.current_time(),
        )
        await self._announce()

    def begin_layers(self, hidden_s: float) -> None:
        """Note that a round closes now, and that neighbours' refinements have so many seconds to come, in this and in
        later rounds; at first they have none."""
        self._layers.begin(hidden_s)

    async def finish_layers(self, *, wait: bool) -> None:
        """Give up the refinements that have not come; with `wait`, after those that are expected within their time have
        come, or that is over."""
        await self._layers.finish(wait=wait)

    def layers_taken(self) -> dict[PeerId, int]:
        """Return how many refinements of its newest update are here, of each neighbour with any."""
        return self._layers.taken()

    def layers_sent(self) -> dict[PeerId, int]:
        """Return how many of our refinements each neighbour has, of our newest update or the one before."""
        return self._layers.sent()

    async def exchange(
        self, group: Group, data: bytes, reduce: ReduceFunction, *, gather_s: float, timeout_s: float
    ) -> list[ReducedPart]:
        """Reduce everyone's `data` with the other members of `group`, each of which reduces one part and owns it.

        `reduce` is given the same part of several members' vectors: those that came within `gather_s`. Returns the
        parts after `timeout_s` at most. Where an owner was not there in time, or broke the protocol, `data` is None,
        and the caller keeps its own values. Raises LocalError while another exchange is under way, or when the last one
        had the same group, round and size; raises what `reduce` raises, in a group.
        """
        return await self._allreducer.run(group, data, reduce, gather_s=gather_s, timeout_s=timeout_s)

    async def sum_securely(self, group: SecureGroup, values: Values, *, gather_s: float, timeout_s: float) -> SecureSum:
        """Return the sum modulo 2^bits of everyone's `values`, uint32 of shape (count,), without showing ours to
        anybody.

        Members that do not take part within `gather_s` are left out of the sum; the whole takes `timeout_s` at most.
        Where the owners of a part are lost afterwards, its values are None. Each group is summed once: a round that was
        begun before, even before a restart, is refused. Raises SecureSumError, in one line, where nothing was opened;
        LocalError for values that do not fit the group, while another sum is under way, or for a round begun before.
        """
        return await self._summer.run(group, values, gather_s=gather_s, timeout_s=timeout_s)

    async def pull_certified(self, wanted: PayloadQuorum, *, timeout_s: float) -> bytes | None:
        """Return the payload of a round that enough of some neighbours have published alike, from one of them; None
        where it does not come in time, or cannot."""
        return await self._certified.pull(wanted, timeout_s=timeout_s)

    async def missed_parts(self, *, timeout_s: float) -> list[ReducedPart]:
        """Return the reduced parts of the last exchange that did not come in its time, and come now: as far as their
        owners have announced them, and within `timeout_s`. Each is returned once, and none after the next exchange has
        begun."""
        return await self._allreducer.missed(timeout_s=timeout_s)

    def publishes_regional(self, round: int) -> bool:
        """Return whether we are drawn to publish our region's model after a round; never where no other region is
        known."""
        return self._regional.publishes(round)

    async def publish_regional(self, *, round: int, codec: str, payload: bytes, averaged: int = 1) -> None:
        """Publish our region's model after `round`, an average of so many members' at least, for the members of the
        regions beside ours. Raises LocalError where it is too large to be sent, or of fewer members than the run's
        policy wants."""
        self._engine.check_publishes()
        await self._regional.publish(round=round, codec=codec, data=payload, averaged=averaged)

    def regional_views(self) -> dict[str, RegionalView]:
        """Return the newest model of our region and of each beside it, of which enough members' are here, by region."""
        return self._regional.views()

    def region_claims(self) -> dict[str, RegionClaim]:
        """Return where each region beside ours stands of which members are connected, as these say."""
        return self._regional.claims()

    def reject_regional(self, peer: PeerId, region: str, round: int, detail: str) -> None:
        """Report that a region's model could not be read. Its author is charged."""
        self._regional.refuse(peer, region, round)
        self._engine.regional_refused(peer, RemoteError(Reason.MALFORMED, detail), trio.current_time())
        self._perform()

    @property
    def regions(self) -> dict[str, int]:
        """How many members of our region and of the others are known, ourselves included."""
        return self._regional.regions

    @property
    def regions_beside(self) -> frozenset[str]:
        """The regions whose models we hear."""
        return self._regional.beside

    @property
    def bridge_ids(self) -> KeysView[PeerId]:
        """The members of other regions that are connected."""
        return self._regional.bridge_ids

    def fetch(self, fetch: Fetch) -> None:
        """Set what is fetched from the neighbours from now on; at first it is their updates. A change from or to
        "nothing" voids what the runtime holds of them."""
        self._engine.set_fetch(fetch, trio.current_time())
        self._perform()

    def members(self, round: int) -> list[PeerId]:
        """Return the neighbours that are within `max_staleness` of a round, in the order of their names."""
        return sorted(self._engine.standing(round, trio.current_time()).staleness)

    def placements(self, peers: Iterable[PeerId]) -> dict[PeerId, Digest]:
        """Return what these peers are drawn into groups by, of those whose certificates say it: in a private swarm, who
        have a grant of their own."""
        found = {} if self._anti_entropy is None else {peer: self._anti_entropy.placement_of(peer) for peer in peers}
        return {peer: each for peer, each in found.items() if each is not None}

    async def wait_for_round(self, round: int, peers: Collection[PeerId]) -> None:
        """Wait until each of these peers has announced this round or a later one, is paused, or is no neighbour."""
        while any((self._announced(peer) or 0) < round for peer in self._awaited(round, peers)):
            await self._context.changed.wait()

    async def say_paused(self, seconds: Callable[[], float | None]) -> None:
        """Tell the neighbours that we are paused after our newest update, until cancelled; the next update ends it for
        them. `seconds`: returns for how long from now, None where nobody knows. They do not wait for us meanwhile."""
        await say_paused(self._context, seconds)

    def say_shifted(self, claim: int) -> None:
        """Tell the neighbours that our own data have shifted, as of our newest update; those who have heard of this
        `claim` are not told again. Call it once a round while it lasts."""
        if self._nursery is not None:
            self._shift_teller.say(claim, self._nursery)

    def shift_claims(self) -> dict[PeerId, int]:
        """Return the neighbours that say that their data have shifted, and by which round each said so last."""
        return self._engine.shifts_said()

    def share_statistics(self, payload: bytes) -> None:
        """Give these class statistics of our data to every neighbour that asks, from now on. Raises LocalError where
        they are too large."""
        self._server.statistics = sealed_statistics(self._identity, self._engine.scope, payload)

    async def neighbours_statistics(self) -> dict[PeerId, bytes]:
        """Ask all neighbours for class statistics of their data, once, and return what they have signed: their word.
        One that shares none, or does not answer within the time of a request, is not among them."""
        return await ask_statistics(self._context)

    async def close_round(self, round: int, *, at_most_s: float) -> RoundView:
        """Wait for a quorum of fresh neighbours, or for the deadline; at most `at_most_s` seconds."""
        view = await self.round_closer.close(round, at_most_s)
        self.newest_members = frozenset(view.staleness)
        return view

    def fetch_first(self, first: Set[PeerId] | None, *, awaited: Set[PeerId] = frozenset(), least: int = 0) -> None:
        """Set from whom updates are fetched first, from now on; None: from everybody alike, as at first. The others'
        are fetched in spare time. Rounds wait for the `awaited` alone. With fewer than `least` of these here everybody
        counts alike."""
        self._engine.fetch_first(first, awaited=awaited, least=least)
        self._perform()

    def arrivals(self, round: int) -> Arrivals:
        """Return how many of the neighbours' updates of a round have arrived so far."""
        return self.round_closer.arrivals(round)

    def exchange_patience(self, round: int) -> float:
        """Return for how many seconds a round should at least be kept open: the measured time of the exchange of its
        updates, with a margin. 0 where no update is to be expected."""
        return self.round_closer.patience(round)

    def exchange_seconds(self) -> float | None:
        """Return how long the exchange of a round's updates with a quorum of neighbours took lately (seconds)."""
        return self.round_closer.exchange_seconds()

    async def wait_for_neighbours(self, count: int, timeout_s: float) -> int:
        """Wait for so many neighbours, at most `timeout_s`; return how many there are."""
        return await self._wait_for(lambda: count, timeout_s, tracked=False)

    async def wait_for_tracked(self, count: int, timeout_s: float, *, of_those_here: bool = False) -> int:
        """Wait for so many neighbours whose estimate the runtime tracks, at most `timeout_s`; return how many there
        are. `of_those_here`: where there are fewer neighbours, wait for all of them, and at least one; a lost one is
        not waited for."""
        here = self._engine.neighbours
        return await self._wait_for(
            lambda: min(count, max(1, len(here))) if of_those_here else count, timeout_s, tracked=True
        )

    def swarm_round(self) -> int | None:
        """Return the swarm's round: what more than the liars and more than half of the neighbours have announced, of
        all or of those that are not paused; None when too few have announced any."""
        return self._engine.swarm_round(trio.current_time())

    def staleness(self, round: int) -> dict[PeerId, int]:
        """Return by how many rounds each neighbour is behind `round`, of those that would belong to it now."""
        return dict(self._engine.standing(round, trio.current_time()).staleness)

    @property
    def outvoted_liars(self) -> bool:
        """Whether a round ever had members enough to outvote the liars."""
        return self._engine.outvoted_liars

    @property
    def stood_with(self) -> Set[PeerId]:
        """Members of rounds that had enough to outvote the liars, in this process and before; the newest ones."""
        return self._engine.stood_with()

    def outvotes_liars(self, members: Iterable[PeerId]) -> None:
        """Note that a round with these members had enough to outvote the liars: from now on a few neighbours are never
        believed."""
        self._engine.round_outvoted_liars(members)

    def stood_before(self, members: Collection[PeerId]) -> None:
        """Note the same of rounds before this process began: these have served, too (updates/probation.py)."""
        self._engine.stood_before(members)

    def donors(self, round: int) -> dict[PeerId, int]:
        """Return by how many rounds each neighbour is behind `round` whose model may be taken for that round's."""
        return self._engine.donors(round)

    def round_closed(self) -> None:
        """Note the end of a round for an observer, which closes none. Neighbours have served it
        (updates/probation.py)."""
        self._engine.round_closed()

    def seated(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return, of these, the established peers, and of those on probation as many as there may be liars."""
        return self._engine.seated_of(peers)

    @property
    def neighbour_ids(self) -> KeysView[PeerId]:
        """The present neighbours; `degree` at most."""
        return KeysView(self._engine.neighbours)

    def neighbours(self) -> dict[PeerId, NeighbourStatus]:
        """Return the present state of every neighbour; staleness is against our own newest round."""
        return self._engine.status(trio.current_time())

    def paused_neighbours(self) -> dict[PeerId, float | None]:
        """Return the neighbours that say that they are paused, and in how many seconds they say that they are back;
        None: unknown."""
        return self._engine.pauses_said(trio.current_time())

    def link_speeds(self) -> dict[PeerId, LinkSpeed]:
        """Return how fast updates go to each neighbour and come from it."""
        return self._engine.link_speeds(trio.current_time())

    @property
    def peers_known(self) -> int:
        """How many peers' records are held, of neighbours and others."""
        return self._engine.peers_known

    @property
    def swarm_size(self) -> int:
        """Return how many members the swarm has, ourselves included, as far as our places on the rings say."""
        return self._engine.swarm_size

    @property
    def met_bootstrap(self) -> bool:
        """Whether one of the peers that we were given has answered as a bootstrap node."""
        return self._engine.met_bootstrap

    async def find(self, peer: PeerId) -> tuple[str, ...] | None:
        """Return where a member can be dialled, neighbour or not, looked up by its id; None when it was not found."""
        return await self._finder.find(peer)

    def known_graph(self) -> dict[bytes, frozenset[bytes]]:
        """Return who is a neighbour of whom in the swarm, as far as we know; by tags (discovery/topology.py)."""
        return self._engine.known_graph(trio.current_time())

    def reachability(self) -> Reachability:
        """Return whether others can dial us, as far as they have shown it."""
        return self._context.reach.state(trio.current_time())

    def mapped(self, addresses: tuple[str, ...]) -> None:
        """Set addresses (without `/p2p/`) that a router forwards here: others are told once peers have reached us
        there."""
        self._context.mapped[:] = addresses

    def queues(self) -> dict[QueueName, int]:
        """Return how much waits or is under way now. `updates` and `pulls` are at most one per neighbour each."""
        return {**self._followers.queues(), "serving": self._server.serving}

    @property
    def wire(self) -> WireBytes:
        """Return the bytes sent to peers and received from them since the start: all of them, framing included."""
        return self._context.transport.wire

    def drops(self) -> dict[str, int]:
        """Return what the transport refused, dropped or survived, by kind (transport/drop_reasons.py)."""
        return dict(self._context.transport.drops)

    def proofs(self) -> dict[PeerId, tuple[bytes, bytes]]:
        """Return two contradicting signed envelopes of each peer that was caught with two histories."""
        return self._engine.proofs()

    async def leave(self, timeout_s: float) -> None:
        """Let neighbours pull our newest update and finish pulls under way, then say goodbye; at most `timeout_s`."""
        goodbye = self._engine.goodbye()
        with trio.move_on_after(timeout_s * 0.75):
            while self._server.serving or self._owing():
                await self._context.changed.wait()
        await self._tell_all(goodbye, timeout_s * 0.25)

    async def say_goodbye(self, timeout_s: float) -> None:
        """Say goodbye at once, whatever is under way; at most `timeout_s`."""
        await self._tell_all(self._engine.goodbye(), timeout_s)

    # -- the swarm, where it is private

    @property
    def role(self) -> Role | None:
        """Our own role; in an open swarm everybody is a trainer. None: our membership has ended."""
        return self._engine.role

    def roster_view(self) -> list[MemberView]:
        """Return all members on the roster; none where the swarm is open."""
        return [] if self._membership_sync is None else self._membership_sync.view()

    def submit(self, signed: Iterable[bytes]) -> None:
        """Store and spread what an admin has signed: `pack_item` of a revocation or certificate, or `pack_manifests`.
        Raises LocalError when the swarm is open, or refuses it."""
        if self._membership_sync is None:
            raise LocalError("the swarm is open to all: nobody is its admin")
        self._membership_sync.submit(signed)

    # -- insides

    def _reachability_task(self) -> ReachabilityTask | RelayLink:
        via = self._context.config.via
        return RelayLink(self._context, peer_in(via)) if via else ReachabilityTask(self._context)

    def _forget(self, peer: PeerId, why: RemoteError) -> None:
        """Drop what is held of a former member."""
        self._server.blob_cache.forget(peer)
        self._engine.membership_ended(peer, why)
        self._perform()

    def _awaited(self, round: int, peers: Collection[PeerId]) -> set[PeerId]:
        here = set(self._engine.neighbours).intersection(peers)
        return here - self._engine.paused(round, trio.current_time())

    def _announced(self, peer: PeerId) -> int | None:
        return self._engine.neighbours[peer].announced_round

    def _owing(self) -> bool:
        """Whether a neighbour has yet to take the newest update that we have for it."""
        if self._engine.fetch == "nothing":
            return self._allreducer.owes()
        return not self._engine.all_delivered()

    async def _announce(self) -> None:
        if self._nursery is not None:  # before that there is no network; the announcer begins with the newest link
            await self._announcer.announce()

    def _answer(self, update: Update, error: RemoteError | None) -> None:
        self._followers.answer(update, error)
        self._perform()

    async def _wait_for(self, needed: Callable[[], int], timeout_s: float, *, tracked: bool) -> int:
        def there() -> int:
            return self._engine.tracked_neighbours if tracked else len(self._engine.neighbours)

        with trio.move_on_after(timeout_s):
            while there() < needed():
                await self._context.changed.wait()
        return there()

    async def _tell_all(self, goodbye: bytes, timeout_s: float) -> None:
        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                for peer in self._engine.left():  # first, or its next hello would take us back in
                    nursery.start_soon(self._say_goodbye, peer, goodbye)
                self._perform()

    async def _say_goodbye(self, peer: PeerId, envelope: bytes) -> None:
        config = self._context.config
        try:
            request = GoodbyeRequest(envelope=envelope)
            await ask_once(self._context.transport, peer, request, config.request_timeout_s, KIB)
        except GossipError:
            return  # it will notice by itself

    async def _show(self, raw: bytes) -> None:
        """Broadcast a link of another's a little later, when what it is to be compared with has come everywhere."""
        await trio.sleep(SHOW_AFTER_S)
        await self._context.transport.publish(raw)

    def _perform(self) -> None:
        for action in self._engine.drain():
            self._do(action)
        self._context.changed.beat()

    def _do(self, action: Action) -> None:
        match action:
            case EmitEvent(event=event):
                self._observer(event)
            case Follow(peer=peer):
                if self._nursery is not None:  # or we are shutting down
                    self._followers.begin(peer, self._nursery)
            case Unfollow(peer=peer):
                self._followers.end(peer)
            case WakeSync(peer=peer):
                self._followers.wake(peer)
            case WakeRegional():
                self._regional.wake()
            case Broadcast(raw=raw):
                if self._nursery is not None:
                    self._nursery.start_soon(self._show, raw)
            case Disconnect():
                if self._nursery is not None:
                    self._nursery.start_soon(self._disconnect, action)
            case _:
                assert_never(action)
