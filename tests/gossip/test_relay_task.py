"""Relaying: addresses, the bounds of circuits, and a relay over the in-memory network."""

import pytest
import trio
from gossip_swarm import identity, swarm, until
from relay_swarm import RESERVE, Quiet, asked, carrying, circuit_to, refused, status_of, three, with_room

from gossip.core.errors import Reason
from gossip.reachability.circuit import (
    HOP_PROTOCOL,
    CircuitKind,
    CircuitMessage,
    CircuitStatus,
    encode_hop,
    encode_stop,
)
from gossip.reachability.delimited_task import send_message
from gossip.reachability.relay import (
    CIRCUIT_IDLE_S,
    CONNECTS_BURST,
    MAX_CIRCUITS,
    MAX_CIRCUITS_OF_PEER,
    RELAY_S,
    Circuits,
    circuit_address,
    parse_circuit,
)
from gossip.reachability.relay_task import Relay
from gossip.transport.base import TransportError

ONE, TWO = (identity(number).peer_id for number in (1, 2))


def test_an_address_through_a_relay_comes_back_as_it_was():
    assert parse_circuit(circuit_address(ONE, TWO)) == (ONE, TWO)


@pytest.mark.parametrize("host", ["/ip4/1.2.3.4/tcp/1", "/ip6/2001:db8::1/tcp/65535", "/dns4/relay.example/tcp/4001"])
def test_where_the_relay_listens_may_stand_before_it(host):
    assert parse_circuit(f"{host}/p2p/{ONE}/p2p-circuit/p2p/{TWO}") == (ONE, TWO)


@pytest.mark.parametrize(
    "address",
    [
        "",
        f"/p2p/{ONE}",
        f"/ip4/1.2.3.4/p2p/{ONE}/p2p-circuit/p2p/{TWO}",
        f"/ip4/1.2.3.4/udp/1/quic-v1/p2p/{ONE}/p2p-circuit/p2p/{TWO}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{ONE}/p2p-circuit",
        f"/p2p/{ONE}/p2p-circuit/p2p/{TWO}/p2p-circuit/p2p/{ONE}",
        f"/p2p/{ONE}/p2p-circuit/p2p/{TWO}\n",
    ],
)
def test_other_addresses_are_none_through_a_relay(address):
    assert parse_circuit(address) is None


def test_circuits_are_bounded_by_either_end_and_in_all():
    circuits = with_room(ONE, TWO, identity(8).peer_id)
    busy = [identity(number).peer_id for number in range(100, 100 + MAX_CIRCUITS)]
    taken = [circuits.take(peer, ONE, 0.0) for peer in busy[: MAX_CIRCUITS_OF_PEER + 1]]
    assert taken == [CircuitStatus.OK] * MAX_CIRCUITS_OF_PEER + [CircuitStatus.RESOURCE_LIMIT_EXCEEDED]
    taken = [circuits.take(peer, TWO, 0.0) for peer in busy[MAX_CIRCUITS_OF_PEER:]]
    assert set(taken) == {CircuitStatus.OK}
    assert len(circuits) == MAX_CIRCUITS
    assert circuits.take(identity(7).peer_id, identity(8).peer_id, 0.0) is CircuitStatus.RESOURCE_LIMIT_EXCEEDED
    circuits.leave(busy[0], ONE)
    assert circuits.take(identity(7).peer_id, identity(8).peer_id, 0.0) is CircuitStatus.OK


