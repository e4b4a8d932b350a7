"""A relay over the in-memory network, two neighbours of it, and what they say to each other."""

from contextlib import suppress

from gossip_swarm import FakeRuntime, until

from gossip.reachability.circuit import (
    HOP_PROTOCOL,
    CircuitKind,
    CircuitMessage,
    CircuitStatus,
    encode_hop,
    encode_stop,
    parse_hop,
    parse_stop,
)
from gossip.reachability.delimited_task import receive_message, send_message
from gossip.reachability.relay import Circuits
from gossip.transport.base import TransportError

RESERVE = CircuitMessage(kind=CircuitKind.RESERVE)


def circuit_to(peer) -> CircuitMessage:
    return CircuitMessage(kind=CircuitKind.CONNECT, peer=peer)


def with_room(*reserved, bytes_per_s: float = 1e6) -> Circuits:
    circuits = Circuits(bytes_per_s)
    assert all(circuits.reserve(peer, 0.0) is CircuitStatus.OK for peer in reserved)
    return circuits


async def asked(node, relay: FakeRuntime, ask: CircuitMessage | bytes):
    """What a relay answers, and the stream on which it did."""
    transport = getattr(node, "transport", node)
    stream = await transport.open_stream(relay.peer, HOP_PROTOCOL)
    await send_message(stream, ask if isinstance(ask, bytes) else encode_hop(ask), 30)
    answer = await receive_message(stream, 30)
    assert answer is not None
    return parse_hop(answer), stream


async def status_of(node, relay: FakeRuntime, ask: CircuitMessage | bytes) -> int | None:
    answer, stream = await asked(node, relay, ask)
    await stream.reset()
    return answer.status


def refused(relay: FakeRuntime) -> dict[str, int]:
    return dict(relay.service.relaying().refused)


async def three(it, **config):
    """A relay and two neighbours of it."""
    relay = await it.start(1, relay=True, **config)
    one, other = [await it.start(number, peers=(relay.address,)) for number in (2, 3)]
    await until(lambda: len(relay.service.neighbours()) == 2)
    return relay, one, other


async def carrying(it, monkeypatch, **config):
    """The same; the second neighbour has a reservation, and echoes what comes over a circuit."""
    relay, one, other = await three(it, **config)

    async def echo(stream):
        assert parse_stop(await receive_message(stream, 30)) == circuit_to(one.peer)
        await send_message(stream, encode_stop(CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.OK)), 30)
        with suppress(TransportError):
            while data := await stream.receive_some(1 << 20):
                await stream.send_all(data)

    monkeypatch.setattr(other.transport, "circuit_end", echo)
    assert await status_of(other, relay, RESERVE) == CircuitStatus.OK
    return relay, one, other


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

    def uninterested(self, data):
        return frozenset()

    def keeps(self, peer):
        return True
