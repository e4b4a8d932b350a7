"""Many keys of one person: players that a test, or an adversary, sends against a swarm of real services.

A `Sybil` is a transport without a service. It dials whom it is sent to, says hello again and again, and keeps to the
protocol: it gives a signed record at whose address it answers (if it is `reachable`), a chain that can be followed, and
the records of its fellows. A `Crowd` is some of them, in one network or in as many as there are keys. `Watch` counts
what honest nodes make of them: places held, and who went for whom. `besieged` plays one siege; run as a program, this
file prints the figures of docs/benchmarks.md.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from typing import Any

import trio
from gossip_samples import SCOPE
from gossip_swarm import RUN, FakeRuntime, swarm
from trio.testing import MockClock

from gossip.core.api import GossipEvent
from gossip.core.digests import NO_DIGEST
from gossip.core.envelope import seal
from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_HELLO_BYTES
from gossip.core.messages import (
    Hello,
    HelloRequest,
    encode_answer,
    encode_refusal,
    parse_bytes_answer,
    parse_hello,
    parse_request,
)
from gossip.core.statements import UpdateHeaderBody, record_statement, update_header_statement
from gossip.session import ask_once, serve
from gossip.transport.base import Stream, TransportError
from gossip.transport.memory.network import MemoryNetwork, MemoryTransport

FIRST_KEY = 700_000
"""Keys of sybils are `FIRST_KEY` + number: nobody else's in these tests."""

GREET_EVERY_S = 5.0
"""Twice as often as an honest node's heartbeats, which nobody charges for."""


def key_of(number: int) -> Identity:
    return Identity((FIRST_KEY + number).to_bytes(32, "big"))


@dataclass
class Sybil:
    """One key. `claims`: how many neighbours it says that it has; `told`: records of others that it tells."""

    identity: Identity
    transport: MemoryTransport
    reachable: bool = True
    claims: int = 0
    told: tuple[bytes, ...] = ()
    admitted_by: set[PeerId] = field(default_factory=set)

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    @property
    def record(self) -> bytes:
        addresses = tuple(self.transport.addresses) if self.reachable else ()
        return seal(self.identity, SCOPE, record_statement(epoch=1, version=1, addresses=addresses)).raw

    def hello(self) -> bytes:
        body = UpdateHeaderBody(round=0, kind="genesis", genesis=RUN.genesis)
        base = update_header_statement(epoch=1, seq=0, prev=NO_DIGEST, address=NO_DIGEST, body=body)
        return Hello(
            scope=SCOPE,
            genesis=RUN.genesis,
            neighbours=self.claims,
            admitted=True,
            link=seal(self.identity, SCOPE, base).raw,
            record=self.record,
            records=self.told,
        ).encode()

    async def greet(self, node: FakeRuntime) -> bool:
        """Dial and say hello once; whether it has a place then."""
        await self.transport.dial(node.address)
        request = HelloRequest(hello=self.hello())
        raw = await ask_once(self.transport, node.peer, request, 10.0, MAX_HELLO_BYTES + 64)
        admitted = parse_hello(parse_bytes_answer(raw, MAX_HELLO_BYTES)).admitted
        (self.admitted_by.add if admitted else self.admitted_by.discard)(node.peer)
        return admitted

    async def insist(self, nodes: Sequence[FakeRuntime]) -> None:
        """Greet all of these again and again, whatever they answer."""
        while True:
            for node in nodes:
                with suppress(TransportError, RemoteError, trio.TooSlowError):
                    await self.greet(node)
            await trio.sleep(GREET_EVERY_S)

    # -- what its transport calls

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        try:
            await serve(stream, self._answer, 10.0)
        except (RemoteError, TransportError):
            await stream.reset()

    async def _answer(self, raw: bytes) -> bytes:
        if isinstance(parse_request(raw), HelloRequest):
            return encode_answer(self.hello())
        return encode_refusal(Reason.UNAVAILABLE, "")

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        return False

    def peer_connected(self, peer: PeerId) -> None:
        pass

    def peer_lost(self, peer: PeerId) -> None:
        self.admitted_by.discard(peer)

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        return frozenset()

    def keeps(self, peer: PeerId) -> bool:
        return True

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        pass

    def caller_refused(self, caller: str, why: str) -> None:
        pass


def one_network(count: int) -> list[str | None]:
    return ["203.0.113.0/24"] * count


def networks_of_their_own(count: int) -> list[str | None]:
    return [f"198.51.{number}.0/24" for number in range(count)]


class Crowd:
    """As many sybils as there are networks; they know, and tell of, each other. `first`: of their keys."""

    def __init__(
        self,
        network: MemoryNetwork,
        networks: Sequence[str | None],
        *,
        first: int = 0,
        reachable: bool = True,
        claims: int = 0,
    ) -> None:
        self.sybils: list[Sybil] = []
        for number, name in enumerate(networks, start=first):
            key = key_of(number)
            transport = network.attach(key.peer_id, network=name)
            self.sybils.append(Sybil(key, transport, reachable=reachable, claims=claims))
        if reachable:
            told = tuple(each.record for each in self.sybils[:32])
            for each in self.sybils:
                each.told = tuple(raw for raw in told if raw != each.record)

    @property
    def peers(self) -> frozenset[PeerId]:
        return frozenset(each.peer for each in self.sybils)

    async def besiege(self, nodes: Sequence[FakeRuntime], nursery: trio.Nursery) -> None:
        """Listen, and greet all of these nodes all the time from now on. `nodes` may grow."""
        for each in self.sybils:
            await nursery.start(lambda *, task_status, each=each: each.transport.run(each, task_status=task_status))
        for each in self.sybils:
            nursery.start_soon(each.insist, nodes)


