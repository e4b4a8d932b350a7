"""Nodes that nobody can dial, and a third that relays, over real libp2p on loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from libp2p_harness import Node, running, until
from members_harness import Member, living

from gossip.core.errors import GossipError, LocalError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.reachability import reachability_task
from gossip.reachability.circuit import (
    STOP_PROTOCOL,
    CircuitKind,
    CircuitMessage,
    CircuitStatus,
    Reservation,
    encode_hop,
    encode_stop,
    parse_hop,
    parse_stop,
)
from gossip.reachability.circuit_ends_task import CircuitEnds
from gossip.reachability.delimited_task import receive_message, send_message
from gossip.reachability.relay import MAX_CIRCUITS, MAX_CIRCUITS_OF_PEER, RESERVATION_S, circuit_address
from gossip.reachability.vouchers import seal_voucher
from gossip.transport.base import Stream, TransportError
from gossip.transport.libp2p.fault_guard import Faults


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability_task, "LOOK_REACH_S", 0.1)


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
        await until(lambda: one.follows(other) and other.follows(one))
        assert "nobody can dial this node" in one.told() + other.told()
        await one.service.begin_epoch(epoch=1, round=0, snapshot=None)
        await one.service.publish(round=1, codec="none", payload=payload, steps=1, tokens=1)
        await until(lambda: any(it.payload == payload for it in other.updates))
        assert relay.service.stats.rejected_by_reason == {}
        assert (one.service.reachability(), other.service.reachability()) == ("outbound", "outbound")


async def test_a_relay_that_stops_costs_a_dial_through_another() -> None:
    async with relayed(2) as (offering, one, other):
        await until(lambda: one.follows(other) and other.follows(one))
        await until(lambda: all(len(each.service._context.relayed) == 2 for each in (one, other)))
        carrying = next(member for member in offering if len(member.service._relay.circuits))
        carrying.scope.cancel()
        await until(lambda: not one.follows(carrying))
        await until(lambda: one.follows(other) and other.follows(one))
        left = next(member for member in offering if member is not carrying)
        await until(lambda: len(left.service._relay.circuits))  # two where both have dialled at once


async def test_without_an_offer_there_is_no_circuit() -> None:
    plain = Member(1)
    async with living(plain):
        one, other = (Member(number, hidden=True, peers=(plain.address,)) for number in (8, 9))
        async with living(one, other):
            await until(lambda: "nobody can dial" in one.told() and "nobody can dial" in other.told())
            assert await one.transport.relayed_by(plain.transport.peer_id) is None
            with pytest.raises(TransportError, match="permission_denied"):
                await one.transport.dial(circuit_address(plain.transport.peer_id, other.transport.peer_id))
            assert not one.follows(other)


async def test_a_peer_has_so_many_circuits_and_no_more() -> None:
    async with relayed(1) as ((relay,), one, other):
        await until(lambda: one.follows(other) and other.follows(one))
        circuits = relay.service._relay.circuits
        while circuits._ends[one.transport.peer_id] < MAX_CIRCUITS_OF_PEER:
            circuits._ends.update((one.transport.peer_id, "12D3KooSomebody"))
        with pytest.raises(TransportError, match="resource_limit_exceeded"):
            await one.transport.probe(circuit_address(relay.transport.peer_id, other.transport.peer_id))


@asynccontextmanager
async def connected(
    granted_for_s: float | None = 60.0, identity: Identity | None = None
) -> AsyncIterator[tuple[Node, Node]]:
    """What passes for a relay, and a node that has (or had, or never had) a reservation with it."""
    relay, node = Node(seed=b"" if identity is None else identity.seed), Node()
    async with running(relay, node):
        await relay.transport.dial(node.address)
        await until(lambda: node.log == [("up", relay.peer_id)])
        if granted_for_s is not None:
            node.transport._circuits._relays[relay.peer_id] = trio.current_time() + granted_for_s
        yield relay, node


async def offered(relay: Node, node: Node, asker: PeerId) -> tuple[Stream, int | None]:
    """A circuit of `asker` is offered to the node: the stream, and the node's answer."""
    stream = await relay.transport.open_stream(node.peer_id, STOP_PROTOCOL)
    await send_message(stream, encode_stop(CircuitMessage(kind=CircuitKind.CONNECT, peer=asker)), 5)
    return stream, parse_stop(await receive_message(stream, 5) or b"").status


@pytest.mark.parametrize("granted_for_s", [None, -1.0], ids=["never reserved", "expired"])
async def test_a_circuit_that_was_not_asked_for_is_not_taken(granted_for_s: float | None) -> None:
    async with connected(granted_for_s) as (stranger, node):
        _, status = await offered(stranger, node, stranger.peer_id)
        assert status == CircuitStatus.PERMISSION_DENIED
        await until(lambda: node.transport.drops["circuit_unasked"] == 1)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"hello", CircuitStatus.MALFORMED_MESSAGE),
        (b"\x08\x00", CircuitStatus.MALFORMED_MESSAGE),  # a circuit of nobody
        (encode_stop(CircuitMessage(kind=CircuitKind.STATUS, status=100)), CircuitStatus.UNEXPECTED_MESSAGE),
        (b"\x08\x09", CircuitStatus.UNEXPECTED_MESSAGE),
    ],
)
async def test_what_is_no_circuit_is_told_so_and_counted(raw: bytes, status: CircuitStatus) -> None:
    async with connected() as (relay, node):
        stream = await relay.transport.open_stream(node.peer_id, STOP_PROTOCOL)
        await send_message(stream, raw, 5)
        assert parse_stop(await receive_message(stream, 5) or b"").status == status
        await until(lambda: node.transport.drops["circuit"] == 1)