def test_all_circuits_together_keep_to_the_bound():
    circuits = Circuits(1000.0)
    assert [circuits.pause(500, 0.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert circuits.pause(500, 10.0) == 0.0


async def test_bytes_go_both_ways_at_the_bound_and_no_faster(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await carrying(it, monkeypatch, relay_bytes_per_s=10_000.0)
        answer, stream = await asked(one, relay, circuit_to(other.peer))
        assert (answer.status, answer.limit) == (CircuitStatus.OK, None)
        began, sent, got = trio.current_time(), b"x" * 200_000, bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, sent)
            while len(got) < len(sent):
                got += await stream.receive_some(1 << 20)
        assert bytes(got) == sent
        assert 2 * len(sent) / 10_000 * 0.9 <= trio.current_time() - began <= 2 * len(sent) / 10_000 * 1.1
        relaying = relay.service.relaying()
        assert (relaying.circuits, relaying.carried_bytes, relaying.refused) == (1, 2 * len(sent), {})
        await stream.reset()
        await until(lambda: relay.service.relaying().circuits == 0)


async def test_an_idle_circuit_ends(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await carrying(it, monkeypatch)
        await asked(one, relay, circuit_to(other.peer))
        await trio.sleep(0.9 * CIRCUIT_IDLE_S)
        assert len(relay.service._relay.circuits) == 1
        await trio.sleep(0.2 * CIRCUIT_IDLE_S)
        assert len(relay.service._relay.circuits) == 0


async def test_a_relay_serves_its_neighbours_alone(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await carrying(it, monkeypatch)
        for target in (identity(77).peer_id, one.peer):
            assert await status_of(one, relay, circuit_to(target)) == CircuitStatus.NO_RESERVATION
        assert await status_of(relay, other, circuit_to(one.peer)) == CircuitStatus.PERMISSION_DENIED
        assert await status_of(relay, other, RESERVE) == CircuitStatus.PERMISSION_DENIED
        stranger = it.network.attach(identity(50).peer_id)
        async with trio.open_nursery() as nursery:
            await nursery.start(stranger.run, Quiet())
            await stranger.dial(relay.address)
            for ask in (RESERVE, circuit_to(other.peer)):
                assert await status_of(stranger, relay, ask) == CircuitStatus.PERMISSION_DENIED
            nursery.cancel_scope.cancel()
        assert len(relay.service._relay.circuits) == 0
        assert refused(relay) == {"no_reservation": 2, "permission_denied": 2}
        assert relay.service.stats.rejected == {}


async def test_who_is_connected_through_another_relay_is_not_relayed_for(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await carrying(it, monkeypatch)
        monkeypatch.setattr(relay.transport, "address_at", lambda peer, port: None)
        assert await status_of(one, relay, circuit_to(other.peer)) == CircuitStatus.PERMISSION_DENIED
        assert await status_of(one, relay, RESERVE) == CircuitStatus.PERMISSION_DENIED


async def test_who_asks_again_and_again_floods(autojump_clock):
    async with swarm() as it:
        relay, one, other = await three(it)
        for _ in range(CONNECTS_BURST):
            assert await status_of(one, relay, circuit_to(other.peer)) == CircuitStatus.NO_RESERVATION
        assert await status_of(one, relay, circuit_to(other.peer)) == CircuitStatus.RESOURCE_LIMIT_EXCEEDED
        assert relay.service.stats.rejected[one.peer, Reason.FLOODED] == 1


@pytest.mark.parametrize(
    ("raw", "status", "reason"),
    [
        (b"hello", CircuitStatus.MALFORMED_MESSAGE, Reason.MALFORMED),
        (b"\x08\x07", CircuitStatus.UNEXPECTED_MESSAGE, Reason.UNKNOWN_KIND),
        (
            encode_hop(CircuitMessage(kind=CircuitKind.STATUS, status=100)),
            CircuitStatus.UNEXPECTED_MESSAGE,
            Reason.PROTOCOL,
        ),
    ],
)
async def test_what_is_no_request_is_told_so_and_charged(autojump_clock, raw, status, reason):
    async with swarm() as it:
        relay, one, _ = await three(it)
        assert await status_of(one, relay, raw) == status
        assert relay.service.stats.rejected == {(one.peer, reason): 1}
        assert refused(relay) == {status.label: 1}


async def test_a_request_that_is_too_long_is_charged_and_one_that_never_comes_is_not(autojump_clock):
    async with swarm() as it:
        relay, one, _ = await three(it)
        silent, oversize = [await one.transport.open_stream(relay.peer, HOP_PROTOCOL) for _ in range(2)]
        await oversize.send_all(b"\xff\xff")
        with pytest.raises(TransportError):
            await oversize.receive_some(1)
        assert relay.service.stats.rejected == {(one.peer, Reason.OVERSIZE): 1}
        began = trio.current_time()
        with pytest.raises(TransportError):
            await silent.receive_some(1)
        assert trio.current_time() - began == pytest.approx(RELAY_S)
        assert relay.service.stats.rejected == {(one.peer, Reason.OVERSIZE): 1}


async def test_a_relay_that_nobody_can_dial_is_none(autojump_clock):
    async with swarm() as it:
        one = await it.start(1)
        relay = it.make(2, relay=True, peers=(one.address,))
        it.network.hide(relay.peer)
        await it.launch(relay)
        await until(lambda: relay.told("reachability") != [])
        assert await status_of(one, relay, RESERVE) == CircuitStatus.RESERVATION_REFUSED


async def test_a_far_end_that_does_not_want_it_costs_the_asker_nothing(autojump_clock):
    async with swarm() as it:
        relay, one, other = await three(it)
        assert await status_of(other, relay, RESERVE) == CircuitStatus.OK
        it.network.stall(other.peer)
        began = trio.current_time()
        assert await status_of(one, relay, circuit_to(other.peer)) == CircuitStatus.CONNECTION_FAILED
        assert trio.current_time() - began <= RELAY_S + 1
        assert one.peer not in {peer for peer, _ in relay.service.stats.rejected}
        assert len(relay.service._relay.circuits) == 0
        it.network.unstall(other.peer)


async def test_a_far_end_that_takes_no_stream_is_given_up(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await three(it)
        assert await status_of(other, relay, RESERVE) == CircuitStatus.OK

        async def never(peer, protocol, *, bulk=False):
            await trio.sleep_forever()

        monkeypatch.setattr(relay.transport, "open_stream", never)
        assert await status_of(one, relay, circuit_to(other.peer)) == CircuitStatus.CONNECTION_FAILED


@pytest.mark.parametrize(
    "answer",
    [
        CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.PERMISSION_DENIED),
        CircuitMessage(kind=CircuitKind.CONNECT, peer=ONE),
        None,
    ],
)
async def test_only_a_far_ends_ok_makes_a_circuit(autojump_clock, monkeypatch, answer):
    async with swarm() as it:
        relay, one, other = await three(it)
        assert await status_of(other, relay, RESERVE) == CircuitStatus.OK

        async def end(stream):
            if answer is not None:
                await send_message(stream, encode_stop(answer), 30)

        monkeypatch.setattr(other.transport, "circuit_end", end)
        assert await status_of(one, relay, circuit_to(other.peer)) == CircuitStatus.CONNECTION_FAILED
        assert len(relay.service._relay.circuits) == 0


async def test_a_circuit_whose_far_end_reads_no_more_ends_in_time(autojump_clock):
    """What is cut off in the middle of a piece cannot be continued, and the places of both would be held for ever."""

    class Endless:
        async def receive_some(self, most):
            await trio.lowlevel.checkpoint()
            return bytes(most)

        async def send_all(self, data):
            await trio.sleep_forever()

    relay = Relay(
        transport=None,
        identity=identity(1),
        circuits=Circuits(1e9),
        serves=lambda peer: True,
        addresses=tuple,
        offence=lambda peer, error: None,
        unix_time=lambda: 0.0,
    )
    with trio.fail_after(2 * CIRCUIT_IDLE_S):
        await relay._carry(Endless(), Endless())
    assert (trio.current_time(), relay.circuits.carried) == (CIRCUIT_IDLE_S, 0)
