"""A bootstrap node's service: it trains nothing, and knows who is there.

It uses a member's transport, and of its protocol only the hello, the goodbye and the find request. It probes members
where their records say before it passes them on. What is known is kept on disk, so that a restarted node is of use at
once. It passes no broadcasts on: members are connected to it as long as a hello takes, and to each other permanently.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import trio

from gossip.blobs.hashing_task import Hasher
from gossip.bootstrap_state import MAX_RUNS, BootstrapState
from gossip.core.backoff import Backoff, host_of
from gossip.core.config import GossipConfig
from gossip.core.errors import GossipError, LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId, SwarmId
from gossip.core.limits import STREAM_PROTOCOL
from gossip.core.member_messages import BucketsRequest, MembershipRequest, RosterRequest, TermsRequest
from gossip.core.messages import FindRequest, GoodbyeRequest, HelloRequest, encode_answer, encode_refusal, parse_request
from gossip.core.networks import network_of
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.request_limit import RequestLimit
from gossip.discovery.dialler_task import RUMOUR_MAX_S
from gossip.discovery.peerstore import MAX_DUMP_BYTES
from gossip.discovery.peerstore_file_task import SAVE_EVERY_S, write_whole
from gossip.membership.anti_entropy import AntiEntropy
from gossip.membership.membership_sync_task import MembershipSync, MemberView, ServicePorts
from gossip.membership.private_swarm import PrivateMembership, of_swarm
from gossip.reachability.dialback import DIALBACK_PROTOCOL
from gossip.reachability.dialback_task import DialBacks
from gossip.reachability.probe_task import PROBES_BURST, PROBES_PER_S, calls_from
from gossip.session import serve
from gossip.transport.base import Stream, Transport, TransportError
from gossip.updates.peer_score import PeerScores
from gossip.updates.roles import Roles

MAX_PROBES: Final = 16
"""Probes under way at once: in a crowd of newcomers some cannot be reached, and each of these takes a whole dial's
time. At most a quarter of them lead to one network, or its silent hosts would keep all others waiting."""

LOOK_S: Final = 1.0
"""Seconds between two looks at who is to be probed: a newcomer's first question comes when it looks for neighbours."""

MAX_STREAMS: Final = 2
"""Streams of one peer at once: a hello, and one that begins while the last one ends."""

StateOf = Callable[[Identity, SwarmId, random.Random, Roles | None], BootstrapState]
"""Makes what decides."""


