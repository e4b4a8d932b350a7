"""Strangers' hellos to a live node: they crowd nobody out, cost little, and send nobody to a third party.

Each attack did harm before its defence was there; what it did is said in the test.
"""

import os
import random
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from hostile_harness import LAG_S, watched
from libp2p_harness import (
    until,
)

from gossip.core.api import GossipEvent, Head, RunInfo
from gossip.core.config import MIN_HEARTBEAT_S, GossipConfig
from gossip.core.digests import NO_DIGEST, digest_of, swarm_id_of
from gossip.core.envelope import Scope, seal
from gossip.core.identity import Identity
from gossip.core.ids import PeerId, RunId
from gossip.core.limits import MAX_HELLO_BYTES
from gossip.core.messages import Hello, HelloRequest, parse_bytes_answer, parse_hello
from gossip.core.statements import UpdateHeaderBody, record_statement, update_header_statement
from gossip.hellos.hello import HELLO_BURST, HELLO_PER_S
from gossip.service import GossipService
from gossip.session import ask_once
from gossip.transport.base import Stream
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport

RUN = RunInfo(run_id=RunId(b"r" * 16), genesis=digest_of(b"the initial model"))


SCOPE = Scope(swarm=swarm_id_of("p2ptrain"), run=RUN.run_id)


class Member:
    """A node of the swarm; its runtime accepts whatever comes."""

    def __init__(self, *peers: str, **config: Any) -> None:
        key = Identity(secrets.token_bytes(32))
        self.transport = Libp2pTransport(Libp2pConfig(), key.seed)
        self.events: list[GossipEvent] = []
        self.service = GossipService(
            identity=key,
            transport=self.transport,
            config=GossipConfig(peers=peers, **config),
            run=RUN,
            rng=random.Random(1),
            snapshot_source=self._snapshot,
            observer=self.events.append,
        )

    @property
    def peer_id(self) -> PeerId:
        return self.transport.peer_id

    @property
    def address(self) -> str:
        return self.transport.addresses[0]

    async def _snapshot(self) -> tuple[Head, bytes]:
        return self.service.head, b"estimate"

    async def live(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run)
            await self.service.begin_epoch(epoch=time.time_ns() // 1_000_000, round=0, snapshot=None)
            task_status.started()
            async for update in self.service.updates:
                self.service.accepted(update)


class Sybil:
    """A key that greets, as lonely as it pleases, and answers nothing."""

    def __init__(self) -> None:
        self.key = Identity(secrets.token_bytes(32))
        self.transport = Libp2pTransport(Libp2pConfig(), self.key.seed)
        self.records: tuple[bytes, ...] = ()

    def hello(self) -> bytes:
        body = UpdateHeaderBody(round=0, kind="genesis", genesis=RUN.genesis)
        base = update_header_statement(epoch=1, seq=0, prev=NO_DIGEST, address=NO_DIGEST, body=body)
        link = seal(self.key, SCOPE, base).raw
        hello = Hello(scope=SCOPE, genesis=RUN.genesis, neighbours=0, admitted=True, link=link, records=self.records)
        return hello.encode()

    async def greet(self, victim: Member) -> bool:
        await self.transport.dial(victim.address)
        request = HelloRequest(hello=self.hello())
        raw = await ask_once(self.transport, victim.peer_id, request, 10.0, MAX_HELLO_BYTES + 64)
        return parse_hello(parse_bytes_answer(raw, MAX_HELLO_BYTES)).admitted

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        await trio.sleep_forever()

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        return False

    def peer_connected(self, peer: PeerId) -> None:
        pass

    def peer_lost(self, peer: PeerId) -> None:
        pass

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        return frozenset()

    def keeps(self, peer: PeerId) -> bool:
        return True


@asynccontextmanager
async def swarm_of(*members: Member | Sybil) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for member in members:
            if isinstance(member, Member):
                await nursery.start(member.live)
            else:
                await nursery.start(member.transport.run, member)
        yield
        nursery.cancel_scope.cancel()


async def test_lonely_sybils_take_half_of_the_places_and_never_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """They pushed out one honest neighbour every 30 s, until a node had none: here the clock is helped along."""
    monkeypatch.setattr("gossip.updates.mesh.SWAP_EVERY_S", 0.05)
    monkeypatch.setattr("gossip.hellos.hello.HELLO_PER_S", 10.0)  # heartbeats come thirty times as often
    friend = Member(heartbeat_s=MIN_HEARTBEAT_S)
    async with swarm_of(friend):
        honest = [friend, *(Member(friend.address, heartbeat_s=MIN_HEARTBEAT_S) for _ in range(3))]
        victim = Member(friend.address, degree=4, heartbeat_s=MIN_HEARTBEAT_S)
        async with swarm_of(*honest[1:], victim):
            await until(lambda: sum(it.tracked for it in victim.service.neighbours().values()) == 4)
            await until(lambda: all(it.neighbours > 2 for it in victim.service._engine.neighbours.values()))
            sybils = [Sybil() for _ in range(8)]
            async with swarm_of(*sybils):
                for sybil in sybils:
                    await sybil.greet(victim)
                    await trio.sleep(0.06)
                left = {member.peer_id for member in honest} & set(victim.service.neighbours())
                assert friend.peer_id in left
                assert len(left) >= 2


async def test_hellos_without_end_are_refused_cheaply() -> None:
    """Hellos with 32 records of new keys cost 4 ms each, as many as a peer could send; all of them were dialled."""
    victim, sybil = Member(), Sybil()
    async with swarm_of(victim, sybil), watched() as watch:
        admitted, began = 0, trio.current_time()
        for n in range(4 * HELLO_BURST):
            keys = [Identity(bytes([n, k]) + os.urandom(30)) for k in range(4)]
            sybil.records = tuple(record_of(key, f"/ip4/127.0.0.1/tcp/9/p2p/{key.peer_id}") for key in keys)
            with suppress(Exception):
                admitted += await sybil.greet(victim)
        assert HELLO_BURST <= admitted <= HELLO_BURST + HELLO_PER_S * (trio.current_time() - began) + 1
        assert admitted < 4 * HELLO_BURST
        assert watch.worst_s < LAG_S
        assert [event.name for event in victim.events].count("dial_failed") == 0


def record_of(key: Identity, *addresses: str) -> bytes:
    return seal(key, SCOPE, record_statement(epoch=1, version=1, addresses=addresses)).raw


async def test_nobody_is_made_to_dial_a_third_party_again_and_again() -> None:
    """A hello with 32 records of one foreign address made each node of a swarm connect to it 4 times a second."""
    calls: list[float] = []

    async def called(stream: trio.SocketStream) -> None:
        calls.append(trio.current_time())
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, called, [listener])
        port = listener.socket.getsockname()[1]
        keys = [Identity(secrets.token_bytes(32)) for _ in range(32)]
        other, sybil = Member(), Sybil()
        sybil.records = tuple(record_of(key, f"/ip4/127.0.0.1/tcp/{port}/p2p/{key.peer_id}") for key in keys)
        async with swarm_of(other, sybil):
            victim = Member(other.address)
            async with swarm_of(victim):
                await sybil.greet(victim)
                await until(lambda: calls)
                await trio.sleep(4)
                assert 1 <= len(calls) <= 4
                assert {key.peer_id for key in keys} & {
                    entry.peer for entry in victim.service._engine.peerstore.known()
                }
                assert not {entry.peer for entry in other.service._engine.peerstore.known()} & {
                    key.peer_id for key in keys
                }
        nursery.cancel_scope.cancel()
