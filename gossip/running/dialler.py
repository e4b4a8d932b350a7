"""Finds neighbours: dials bootstrap and learned addresses, and greets whoever is connected.

While there are fewer neighbours than the degree, every address that is due is tried: the operator's, then those of
peers that we have reached before, then what others told us. All have a back-off with jitter. The operator's are tried
for as long as it takes; a learned record is dropped when it has failed a few times, but not while nobody at all is
connected: then the fault is ours, and the book is the way back. A connection is made a neighbour by a hello, which is
tried again as well: the far end may be full, or not ready yet.

What others told us may be a victim's address, told to a thousand nodes at once. So such addresses are dialled one at a
time of a host, and a host or a peer that did not answer more and more rarely, whatever is told of it.
"""

import random
from typing import Final

import trio

from gossip.errors import GossipError, LocalError
from gossip.ids import PeerId
from gossip.protocol.attempts import Attempts, addresses_in, host_of, peer_in
from gossip.protocol.book import Standing
from gossip.running.context import Context, Pulse
from gossip.running.greeting import say_hello
from gossip.running.prober import Prober

MAX_DIALS: Final = 4
"""Dials under way: half the default degree, so that a start overshoots it seldom. Hellos do not count, or a few
connected peers that never answer them would keep us from dialling anybody."""

MAX_DIALS_ALONE: Final = 16
"""The same while nobody is connected: after an outage much of the book may be gone, and each takes its time."""

FORGET_AFTER: Final = 6
"""Failed dials of each address (of all together, where it is hearsay) after which a learned record is dropped: a minute
of back-off; others may tell us again."""

RUMOUR_MAX_S: Final = 3600.0
"""Longest back-off of a peer or host that we know by hearsay and that did not answer. With a doubling pause that is
a dozen dials in the first hour and one in each later one, so that a victim has little of a thousand nodes' dials."""

MAX_FILE_PEERS: Final = 256
"""Lines of the peers file that are used: as many as records are kept."""


