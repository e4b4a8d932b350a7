"""What every transport keeps. Runs in real time, since a real network has no other; no test waits to see nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
from transport_networks import FOR_BULK, SEEN_AS_ONE, TRANSPORT_NETWORKS, Attach

from gossip.core.errors import GossipError, LocalError, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.regions.region_survey_task import ping
from gossip.transport.base import PING_BYTES, PING_PROTOCOL, Stream, Transport, TransportError

PATIENCE_S = 20.0
Serve = Callable[[str, Stream], Awaitable[None]]


async def echo(protocol: str, stream: Stream) -> None:
    """Sends back what comes, to the end."""
    while data := await stream.receive_some(65536):
        await stream.send_all(data)


@dataclass
class Node:
    """A transport with handlers that keep what they are told."""

    transport: Transport
    serve: Serve = echo
    messages: list[tuple[PeerId, bytes]] = field(default_factory=list)
    valid: Callable[[bytes], bool] = lambda data: True
    without_use: Callable[[bytes], frozenset[PeerId]] = lambda data: frozenset()
    connected: list[PeerId] = field(default_factory=list)
    lost: list[PeerId] = field(default_factory=list)
    protocols: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        self.protocols.append(protocol)
        await self.serve(protocol, stream)

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        self.messages.append((forwarder, data))
        return self.valid(data)

    def peer_connected(self, peer: PeerId) -> None:
        self.connected.append(peer)

    def peer_lost(self, peer: PeerId) -> None:
        self.lost.append(peer)

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        return self.without_use(data)

    def keeps(self, peer: PeerId) -> bool:
        return True

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        raise AssertionError(f"{peer} did nothing: {error}")

    def caller_refused(self, caller: str, why: str) -> None:
        self.refused.append((caller, why))

    @property
    def peer(self) -> PeerId:
        return self.transport.peer_id


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # the state of a network has no event
            await trio.sleep(0.01)


HELD_ELSEWHERE = ("libp2p with admission", "libp2p within limits")
"""What each adds is tried in memory, and with the other libp2p hosts: `make thorough` has both together."""


@pytest.fixture(
    params=[
        pytest.param(
            name,
            marks=[pytest.mark.slow] * name.startswith("libp2p ") + [pytest.mark.thorough] * (name in HELD_ELSEWHERE),
        )
        for name in TRANSPORT_NETWORKS
    ]
)
def attach(request) -> Attach:
    return TRANSPORT_NETWORKS[request.param]()


@asynccontextmanager
async def running(attach: Attach, count: int) -> AsyncIterator[list[Node]]:
    """`count` listening nodes that are not connected yet."""
    nodes = [Node(attach(Identity(bytes([number + 1]) * 32))) for number in range(count)]
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(lambda *, task_status, node=node: node.transport.run(node, task_status=task_status))
        yield nodes
        nursery.cancel_scope.cancel()


async def connect(one: Node, other: Node) -> None:
    with trio.fail_after(PATIENCE_S):
        assert await one.transport.dial(other.transport.addresses[0]) == other.peer
    await until(lambda: one.peer in other.transport.peers and other.peer in one.transport.peers)


async def send_for_ever(stream: Stream) -> None:
    while True:
        await stream.send_all(b"x" * 1000)


async def read_all(stream: Stream) -> bytes:
    data = bytearray()
    while piece := await stream.receive_some(65536):
        data += piece
    return bytes(data)


async def test_names_and_addresses(attach):
    async with running(attach, 2) as (one, other):
        assert one.peer == Identity(b"\x01" * 32).peer_id
        assert one.transport.addresses
        assert all(address.endswith(f"/p2p/{one.peer}") for address in one.transport.addresses)
        assert other.transport.peers == frozenset()


async def test_both_ends_hear_of_a_connection_once_and_of_its_end(attach):
    async with running(attach, 2) as (one, other):
        await connect(one, other)
        await one.transport.dial(other.transport.addresses[0])  # idempotent
        await until(lambda: one.connected == [other.peer] and other.connected == [one.peer])
        await one.transport.disconnect(other.peer)
        await until(lambda: one.lost == [other.peer] and other.lost == [one.peer])
        assert not one.transport.peers
        assert not other.transport.peers
        await one.transport.disconnect(other.peer)  # and again: nothing


async def test_connecting_again_after_a_loss(attach):
    async with running(attach, 2) as (one, other):
        await connect(one, other)
        await other.transport.disconnect(one.peer)
        await until(lambda: one.lost == [other.peer])
        await connect(other, one)
        await until(lambda: one.connected == [other.peer] * 2)


async def test_a_stream_is_authenticated_and_carries_bytes_both_ways(attach):
    remotes = []

    async def serve(protocol: str, stream: Stream) -> None:
        remotes.append(stream.remote)
        await echo(protocol, stream)

    async with running(attach, 2) as (one, other):
        other.serve = serve
        await connect(one, other)
        with trio.fail_after(PATIENCE_S):
            stream = await one.transport.open_stream(other.peer, "/p2ptrain/1")
            assert stream.remote == other.peer
            await stream.send_all(b"hello")
            assert await stream.receive_some(100) == b"hello"
            await stream.close()
        assert remotes == [one.peer]
        assert other.protocols == ["/p2ptrain/1"]


@pytest.mark.parametrize("name", sorted(TRANSPORT_NETWORKS.keys() - FOR_BULK))
async def test_pings_are_answered_with_what_was_sent(name):
    async with running(TRANSPORT_NETWORKS[name](), 2) as (one, other):
        await connect(one, other)
        stream = await one.transport.open_stream(other.peer, PING_PROTOCOL)
        with trio.fail_after(PATIENCE_S):
            times = [await ping(stream, bytes([number]) * PING_BYTES) for number in range(3)]
        await stream.close()
        assert all(0 <= seconds < PATIENCE_S for seconds in times)
        assert not other.protocols, "the transport answers by itself"


async def test_receive_some_keeps_to_its_bound(attach):
    async with running(attach, 2) as (one, other):
        await connect(one, other)
        with trio.fail_after(PATIENCE_S):
            stream = await one.transport.open_stream(other.peer, "/p2ptrain/1")
            await stream.send_all(b"0123456789")
            got = b""
            while len(got) < 10:
                piece = await stream.receive_some(3)
                assert 1 <= len(piece) <= 3
                got += piece
            assert got == b"0123456789"
            await stream.close()


async def test_megabytes_arrive_whole_and_end_cleanly(attach):
    data = bytes(range(256)) * (3 * 4096) + b"end"

    async def serve(protocol: str, stream: Stream) -> None:
        await stream.receive_some(1)
        await stream.send_all(data)

    async with running(attach, 2) as (one, other):
        other.serve = serve
        await connect(one, other)
        with trio.fail_after(PATIENCE_S):
            stream = await one.transport.open_stream(other.peer, "/p2ptrain/1")
            await stream.send_all(memoryview(b"?"))
            assert await read_all(stream) == data
            await stream.close()


async def test_many_streams_at_once(attach):
    async with running(attach, 2) as (one, other):
        await connect(one, other)

        async def talk(word: bytes) -> None:
            stream = await one.transport.open_stream(other.peer, "/p2ptrain/1")
            await stream.send_all(word)
            assert await stream.receive_some(100) == word
            await stream.close()

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(talk, b"word %d" % number)


async def test_a_reset_is_felt_at_the_other_end(attach):
    felt: list[bool] = []

    async def serve(protocol: str, stream: Stream) -> None:
        try:
            await read_all(stream)
        except TransportError:
            felt.append(True)
            raise
        felt.append(False)

    async with running(attach, 2) as (one, other):
        other.serve = serve
        await connect(one, other)
        stream = await one.transport.open_stream(other.peer, "/p2ptrain/1")
        await stream.send_all(b"x")
        await until(lambda: bool(other.protocols))
        await stream.reset()
        await until(lambda: felt == [True])


async def test_a_lost_connection_breaks_its_streams(attach):
    async with running(attach, 2) as (one, other):
        await connect(one, other)
        stream = await one.transport.open_stream(other.peer, "/p2ptrain/1")
        await other.transport.disconnect(one.peer)
        await until(lambda: one.lost == [other.peer])
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError):
            await send_for_ever(stream)
        await stream.reset()


async def test_a_handler_that_raises_costs_its_stream_and_nothing_else(attach):
    async def serve(protocol: str, stream: Stream) -> None:
        if protocol == "/p2ptrain/1":
            raise RuntimeError("a bug")
        await echo(protocol, stream)

    async with running(attach, 2) as (one, other):
        other.serve = serve
        await connect(one, other)
        with trio.fail_after(PATIENCE_S):
            broken = await one.transport.open_stream(other.peer, "/p2ptrain/1")
            with pytest.raises(TransportError):
                await send_for_ever(broken)
            await broken.reset()


async def test_broadcasts_reach_those_who_are_not_connected_to_the_sender(attach):
    async with running(attach, 3) as nodes:
        one, middle, far = nodes
        await connect(one, middle)
        await connect(far, middle)
        with trio.fail_after(PATIENCE_S):
            number = 0
            while not far.messages:  # lossy, and a mesh may have to form first: hence again
                await one.transport.publish(b"news %d" % number)
                number += 1
                await trio.sleep(0.1)
        forwarder, data = far.messages[0]
        assert forwarder == middle.peer
        assert data.startswith(b"news")
        assert all(sender == one.peer for sender, _ in middle.messages)


async def test_what_a_handler_finds_invalid_goes_no_further(attach):
    async with running(attach, 3) as nodes:
        one, middle, far = nodes
        middle.valid = lambda data: not data.startswith(b"bad")
        await connect(one, middle)
        await connect(far, middle)
        with trio.fail_after(PATIENCE_S):
            number = 0
            while not (far.messages and any(data.startswith(b"bad") for _, data in middle.messages)):
                await one.transport.publish(b"bad %d" % number)
                await one.transport.publish(b"good %d" % number)
                number += 1
                await trio.sleep(0.1)
        assert all(data.startswith(b"good") for _, data in far.messages)


async def test_a_broadcast_is_sent_to_those_alone_to_whom_it_is_of_use(attach):
    async with running(attach, 3) as nodes:
        one, middle, other = nodes
        for node in (one, middle):
            node.without_use = lambda data: frozenset({other.peer} if data.startswith(b"few") else ())
        await connect(one, middle)
        await connect(other, middle)
        await connect(one, other)
        with trio.fail_after(PATIENCE_S):
            number = 0
            while not all(any(sender == other.peer for sender, _ in node.messages) for node in (one, middle)):
                await other.transport.publish(b"all, first %d" % number)  # they know by then that it takes broadcasts
                number += 1
                await trio.sleep(0.1)
            while not (other.messages and any(data.startswith(b"few") for _, data in middle.messages)):
                await one.transport.publish(b"few %d" % number)
                await one.transport.publish(b"all %d" % number)
                number += 1
                await trio.sleep(0.1)
        assert all(data.startswith(b"all") for _, data in other.messages)


async def test_dialling_nobody_fails(attach):
    async with running(attach, 2) as (one, other):
        address = one.transport.addresses[0]
        stranger = Identity(b"\x09" * 32).peer_id
        wrong = address.replace(one.peer, stranger)
        with trio.fail_after(PATIENCE_S), pytest.raises(GossipError):
            await other.transport.dial(wrong)
        for nonsense in ("", "nonsense", "/p2p/"):
            with pytest.raises(LocalError):
                await other.transport.dial(nonsense)
        assert stranger not in other.transport.peers


async def test_a_probe_tells_who_answers_and_leaves_no_connection(attach):
    async with running(attach, 2) as (one, other):
        address = other.transport.addresses[0]
        with trio.fail_after(PATIENCE_S):
            await one.transport.probe(address)
        await until(lambda: not (one.transport.peers or other.transport.peers))
        await connect(one, other)
        with trio.fail_after(PATIENCE_S):
            await one.transport.probe(address)
            await other.transport.probe(one.transport.addresses[0])
        with trio.fail_after(PATIENCE_S), pytest.raises(GossipError):
            await one.transport.probe(address.replace(other.peer, Identity(b"\x09" * 32).peer_id))
        assert one.transport.peers == {other.peer}
        assert other.transport.peers == {one.peer}
        with pytest.raises(LocalError):
            await one.transport.probe("nonsense")


async def test_every_byte_to_a_peer_is_counted_and_the_peer_counts_as_many(attach):
    async with running(attach, 2) as (one, other):
        await connect(one, other)
        ours, theirs = one.transport.wire, other.transport.wire
        before = ours.sent
        stream = await one.transport.open_stream(other.peer, "/p2ptrain/1")
        with trio.fail_after(PATIENCE_S):
            await stream.send_all(bytes(300_000))
            echoed = 0
            while echoed < 300_000:
                echoed += len(await stream.receive_some(65536))
            await stream.close()
        assert ours.sent - before >= 300_000
        assert theirs.sent >= 300_000
        before = ours.sent
        await one.transport.publish(bytes(1000))
        await until(lambda: bool(other.messages))
        assert ours.sent - before >= 1000, "broadcasts too"
        await until(lambda: (ours.sent, theirs.sent) == (theirs.received, ours.received))


async def test_no_stream_without_a_connection(attach):
    async with running(attach, 2) as (one, other):
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError):
            await one.transport.open_stream(other.peer, "/p2ptrain/1")


async def test_one_that_stops_is_lost_to_the_others(attach):
    async with running(attach, 1) as (one,):
        async with running(lambda identity: attach(Identity(b"\x08" * 32)), 1) as (other,):
            await connect(one, other)
        await until(lambda: one.lost == [other.peer])


async def test_who_was_dialled_knows_it_and_so_does_who_dialled(attach):
    async with running(attach, 3) as (one, other, third):
        await connect(one, other)
        await connect(third, one)
        assert other.transport.dialled_us(one.peer)
        assert not one.transport.dialled_us(other.peer)
        assert one.transport.dialled_us(third.peer)
        assert not third.transport.dialled_us(one.peer)
        assert not third.transport.dialled_us(other.peer)  # not connected
        await other.transport.disconnect(one.peer)
        await until(lambda: other.lost == [one.peer])
        assert not other.transport.dialled_us(one.peer)


@pytest.mark.parametrize("name", [*TRANSPORT_NETWORKS, *SEEN_AS_ONE])
async def test_both_ends_of_a_connection_see_the_other_in_its_network_and_so_does_a_probe(name):
    async with running({**TRANSPORT_NETWORKS, **SEEN_AS_ONE}[name](), 2) as (one, other):
        expected = "127.0.0.0/24" if name in SEEN_AS_ONE else ""
        assert one.transport.network_of(other.peer) is None, "not connected"
        with trio.fail_after(PATIENCE_S):
            assert await one.transport.probe(other.transport.addresses[0]) == expected
        await connect(one, other)
        assert one.transport.network_of(other.peer) == other.transport.network_of(one.peer) == expected
        await one.transport.disconnect(other.peer)
        await until(lambda: one.lost == [other.peer])
        assert one.transport.network_of(other.peer) is None