async def test_no_more_circuits_are_taken_than_may_be_however_many_come_at_once() -> None:
    async with connected() as (relay, node):
        # None of them begins its handshake.
        came = [await offered(relay, node, relay.peer_id) for _ in range(MAX_CIRCUITS_OF_PEER + 2)]
        assert [status for _, status in came] == [CircuitStatus.OK] * MAX_CIRCUITS_OF_PEER + [
            CircuitStatus.RESOURCE_LIMIT_EXCEEDED
        ] * 2
        for stream, _ in came:
            await stream.reset()
        await until(lambda: not node.transport._circuits._coming)
        stream, status = await offered(relay, node, relay.peer_id)
        assert status == CircuitStatus.OK
        await stream.reset()


async def test_a_source_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossip.reachability.circuit_ends_task.RELAY_S", 0.2)
    async with connected() as (relay, node):
        _, status = await offered(relay, node, relay.peer_id)
        assert status == CircuitStatus.OK
        assert node.transport._circuits._coming.total() == 1
        await until(lambda: not node.transport._circuits._coming and node.transport.drops["circuit"] == 1)


async def test_a_relay_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossip.reachability.circuit_ends_task.RELAY_S", 0.1)
    async with connected() as (relay, node):
        monkeypatch.setattr(relay, "handle_stream", _silent)
        with pytest.raises(TransportError, match="timeout"):
            await node.transport.dial(circuit_address(relay.peer_id, Node().peer_id))
        assert await node.transport.relayed_by(relay.peer_id) is None


async def _silent(protocol: str, stream: Stream) -> None:
    await trio.sleep_forever()


async def test_an_address_with_something_else_than_a_peer_is_the_users_mistake() -> None:
    async with connected() as (relay, node):
        with pytest.raises(LocalError, match="not a peer id"):
            await node.transport.dial(f"/p2p/{relay.peer_id}/p2p-circuit/p2p/nobody")


@pytest.mark.parametrize("signs", ["relay", "other", "nobody"])
async def test_a_voucher_that_the_relay_has_not_signed_is_no_reservation(signs: str) -> None:
    its = Identity.generate()
    async with connected(None, its) as (relay, node):
        expire = 2_000_000_000
        signer = {"relay": its, "other": Identity.generate()}.get(signs)
        voucher = None if signer is None else seal_voucher(signer, node.peer_id, expire)
        reservation = Reservation(expire=expire, voucher=voucher)

        async def grant(protocol: str, stream: Stream) -> None:
            assert parse_hop(await receive_message(stream, 5) or b"").kind is CircuitKind.RESERVE
            answer = CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.OK, reservation=reservation)
            await send_message(stream, encode_hop(answer), 5)

        relay.handle_stream = grant  # type: ignore[method-assign]
        granted = await node.transport.relayed_by(relay.peer_id)
        if signs == "other":
            assert granted is None
            await until(lambda: node.transport.drops["circuit"] == 1)
        else:
            assert granted is not None
            assert (granted.address, granted.lasts_s) == (circuit_address(relay.peer_id, node.peer_id), RESERVATION_S)


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
        super().__init__(self, Faults().note, self._nothing)  # type: ignore[arg-type]

    async def _circuit(self, relay: object, target: object) -> Muxed:
        await trio.lowlevel.checkpoint()
        self.made.append(Muxed())
        return self.made[-1]

    async def _nothing(self, *_: object) -> Any:
        """No stream is opened."""

    async def add(self, muxed: Muxed) -> None:
        await trio.lowlevel.checkpoint()

    def closed(self, muxed: Muxed) -> trio.Event:
        return muxed.event_closed


async def test_a_relay_cannot_say_that_another_is_there() -> None:
    """It tells the far end of one peer, and sends another: the far end looks whose key it is."""
    async with connected() as (liar, node):
        stream, status = await offered(liar, node, Node().peer_id)
        assert status == CircuitStatus.OK
        with suppress(TransportError):  # the liar's end of the handshake may be over before the other looks
            await liar.transport._circuits._upgraded(stream, node.peer_id, dials=True)
        await until(lambda: node.transport.faults.get("circuit"))
        assert node.transport.peers == {liar.peer_id}
        assert len(node.transport._swarm.get_connections()) == 1


async def test_a_relay_cannot_pass_itself_off_as_the_peer() -> None:
    """It connects the asker to itself: Noise at the asker's end expects another key."""
    liar, node, victim = Node(), Node(), Node()

    async def answers_itself(protocol: str, stream: Stream) -> None:
        await receive_message(stream, 5)
        await send_message(stream, encode_hop(CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.OK)), 5)
        with pytest.raises(GossipError):
            await liar.transport._circuits._upgraded(stream, node.peer_id, dials=False)

    liar.handle_stream = answers_itself  # type: ignore[method-assign]
    async with running(liar, node, victim):
        await node.transport.dial(liar.address)
        with pytest.raises(TransportError):
            await node.transport.dial(circuit_address(liar.peer_id, victim.peer_id))
        assert victim.peer_id not in node.transport.peers
