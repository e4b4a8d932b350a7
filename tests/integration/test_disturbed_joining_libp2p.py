"""A newcomer to a swarm of 6 with 25M parameters, over libp2p on loopback: two donors die in the middle, one lies.

Uplinks are bounded, so that the time is the links' and not this machine's.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from libp2p_harness import until

from gossip.api import Head, RunInfo, Tracked, Update
from gossip.config import GossipConfig
from gossip.errors import Reason
from gossip.identity import Identity
from gossip.ids import Digest, PeerId, RunId
from gossip.protocol.blobs import manifest_of
from gossip.protocol.limits import MARK_EVERY, MIB
from gossip.service import GossipService
from gossip.transport.libp2p import Libp2pConfig, Libp2pTransport

RUN = RunInfo(run_id=RunId(b"r" * 16), genesis=Digest(b"g" * 32))
SIZE = 4 * 25_000_000
UP = 2.0 * MIB
NEEDED = 3
PLACE_BYTES = 8


class Member:
    """Its estimate after link s is s in 8 bytes, and then `body`: an update says no more than that s is another."""

    def __init__(self, number: int, bodies: dict[PeerId, bytes], *, peers: tuple[str, ...] = ()) -> None:
        identity = Identity(number.to_bytes(32, "big"))
        self.peer = identity.peer_id
        self.transport = Libp2pTransport(Libp2pConfig(), identity.seed)
        self.applied: dict[PeerId, int] = {}
        self.taken: dict[PeerId, Digest] = {}
        self.seq = 0
        self.lie: bytes | None = None
        self.scope = trio.CancelScope()
        self._bodies = bodies
        self.service = GossipService(
            identity=identity,
            transport=self.transport,
            config=GossipConfig(peers=peers, up_bytes_per_s=UP, redial_min_s=0.25, max_payload_bytes=SIZE + MIB),
            run=RUN,
            rng=random.Random(number),
            snapshot_source=self._snapshot,
            tracked=Tracked(estimate=self._estimate),
        )

    @property
    def address(self) -> str:
        return self.transport.addresses[0]

    async def state(self) -> bytes:
        return self.lie or state_of(self._bodies[self.peer], self.seq)

    async def _snapshot(self) -> tuple[Head, bytes]:
        return self.service.head, await self.state()

    async def _estimate(self, peer: PeerId) -> bytes | None:
        return state_of(self._bodies[peer], self.applied[peer]) if peer in self.applied else None

    async def publish(self) -> None:
        self.seq += 1
        await self.service.publish(
            round=self.seq, codec="none", payload=b"%d" % self.seq, steps=1, tokens=1, state=self.state
        )

    async def consume(self) -> None:
        async for update in self.service.updates:
            self._take(update)
            self.service.accepted(update)

    def _take(self, update: Update) -> None:
        self.applied[update.peer] = update.seq
        if update.kind == "snapshot":
            assert update.payload is not None
            self.taken[update.peer] = manifest_of(update.payload).address

    def level_with(self, others: list["Member"]) -> bool:
        return all(self.applied.get(other.peer) == other.seq for other in others)


def state_of(body: bytes, seq: int) -> bytes:
    return seq.to_bytes(PLACE_BYTES, "big") + body


async def live(member: Member, *, task_status: trio.TaskStatus[None]) -> None:
    with member.scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(member.service.run)
            nursery.start_soon(member.consume)
            task_status.started()


async def reached(condition: Callable[[], bool]) -> None:
    """Within what all of this may take at the worst."""
    await until(condition, within_s=600.0)


@asynccontextmanager
async def trained(bodies: dict[PeerId, bytes]) -> AsyncIterator[tuple[list[Member], trio.Nursery]]:
    """Six members, the newest link of each beyond a mark that all the others have found true."""
    async with trio.open_nursery() as nursery:
        members: list[Member] = []
        for number in range(1, 7):
            members.append(Member(number, bodies, peers=tuple(member.address for member in members)))
            await nursery.start(live, members[-1])
        await reached(lambda: all(len(member.service.neighbours()) == 5 for member in members))
        for member in members:
            await member.service.begin_epoch(epoch=1000, round=0, snapshot=None)
        for _ in range(MARK_EVERY + 1):
            for member in members:
                await member.publish()
            await reached(lambda: all(one.level_with([it for it in members if it is not one]) for one in members))
        yield members, nursery
        nursery.cancel_scope.cancel()


async def seconds_to_join(bodies: dict[PeerId, bytes], *, disturbed: bool) -> float:
    """Until a newcomer holds, bit for bit, what all honest members that are left have told; checked by digest."""
    async with trained(bodies) as (members, nursery):
        liar, *dying, _, _, _ = members
        left = members[3:] if disturbed else members
        if disturbed:
            liar.lie = random.Random(77).randbytes(SIZE)
            liar.service._engine.publisher._offers.clear()  # it cuts another one for whoever asks
        one = Member(99, bodies, peers=tuple(member.address for member in members))
        began = trio.current_time()
        await nursery.start(live, one)
        if disturbed:
            await reached(lambda: one.service.stats.snapshot_bytes_received > 2 * SIZE)
            for member in dying:
                assert member.peer not in one.applied
                member.scope.cancel()
        found = await one.service.wait_for_tracked(NEEDED, 600.0, of_those_here=True)
        await reached(lambda: one.level_with(left))
        seconds = trio.current_time() - began
        assert found >= NEEDED
        truth = {member.peer: manifest_of(state_of(bodies[member.peer], MARK_EVERY)).address for member in left}
        assert one.taken == truth
        contradicted = {peer for peer, why in one.service.stats.rejected if why is Reason.CONTRADICTED}
        assert contradicted == ({liar.peer} if disturbed else set())
    return seconds


@pytest.mark.soak
async def test_a_newcomer_to_25m_parameters_is_not_held_up() -> None:
    peers = [Identity(number.to_bytes(32, "big")).peer_id for number in range(1, 7)]
    bodies = {peer: random.Random(peer).randbytes(SIZE - PLACE_BYTES) for peer in peers}
    undisturbed = await seconds_to_join(bodies, disturbed=False)
    disturbed = await seconds_to_join(bodies, disturbed=True)
    print(f"{undisturbed:.1f} s undisturbed, {disturbed:.1f} s disturbed")
    assert disturbed < 1.5 * undisturbed