class Dialler:
    """One task that ticks, and a short-lived one for each dial or hello."""

    def __init__(self, context: Context, rng: random.Random) -> None:
        config = context.config
        self._context = context
        self._rng = rng
        self._configured = {address: peer_in(address) for address in config.peers}
        self._operators = frozenset(self._configured)
        self._dials = Attempts(least=config.redial_min_s, most=config.redial_max_s, rng=rng)
        self._hellos = Attempts(least=config.redial_min_s, most=config.redial_max_s, rng=rng)
        self._rumours = Attempts(least=config.redial_min_s, most=RUMOUR_MAX_S, rng=rng)
        self._hosts = Attempts(least=config.redial_min_s, most=RUMOUR_MAX_S, rng=rng)
        self._asks = Attempts(least=config.redial_min_s, most=config.redial_max_s, rng=rng)
        self._prober = Prober(context, Attempts(least=config.redial_max_s, most=RUMOUR_MAX_S, rng=rng), self._hosts)
        self._dialling: dict[PeerId, str] = {}
        self._greeting: set[PeerId] = set()
        self._complained: set[str] = set()
        self._woken = Pulse()

    def connected(self, peer: PeerId) -> None:
        """A new connection: greet at once."""
        self._hellos.succeeded(peer)
        self._woken.beat()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._greet_some(nursery)
                self._dial_some(nursery)
                self._ask_some(nursery)
                self._prober.start_some(nursery)
                with trio.move_on_after(self._context.config.redial_min_s * self._rng.uniform(0.75, 1.25)):
                    await self._woken.wait()

    def _greet_some(self, nursery: trio.Nursery) -> None:
        members, now = self._context.engine.members, trio.current_time()
        for peer in sorted(self._context.transport.peers):
            wanted = members.dialable(peer, now) and members.has_room_for(peer, now)
            greetable = peer not in members.table and wanted
            if greetable and peer not in self._greeting and self._hellos.due(peer, now):
                self._greeting.add(peer)
                nursery.start_soon(self._greet, peer)

    def _dial_some(self, nursery: trio.Nursery) -> None:
        members, now = self._context.engine.members, trio.current_time()
        due = [(address, peer) for address, peer in self._due() if members.has_room_for(peer, now)]
        most = MAX_DIALS if self._context.transport.peers else MAX_DIALS_ALONE
        for address, peer in due[: max(0, most - len(self._dialling))]:
            self._dialling[peer] = host_of(address)
            nursery.start_soon(self._dial, address, peer)

    def _ask_some(self, nursery: trio.Nursery) -> None:
        """With places left and nobody to dial: ask a neighbour for more addresses, before its next heartbeat does."""
        members, now = self._context.engine.members, trio.current_time()
        due = [peer for peer in members.table if self._asks.due(peer, now) and peer not in self._greeting]
        if due and members.has_places and not self._dialling:
            peer = self._rng.choice(due)
            self._asks.failed(peer, now)  # each time more rarely
            self._greeting.add(peer)
            nursery.start_soon(self._greet, peer)

    def _due(self) -> list[tuple[str, PeerId]]:
        """Addresses to try now, one a peer, the operator's own first, then those that we have reached before."""
        now, connected = trio.current_time(), self._context.transport.peers
        chosen: dict[PeerId, str] = {}
        hosts = set(self._dialling.values())
        mine = self._bootstrap()
        for address, peer in (*mine, *self._learned()):
            free = peer not in connected and peer not in self._dialling and peer not in chosen
            if not free or not self._context.engine.members.dialable(peer, now) or not self._dials.due(address, now):
                continue
            if (address, peer) in mine or self._trusted(peer) or self._rumour_due(address, peer, hosts, now):
                chosen[peer] = address
                hosts.add(host_of(address))
        return [(address, peer) for peer, address in chosen.items()]

    def _trusted(self, peer: PeerId) -> bool:
        return self._context.engine.book.standing(peer) >= Standing.KEPT

    def _rumour_due(self, address: str, peer: PeerId, hosts: set[str], now: float) -> bool:
        host = host_of(address)
        return host not in hosts and self._hosts.due(host, now) and self._rumours.due(peer, now)

    def _bootstrap(self) -> list[tuple[str, PeerId]]:
        """The operator's addresses in a random order, so that not all nodes hit the first of the list."""
        addresses = dict(self._configured)
        path = self._context.config.peers_file
        for address in addresses_in(path)[:MAX_FILE_PEERS] if path else []:
            try:
                addresses[address] = peer_in(address)
            except LocalError as error:
                self._complain(address, str(error))
        self._operators = frozenset(addresses)
        self._context.engine.members.anchors = frozenset(addresses.values())
        return self._shuffled(list(addresses.items()))

    def _learned(self) -> list[tuple[str, PeerId]]:
        book = self._context.engine.book
        pairs = self._shuffled([(address, record.peer) for record in book.known() for address in record.addresses])
        # Of a peer's addresses the one that failed least: each gets its turn, however many there are.
        return sorted(pairs, key=lambda pair: (-book.standing(pair[1]), self._dials.failures(pair[0])))

    def _shuffled(self, pairs: list[tuple[str, PeerId]]) -> list[tuple[str, PeerId]]:
        self._rng.shuffle(pairs)
        return pairs

    def _complain(self, address: str, why: str) -> None:
        if address not in self._complained and len(self._complained) < MAX_FILE_PEERS:
            self._complained.add(address)
            self._context.warn(why)

    async def _dial(self, address: str, peer: PeerId) -> None:
        why = f"no answer within {self._context.config.dial_timeout_s:g} s"
        try:
            with trio.move_on_after(self._context.config.dial_timeout_s) as scope:
                await self._context.transport.dial(address)
            if not scope.cancelled_caught:
                self._context.engine.book.reached(peer, address)
                self._dials.succeeded(address)
                self._rumours.succeeded(peer)
                self._hosts.succeeded(host_of(address))
                self._woken.beat()
                return
        except GossipError as error:
            why = str(error)
        finally:
            del self._dialling[peer]
        self._failed(address, peer, why)

    def _failed(self, address: str, peer: PeerId, why: str) -> None:
        engine, now = self._context.engine, trio.current_time()
        self._dials.failed(address, now)
        if self._dials.failures(address) == 1 and address in self._operators:  # it may be mistyped
            engine.dial_failed(peer, f"{address}: {why}")
            self._context.perform()
        if self._context.transport.peers and address in engine.book.addresses(peer):
            self._missed(address, peer, now)

    def _missed(self, address: str, peer: PeerId, now: float) -> None:
        """A learned address does not answer, and it is not we who are cut off."""
        book = self._context.engine.book
        self._rumours.failed(peer, now)
        self._hosts.failed(host_of(address), now)
        patience = FORGET_AFTER * (len(book.addresses(peer)) if self._trusted(peer) else 1)
        if self._rumours.failures(peer) >= patience:
            book.forget(peer)

    async def _greet(self, peer: PeerId) -> None:
        try:
            if await say_hello(self._context, peer):
                self._hellos.succeeded(peer)
            else:
                self._hellos.failed(peer, trio.current_time())
                self._back_off(peer)
        finally:
            self._greeting.discard(peer)

    def _back_off(self, peer: PeerId) -> None:
        """A peer that will not have us is not dialled again at once either."""
        for address in (*self._configured, *self._context.engine.book.addresses(peer)):
            if address.endswith(f"/p2p/{peer}"):
                self._dials.failed(address, trio.current_time())