class BootstrapService:
    """Answers hellos until it is cancelled. `warn` gets what an operator should know."""

    def __init__(
        self,
        *,
        identity: Identity,
        transport: Transport,
        config: GossipConfig,
        rng: random.Random,
        warn: Callable[[str], None],
        private: PrivateMembership | None = None,
        state_of: StateOf = BootstrapState,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        """Raises LocalError when the transport has another identity. `private`: the membership that `transport` asks,
        whose roster and manifests are spread like a member's. `max_streams`: of one peer at once."""
        if transport.peer_id != identity.peer_id:
            raise LocalError("the transport has another identity than the service")
        config = config if private is None else of_swarm(config, private)
        anti_entropy = None if private is None else AntiEntropy(private.admission)
        roles = None if anti_entropy is None else Roles(identity.peer_id, anti_entropy.role_of, anti_entropy.why_out)
        self.bootstrap_state = state_of(identity, config.named, rng, roles)
        self.stats = self.bootstrap_state.stats
        self._transport = transport
        self._config = config
        self._warn = warn
        self._max_streams = max_streams
        self._path = config.address_book
        self._is_unsaved = False
        """Whether the last write of the address book failed."""
        self._hasher = Hasher(config.hash_in_thread_above)
        self._nursery: trio.Nursery | None = None
        self._streams: Counter[PeerId] = Counter()
        self._probing: dict[PeerId, str] = {}
        self._attempts = Backoff(least=config.redial_max_s, most=RUMOUR_MAX_S, rng=rng)
        self._hosts = Backoff(least=config.redial_min_s, most=RUMOUR_MAX_S, rng=rng)
        self._quota = KeyedTokenBucket(burst=PROBES_BURST, per_s=PROBES_PER_S)
        self._budget = RequestLimit()
        self._newcomer = trio.Event()
        self._membership_sync = None
        if private is not None and anti_entropy is not None:
            self._membership_sync = MembershipSync(
                private, anti_entropy, self._ports(self.bootstrap_state.peer_scores, rng)
            )
        self._dialbacks = DialBacks(transport, config.request_timeout_s, self._charged)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take connections until cancelled; calls `started()` once listening. Raises LocalError when it cannot
        listen."""
        self._load()
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(self._transport.run, self))
            for task in self._tasks():
                nursery.start_soon(task)
            self._nursery = nursery
            task_status.started()
            while True:
                self._probe_some(nursery)
                with trio.move_on_after(LOOK_S):
                    await self._newcomer.wait()
                self._newcomer = trio.Event()

    def _tasks(self) -> list[Callable[[], Awaitable[None]]]:
        """Return what runs as long as the service does."""
        sync = self._membership_sync
        return [self._keep_on_disk, *(() if sync is None else (sync.run,))]

    def drops(self) -> dict[str, int]:
        """Return what the transport refused, dropped or survived, by kind."""
        return dict(self._transport.drops)

    @property
    def serving(self) -> int:
        """How many streams are open."""
        return self._streams.total()

    # -- the transport's calls

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """Serve one stream to its end; raises nothing of the peer's or the network's making."""
        peer = stream.remote
        if protocol == DIALBACK_PROTOCOL:
            await self._dialbacks.handle_stream(stream)
            return
        if protocol != STREAM_PROTOCOL:  # a member's protocol: a caller cannot know beforehand that we are not one
            await stream.reset()
            return
        if self._streams[peer] >= self._max_streams:
            await self._offended(peer, RemoteError(Reason.PROTOCOL, "too many streams"))
            await stream.reset()
            return
        self._streams[peer] += 1
        try:
            await serve(stream, partial(self._answer, peer), self._config.request_timeout_s)
        except RemoteError as error:
            if error.reason is not Reason.TIMEOUT:
                await self._offended(peer, error)
            await stream.reset()
        except TransportError:
            await stream.reset()
        finally:
            self._streams[peer] -= 1
            self._streams += Counter()  # drops the zeros

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        """Ignore a broadcast: it is for members."""
        return False

    def peer_connected(self, peer: PeerId) -> None:
        """Tell the peer what members have to know; for the rest it asks itself."""
        if self._membership_sync is not None:
            self._membership_sync.peer_connected(peer)

    def peer_lost(self, peer: PeerId) -> None:
        """Ignore a lost connection: members come and go."""
        if self._membership_sync is not None:
            self._membership_sync.peer_lost(peer)

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        """Return nobody: it broadcasts nothing."""
        return frozenset()

    def keeps(self, peer: PeerId) -> bool:
        """Keep no connection: the one that idles longest makes room."""
        return False

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        """Charge an offence; a peer that is banned by it is disconnected when it asks next."""
        self._charged(peer, error)

    def caller_refused(self, caller: str, why: str) -> None:
        """Warn of a caller that is no member of the private swarm."""
        self._warn(f"refused {caller}: {why}")

    # -- the swarm, where it is private

    def roster_view(self) -> list[MemberView]:
        """Return all members on the roster; none where the swarm is open."""
        return [] if self._membership_sync is None else self._membership_sync.view()

    def submit(self, signed: Iterable[bytes]) -> None:
        """Store and spread what an admin has signed. Raises LocalError as GossipService.submit does."""
        if self._membership_sync is None:
            raise LocalError("the swarm is open to all: nobody is its admin")
        self._membership_sync.submit(signed)

    # -- insides

    def _ports(self, peer_scores: PeerScores, rng: random.Random) -> ServicePorts:
        return ServicePorts(
            transport=self._transport,
            config=self._config,
            jitter=lambda: rng.uniform(0.75, 1.25),
            warn=self._warn,
            offence=self._charged,
            refuse=peer_scores.refuse,
            cut=self._cut,
            inherit=peer_scores.scores.inherit,
        )

    def _cut(self, peer: PeerId, why: RemoteError) -> None:
        """Forget and disconnect a former member."""
        self.bootstrap_state.membership_ended(peer, why)
        if self._nursery is not None:
            self._nursery.start_soon(self._transport.disconnect, peer)

    async def _answer(self, peer: PeerId, raw: bytes) -> bytes:
        request, now = parse_request(raw), trio.current_time()
        try:
            await trio.sleep(self._budget.reserve(peer, now, known=self._membership_sync is not None))
            match request:
                case HelloRequest(hello=hello):
                    answer = self.bootstrap_state.on_hello(peer, hello, now, self._transport.network_of(peer))
                    self._newcomer.set()
                    return encode_answer(answer)
                case FindRequest():
                    network = self._transport.network_of(peer)
                    found = self.bootstrap_state.on_find(peer, request, trio.current_time(), network)
                    self._newcomer.set()
                    return encode_answer(b"", found)
                case GoodbyeRequest():
                    self.bootstrap_state.on_goodbye(peer)
                    return encode_answer()
                case MembershipRequest() | BucketsRequest() | RosterRequest() | TermsRequest() if self._membership_sync:
                    return self._membership_sync.answer(peer, request)
                case _:
                    raise RemoteError(Reason.UNAVAILABLE, "a bootstrap node trains nothing: ask a member")
        except RemoteError as error:
            if error.reason is not Reason.UNAVAILABLE:
                await self._offended(peer, error)
            return encode_refusal(error.reason, error.detail)
        finally:
            self.bootstrap_state.drain()  # there is nobody to tell: the counters have it all

    async def _offended(self, peer: PeerId, error: RemoteError) -> None:
        if self.bootstrap_state.charge(peer, error, trio.current_time()):
            await self._transport.disconnect(peer)

    def _charged(self, peer: PeerId, error: RemoteError) -> None:
        """Charge an offence on a stream that is reset already: a ban ends the next one."""
        self.bootstrap_state.charge(peer, error, trio.current_time())

    def _probe_some(self, nursery: trio.Nursery) -> None:
        now, hosts = trio.current_time(), set(map(host_of, self._probing.values()))
        networks = Counter(map(network_of, self._probing.values()))
        for peer, address in self.bootstrap_state.to_try(now):
            if len(self._probing) >= MAX_PROBES:
                return
            host, network = host_of(address), network_of(address)
            due = self._hosts.due(host, now) or calls_from(self._transport, peer, address)
            ripe = self._attempts.due(address, now) and due and host not in hosts
            fair = not network or networks[network] < MAX_PROBES // 4
            if ripe and fair and peer not in self._probing and self._quota.take(peer, now):
                hosts.add(host)
                networks[network] += 1
                self._probing[peer] = address
                nursery.start_soon(self._probe, peer, address)

    async def _probe(self, peer: PeerId, address: str) -> None:
        try:
            with trio.fail_after(self._config.dial_timeout_s):
                network = await self._transport.probe(address)
        except (GossipError, trio.TooSlowError):
            now = trio.current_time()
            self._attempts.failed(address, now)
            self._hosts.failed(host_of(address), now)
            self.bootstrap_state.missed(peer)
        else:
            self._attempts.succeeded(address)
            self._hosts.succeeded(host_of(address))
            self.bootstrap_state.answered(peer, address, trio.current_time(), network)
        finally:
            del self._probing[peer]
            self._newcomer.set()

    def _load(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            with self._path.open("rb") as file:
                self.bootstrap_state.recall(file.read(2 * MAX_RUNS * MAX_DUMP_BYTES + 1))
        except (OSError, LocalError) as error:
            self._warn(f"the address book {self._path} cannot be used: {error}; starting with an empty one")

    async def _keep_on_disk(self) -> None:
        try:
            while True:
                await trio.sleep(SAVE_EVERY_S)
                if (save := self._save_due()) is not None:
                    with self._warned():
                        await self._hasher.wait_for_disk(save)
        finally:
            if (save := self._save_due()) is not None:
                with self._warned():
                    save()

    def _save_due(self) -> Callable[[], None] | None:
        """Return a function that writes the address book as it is now; None where the file is up to date."""
        if self._path is None or not (self.bootstrap_state.changed or self._is_unsaved):
            return None
        return partial(write_whole, self._path, self.bootstrap_state.dump())

    @contextmanager
    def _warned(self) -> Iterator[None]:
        """Warn once when the address book could not be written; the next save tries again, whatever has changed."""
        try:
            yield
        except LocalError as error:
            if not self._is_unsaved:  # a full disk stays full for a while
                self._warn(str(error))
            self._is_unsaved = True
        else:
            self._is_unsaved = False