@dataclass(frozen=True)
class Held:
    """What stands at one moment: of each honest node its sybil neighbours, its honest ones, and evictions so far."""

    at_s: float
    sybils: tuple[int, ...]
    honest: tuple[int, ...]
    evicted: int

    def __str__(self) -> str:
        return (
            f"{self.at_s:.0f} s: sybils {min(self.sybils)}-{max(self.sybils)} (mean {_mean(self.sybils):.1f}), "
            f"honest {min(self.honest)}-{max(self.honest)} (mean {_mean(self.honest):.1f}), evicted {self.evicted}"
        )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


class Watch:
    """Looks at honest nodes among sybils."""

    def __init__(self, nodes: Sequence[FakeRuntime], sybils: frozenset[PeerId]) -> None:
        self._nodes = nodes
        self._sybils = sybils
        self._began = trio.current_time()

    def look(self) -> Held:
        honest = {node.peer for node in self._nodes}
        tables = [set(node.service.neighbours()) for node in self._nodes]
        return Held(
            at_s=trio.current_time() - self._began,
            sybils=tuple(len(table & self._sybils) for table in tables),
            honest=tuple(len(table & honest) for table in tables),
            evicted=len(self.evictions()),
        )

    def evictions(self) -> list[tuple[PeerId, PeerId, PeerId]]:
        """Node, honest neighbour that went, and the sybil that has its place."""
        honest = {node.peer for node in self._nodes}
        return [
            (node.peer, went, came)
            for node in self._nodes
            for went, came in displaced(node.events)
            if went in honest and came in self._sybils
        ]


def displaced(events: Sequence[GossipEvent]) -> list[tuple[PeerId, PeerId]]:
    """Who lost its place to whom: one is let go for another in one step, so the two events follow each other."""
    pairs = pairwise(events)
    return [
        (one.peer, other.peer)
        for one, other in pairs
        if one.name == "neighbour_lost" and other.name == "neighbour_up" and one.detail.startswith("its place goes")
    ]


async def besieged(
    honest: int,
    networks: Sequence[str | None],
    *,
    after_s: float,
    seed: int = 1,
    looks: Sequence[float] = (40.0, 120.0, 300.0),
    honest_networks: Sequence[str] | None = None,
    **crowd: Any,
) -> tuple[list[Held], Watch]:
    """A swarm of so many honest nodes, that know the first one's address, among sybils in these networks that come
    `after_s` seconds after the last of them; 0: as soon as the first of them listens. How it stands so many seconds
    later. `honest_networks`: by default each has one of its own."""
    at = honest_networks or [f"192.0.{number}.0/24" for number in range(honest)]
    async with swarm(seed=seed) as it, trio.open_nursery() as nursery:
        sybils, nodes = Crowd(it.network, networks, **crowd), [await it.start(1, network=at[0])]
        if not after_s:
            await sybils.besiege(nodes, nursery)
        for number in range(2, honest + 1):
            nodes.append(await it.start(number, peers=(nodes[0].address,), network=at[number - 1]))
        for node in nodes:
            await node.begin()
        if after_s:
            await trio.sleep(after_s)
            await sybils.besiege(nodes, nursery)
        watch, began, seen = Watch(nodes, sybils.peers), trio.current_time(), []
        for look in looks:
            await trio.sleep_until(began + look)
            seen.append(watch.look())
        nursery.cancel_scope.cancel()
    return seen, watch


def figures(seeds: int) -> None:
    """Print how it stands for 6 and 12 honest nodes, one network and twenty, at once and after 90 s; all seeds."""
    crowds = {"one network": one_network(20), "20 networks": networks_of_their_own(20)}
    for honest, (name, networks), after_s in product((6, 12), crowds.items(), (0.0, 90.0)):
        rows: list[list[Held]] = []
        for seed in range(1, seeds + 1):
            play = partial(besieged, honest, networks, after_s=after_s, seed=seed)
            rows.append(trio.run(play, clock=MockClock(autojump_threshold=0))[0])
        for seen in zip(*rows, strict=True):
            sybils, friends = [it for held in seen for it in held.sybils], [it for held in seen for it in held.honest]
            print(
                f"{honest} honest, {name} after {after_s:.0f} s, at {seen[0].at_s:.0f} s: "
                f"sybils {min(sybils)}-{max(sybils)} (mean {_mean(sybils):.1f}), "
                f"honest {min(friends)}-{max(friends)} (mean {_mean(friends):.1f}), "
                f"evicted {_mean([held.evicted for held in seen]):.1f}",
                flush=True,
            )


if __name__ == "__main__":
    figures(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
