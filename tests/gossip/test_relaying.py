"""Relaying: the messages, the bounds of circuits, and a relay over the in-memory network."""

from contextlib import suppress

import pytest
import trio
from gossip_swarm import identity, swarm, until
from hypothesis import given
from hypothesis import strategies as st

from gossip.errors import Reason, RemoteError
from gossip.protocol.messages import Refused, parse_empty_answer
from gossip.protocol.relaying import (
    CIRCUIT_IDLE_S,
    CONNECTS_BURST,
    MAX_CIRCUITS,
    MAX_CIRCUITS_OF_PEER,
    RELAY_PROTOCOL,
    Circuits,
    circuit_address,
    encode_relay_ask,
    encode_relayed,
    parse_circuit,
    parse_relay_ask,
    parse_relayed,
)
from gossip.protocol.wire import pack
from gossip.running.session import FrameStream
from gossip.transport.base import TransportError

ONE, TWO = (identity(number).peer_id for number in (1, 2))


def test_an_address_through_a_relay_comes_back_as_it_was():
    assert parse_circuit(circuit_address(ONE, TWO)) == (ONE, TWO)


@pytest.mark.parametrize("address", ["", f"/p2p/{ONE}", f"/ip4/1.2.3.4/tcp/1/p2p/{ONE}/p2p-circuit/p2p/{TWO}"])
def test_other_addresses_are_none_through_a_relay(address):
    assert parse_circuit(address) is None


def test_requests_come_back_as_they_were():
    assert parse_relay_ask(encode_relay_ask(None)) is None
    assert parse_relay_ask(encode_relay_ask(ONE)) == ONE
    assert parse_relayed(encode_relayed(ONE)) == ONE


@given(st.binary(max_size=120))
def test_any_bytes_are_a_request_or_a_refusal(raw):
    for parse in (parse_relay_ask, parse_relayed):
        with suppress(RemoteError):
            assert parse(raw) != ""


def test_a_request_for_something_else_is_refused():
    with pytest.raises(RemoteError, match="asked for dinner"):
        parse_relay_ask(pack(("dinner",)))


def test_circuits_are_bounded_by_either_end_and_in_all():
    circuits = Circuits(1e6)
    busy = [identity(number).peer_id for number in range(100, 100 + MAX_CIRCUITS)]
    for peer in busy[:MAX_CIRCUITS_OF_PEER]:
        circuits.take(peer, ONE, 0.0)
    with pytest.raises(RemoteError, match="too many circuits"):
        circuits.take(busy[-1], ONE, 0.0)
    for peer in busy[MAX_CIRCUITS_OF_PEER:]:
        circuits.take(peer, TWO, 0.0)
    assert len(circuits) == MAX_CIRCUITS
    with pytest.raises(RemoteError, match="too many circuits"):
        circuits.take(identity(7).peer_id, identity(8).peer_id, 0.0)
    circuits.leave(busy[0], ONE)
    circuits.take(identity(7).peer_id, identity(8).peer_id, 0.0)


def test_who_asks_for_circuits_again_and_again_floods():
    circuits = Circuits(1e6)
    for _ in range(CONNECTS_BURST):
        circuits.take(ONE, TWO, 0.0)
        circuits.leave(ONE, TWO)
    with pytest.raises(RemoteError) as caught:
        circuits.take(ONE, TWO, 0.0)
    assert caught.value.reason is Reason.FLOODED
    assert len(circuits) == 0


