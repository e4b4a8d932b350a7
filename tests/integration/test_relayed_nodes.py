"""Nodes that nobody can dial, and a third that relays, over real libp2p on loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from libp2p_harness import Node, running, until
from members_harness import Member, living

from gossip.errors import RemoteError
from gossip.protocol.relaying import (
    MAX_CIRCUITS,
    MAX_CIRCUITS_OF_PEER,
    RELAYED_PROTOCOL,
    circuit_address,
    encode_relayed,
)
from gossip.running import reacher
from gossip.running.session import FrameStream
from gossip.transport.base import Stream, TransportError
from gossip.transport.libp2p_guard import Faults
from gossip.transport.libp2p_relay import CircuitEnds


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reacher, "LOOK_REACH_S", 0.1)


@asynccontextmanager
async def relayed(relays: int, **config: object) -> AsyncIterator[tuple[list[Member], Member, Member]]:
    """Two hidden members that know so many relays."""
    offering = [Member(number, relay=True, **config) for number in range(1, relays + 1)]
    async with living(*offering):
        addresses = tuple(member.address for member in offering)
        one, other = (Member(number, hidden=True, peers=addresses) for number in (8, 9))
        async with living(one, other):
            yield offering, one, other


async def test_two_that_nobody_can_dial_become_neighbours_and_exchange_updates() -> None:
    payload = bytes(3 << 20)  # bulk: a data connection is wanted, and cannot be had over a circuit
    async with relayed(1, relay_bytes_per_s=64e6) as ((relay,), one, other):
        await until(lambda: one.follows(other) and other.follows(one), 20)
        assert "nobody can dial this node" in one.told() + other.told()
        await one.service.begin_epoch(epoch=1, round=0, snapshot=None)
        await one.service.publish(round=1, codec="none", payload=payload, steps=1, tokens=1)
        await until(lambda: any(it.payload == payload for it in other.updates), 20)
        assert relay.service.stats.rejected_by_reason == {}
        assert (one.service.reachability(), other.service.reachability()) == ("outbound", "outbound")


async def test_a_relay_that_stops_costs_a_dial_through_another() -> None:
    async with relayed(2) as (offering, one, other):
        await until(lambda: one.follows(other) and other.follows(one), 20)
        await until(lambda: all(len(each.service._context.relayed) == 2 for each in (one, other)), 20)
        carrying = next(member for member in offering if len(member.service._relay.circuits))
        carrying.scope.cancel()
        await until(lambda: not one.follows(carrying), 20)
        await until(lambda: one.follows(other) and other.follows(one), 30)
        left = next(member for member in offering if member is not carrying)
        await until(lambda: len(left.service._relay.circuits) == 1, 20)


async def test_without_an_offer_there_is_no_circuit() -> None:
    plain = Member(1)
    async with living(plain):
        one, other = (Member(number, hidden=True, peers=(plain.address,)) for number in (8, 9))
        async with living(one, other):
            await until(lambda: "nobody can dial" in one.told() and "nobody can dial" in other.told(), 20)
            assert await one.transport.relayed_by(plain.transport.peer_id) is None
            with pytest.raises(TransportError, match="does not relay"):
                await one.transport.dial(circuit_address(plain.transport.peer_id, other.transport.peer_id))
            assert not one.follows(other)


async def test_a_peer_has_so_many_circuits_and_no_more() -> None:
    async with relayed(1) as ((relay,), one, other):
        await until(lambda: one.follows(other) and other.follows(one), 20)
        circuits = relay.service._relay.circuits
        while circuits._ends[one.transport.peer_id] < MAX_CIRCUITS_OF_PEER:
            circuits._ends.update((one.transport.peer_id, "12D3KooSomebody"))
        with pytest.raises(TransportError, match="too many circuits"):
            await one.transport.probe(circuit_address(relay.transport.peer_id, other.transport.peer_id))


async def test_a_circuit_that_was_not_asked_for_is_not_taken() -> None:
    stranger, node = Node(), Node()
    async with running(stranger, node):
        await stranger.transport.dial(node.address)
        stream = await stranger.transport.open_stream(node.peer_id, RELAYED_PROTOCOL)
        frames = FrameStream(stream, 5)
        await frames.send(encode_relayed(stranger.peer_id))
        assert b"no circuit is wanted" in bytes(await frames.receive(320) or b"")


async def test_no_more_circuits_are_taken_than_may_be_however_many_come_at_once() -> None:
    relay, node = Node(), Node()
    async with running(relay, node):
        await relay.transport.dial(node.address)
        await until(lambda: node.log == [("up", relay.peer_id)])
        node.transport._circuits._relays.add(relay.peer_id)

        async def offered() -> tuple[Stream, bool]:
            stream = await relay.transport.open_stream(node.peer_id, RELAYED_PROTOCOL)
            frames = FrameStream(stream, 5)
            await frames.send(encode_relayed(relay.peer_id))
            return stream, await frames.receive(320) == b"\x91\xc3"

        came = [await offered() for _ in range(MAX_CIRCUITS + 2)]  # none of them begins its handshake
        assert [taken for _, taken in came] == [True] * MAX_CIRCUITS + [False] * 2
        for stream, _ in came:
            await stream.reset()
        await until(lambda: not node.transport._circuits._coming)
        stream, taken = await offered()
        assert taken
        await stream.reset()


async def test_circuits_that_ended_make_room_for_others() -> None:
    ends, relay, target = Ends(), Node().peer_id, Node().peer_id
    for _ in range(2):
        outcomes: list[str] = []

        async def dial(outcomes: list[str] = outcomes) -> None:
            try:
                await ends.dial(relay, target)
                outcomes.append("")
            except TransportError as error:
                outcomes.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(MAX_CIRCUITS + 2):
                nursery.start_soon(dial)
        assert sorted(outcomes) == [""] * MAX_CIRCUITS + [f"{MAX_CIRCUITS} circuits end here already"] * 2
        for muxed in ends.made:
            muxed.event_closed.set()


class Muxed:
    """A connection, as far as its end is looked at."""

    def __init__(self) -> None:
        self.event_closed = trio.Event()


class Ends(CircuitEnds):
    """Its circuits are granted, and are connections a moment later."""

    def __init__(self) -> None:
        self.made: list[Muxed] = []
        super().__init__(self, Faults(), self._asked)  # type: ignore[arg-type]

    async def _asked(self, relay: object, target: object) -> Any:
        await trio.lowlevel.checkpoint()

    async def _upgraded(self, stream: object, peer: object, *, dials: bool) -> Muxed:
        await trio.lowlevel.checkpoint()
        self.made.append(Muxed())
        return self.made[-1]

    async def add_conn(self, muxed: Muxed) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_relay_cannot_say_that_another_is_there() -> None:
    """It tells the far end of one peer, and sends another: the far end looks whose key it is."""
    liar, node, victim = Node(), Node(), Node()
    async with running(liar, node, victim):
        await liar.transport.dial(node.address)
        await until(lambda: node.log == [("up", liar.peer_id)])
        node.transport._circuits._relays.add(liar.peer_id)
        stream = await liar.transport.open_stream(node.peer_id, RELAYED_PROTOCOL)
        frames = FrameStream(stream, 5)
        await frames.send(encode_relayed(victim.peer_id))
        assert await frames.receive(320) == b"\x91\xc3"
        with suppress(TransportError):  # the liar's end of the handshake may be over before the other looks
            await liar.transport._circuits._upgraded(stream, node.peer_id, dials=True)
        await until(lambda: node.transport.faults.get("circuit"))
        assert node.transport.peers == {liar.peer_id}
        assert len(node.transport._swarm.get_connections()) == 1


async def test_a_relay_cannot_pass_itself_off_as_the_peer() -> None:
    """It connects the asker to itself: Noise at the asker's end expects another key."""
    liar, node, victim = Node(), Node(), Node()

    async def answers_itself(protocol: str, stream: object) -> None:
        frames = FrameStream(stream, 5)  # type: ignore[arg-type]
        await frames.receive(96)
        await frames.send(b"\x91\xc3")
        with pytest.raises((TransportError, RemoteError)):
            await liar.transport._circuits._upgraded(stream, node.peer_id, dials=False)  # type: ignore[arg-type]

    liar.handle_stream = answers_itself  # type: ignore[method-assign]
    async with running(liar, node, victim):
        await node.transport.dial(liar.address)
        with pytest.raises(TransportError):
            await node.transport.dial(circuit_address(liar.peer_id, victim.peer_id))
        assert victim.peer_id not in node.transport.peers