def test_all_circuits_together_keep_to_the_bound():
    circuits = Circuits(1000.0)
    assert [circuits.pause(500, 0.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert circuits.pause(500, 10.0) == 0.0


async def asked(node, relay, target):
    """A stream on which a circuit was granted. Raises Refused."""
    stream = await node.transport.open_stream(relay.peer, RELAY_PROTOCOL)
    frames = FrameStream(stream, 30)
    await frames.send(encode_relay_ask(target))
    parse_empty_answer(await frames.receive(320))
    return stream


async def carrying(it, monkeypatch, **config):
    """A relay and two neighbours of it, the second of which echoes what comes over a circuit."""
    relay = await it.start(1, relay=True, **config)
    one, other = [await it.start(number, peers=(relay.address,)) for number in (2, 3)]
    await until(lambda: len(relay.service.neighbours()) == 2)

    async def echo(protocol, stream):
        frames = FrameStream(stream, 30)
        assert parse_relayed(await frames.receive(96)) == one.peer
        await frames.send(pack((True,)))
        with suppress(TransportError):
            while data := await stream.receive_some(1 << 20):
                await stream.send_all(data)

    serve = other.service.handle_stream

    async def handle(protocol, stream):
        await (echo(protocol, stream) if protocol.endswith("relayed") else serve(protocol, stream))

    monkeypatch.setattr(other.service, "handle_stream", handle)
    return relay, one, other


async def test_bytes_go_both_ways_at_the_bound_and_no_faster(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await carrying(it, monkeypatch, relay_bytes_per_s=10_000.0)
        stream = await asked(one, relay, other.peer)
        began, sent, got = trio.current_time(), b"x" * 200_000, bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, sent)
            while len(got) < len(sent):
                got += await stream.receive_some(1 << 20)
        assert bytes(got) == sent
        assert 2 * len(sent) / 10_000 * 0.9 <= trio.current_time() - began <= 2 * len(sent) / 10_000 * 1.1
        assert len(relay.service._relay.circuits) == 1
        await stream.reset()
        await until(lambda: len(relay.service._relay.circuits) == 0)


async def test_an_idle_circuit_ends(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await carrying(it, monkeypatch)
        await asked(one, relay, other.peer)
        await trio.sleep(0.9 * CIRCUIT_IDLE_S)
        assert len(relay.service._relay.circuits) == 1
        await trio.sleep(0.2 * CIRCUIT_IDLE_S)
        assert len(relay.service._relay.circuits) == 0


async def test_a_relay_serves_its_neighbours_alone(autojump_clock, monkeypatch):
    async with swarm() as it:
        relay, one, other = await carrying(it, monkeypatch)
        for target in (identity(77).peer_id, one.peer):
            with pytest.raises(Refused, match="between its neighbours"):
                await asked(one, relay, target)
        with pytest.raises(Refused, match="does not relay"):
            await asked(relay, other, one.peer)
        stranger = it.network.attach(identity(50).peer_id)
        async with trio.open_nursery() as nursery:
            await nursery.start(stranger.run, Quiet())
            await stranger.dial(relay.address)
            stream = await stranger.open_stream(relay.peer, RELAY_PROTOCOL)
            frames = FrameStream(stream, 30)
            await frames.send(encode_relay_ask(other.peer))
            with pytest.raises(Refused, match="between its neighbours"):
                parse_empty_answer(await frames.receive(320))
            nursery.cancel_scope.cancel()
        assert len(relay.service._relay.circuits) == 0


async def test_a_relay_that_nobody_can_dial_is_none(autojump_clock):
    async with swarm() as it:
        one = await it.start(1)
        relay = it.make(2, relay=True, peers=(one.address,))
        it.network.hide(relay.peer)
        await it.launch(relay)
        await until(lambda: relay.told("reachability") != [])
        with pytest.raises(Refused, match="nobody can dial it either"):
            await asked(one, relay, None)


async def test_a_far_end_that_does_not_want_it_costs_the_asker_nothing(autojump_clock):
    async with swarm() as it:
        relay = await it.start(1, relay=True)
        one, other = [await it.start(number, peers=(relay.address,)) for number in (2, 3)]
        await until(lambda: len(relay.service.neighbours()) == 2)
        it.network.stall(other.peer)
        with pytest.raises(Refused, match="does not take"):
            await asked(one, relay, other.peer)
        assert one.peer not in {peer for peer, _ in relay.service.stats.rejected}
        assert len(relay.service._relay.circuits) == 0
        it.network.unstall(other.peer)


class Quiet:
    """Handlers of a stranger that says nothing."""

    async def handle_stream(self, protocol, stream):
        await stream.reset()

    def handle_message(self, forwarder, data):
        return False

    def peer_connected(self, peer):
        pass

    def peer_lost(self, peer):
        pass

    def keeps(self, peer):
        return True
