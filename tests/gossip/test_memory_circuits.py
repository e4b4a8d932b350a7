"""Circuits over the in-memory network: two nodes behind NAT through a real relay, its link, its death, and its lies."""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio

from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.reachability.circuit import CircuitKind, CircuitMessage, CircuitStatus, encode_hop, encode_stop
from gossip.reachability.delimited_task import receive_message, send_message
from gossip.reachability.relay import RELAY_S, Circuits, circuit_address
from gossip.reachability.relay_task import Relay
from gossip.transport.base import Admission, Stream, TransportError
from gossip.transport.memory.circuit_mux import OUTBOX_BYTES, SILENT_S
from gossip.transport.memory.network import MemoryNetwork
from gossip.transport.memory.pipe import WINDOW_BYTES
from gossip.transport.memory.wan import AccessLink, WideAreaNetwork

RATE = 100_000.0
SIZE = 300_000


class End:
    """A transport with handlers that echo, and note what they hear."""

    def __init__(self, network: MemoryNetwork, number: int, admission: Admission | None = None) -> None:
        self.identity = Identity(bytes([number]) * 32)
        self.transport = network.attach(self.identity.peer_id, admission, unix_time=lambda: 1e9 + trio.current_time())
        self.heard: list[tuple[PeerId, bytes]] = []
        self.up: list[PeerId] = []
        self.lost: list[PeerId] = []
        self.serve: Callable[[str, Stream], Awaitable[None]] = self.echo

    @property
    def peer(self) -> PeerId:
        return self.transport.peer_id

    @property
    def address(self) -> str:
        return self.transport.addresses[0]

    async def echo(self, protocol: str, stream: Stream) -> None:
        while data := await stream.receive_some(1 << 16):
            await stream.send_all(data)

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        with suppress(TransportError):
            await self.serve(protocol, stream)

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        self.heard.append((forwarder, data))
        return True

    def peer_connected(self, peer: PeerId) -> None:
        self.up.append(peer)

    def peer_lost(self, peer: PeerId) -> None:
        self.lost.append(peer)

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        return frozenset()

    def keeps(self, peer: PeerId) -> bool:
        return True

    def offended(self, peer: PeerId, error: RemoteError) -> None: ...

    def caller_refused(self, caller: str, why: str) -> None: ...


def relay_at(end: End, bytes_per_s: float = 1e9) -> Relay:
    """It relays for whoever asks."""
    relay = Relay(
        transport=end.transport,
        identity=end.identity,
        circuits=Circuits(bytes_per_s),
        serves=lambda peer: True,
        addresses=lambda: [end.address],
        offence=lambda peer, error: None,
        unix_time=lambda: 1e9 + trio.current_time(),
    )

    async def serve(protocol: str, stream: Stream) -> None:
        await relay.handle_stream(stream)

    end.serve = serve
    return relay


Play = Callable[[End, End, End, Relay], Awaitable[None]]
"""With one end, the relay, the other end, and what the relay is."""


async def joined(play: Play, links: tuple[AccessLink, ...] = (), latency_s: float = 0.0, rate: float = 1e9) -> None:
    """Two ends that nobody can dial, connected with a relay at which the second has a reservation."""
    wan = WideAreaNetwork(random.Random(1), lambda one, other: latency_s) if links else None
    network = MemoryNetwork(random.Random(2), wan=wan)
    if wan is not None:
        for number, link in enumerate(links):
            wan.connect(Identity(bytes([number + 1]) * 32).peer_id, link)
    ends = [End(network, number) for number in (1, 2, 3)]
    one, middle, other = ends
    relay = relay_at(middle, rate)
    async with trio.open_nursery() as nursery:
        for end in ends:
            await nursery.start(end.transport.run, end)
        for end in (one, other):
            network.hide(end.peer)
            await end.transport.dial(middle.address)
        assert await other.transport.relayed_by(middle.peer) is not None
        await play(one, middle, other, relay)
        nursery.cancel_scope.cancel()
    assert [end.transport.handler_errors for end in ends] == [[], [], []]


def through(middle: End, other: End) -> str:
    return circuit_address(middle.peer, other.peer)


async def echoed(one: End, other: End, data: bytes) -> bytes:
    stream = await one.transport.open_stream(other.peer, "/echo")
    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        while len(got) < len(data):
            got += await stream.receive_some(1 << 16)
    await stream.close()
    return bytes(got)


async def test_who_cannot_be_dialled_is_reached_through_a_relay(autojump_clock: object) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        with pytest.raises(TransportError, match="nobody answers"):
            await one.transport.dial(other.address)
        assert await one.transport.probe(through(middle, other)) is None
        assert await one.transport.dial(through(middle, other)) == other.peer
        await one.transport.dial(through(middle, other))  # idempotent
        assert one.up == [middle.peer, other.peer]
        assert other.up == [middle.peer, one.peer, one.peer], "a probe is a connection to who is probed"
        content = random.Random(3).randbytes(SIZE)
        assert await echoed(one, other, content) == content
        assert await echoed(other, one, content) == content
        for end, far in ((one, other), (other, one)):
            transport = end.transport
            assert not transport.dialled_us(far.peer)
            assert transport.network_of(far.peer) is None
            assert transport.address_at(far.peer, 1) is None
        assert len(relay.circuits) == 1, "what was probed is over"
        await one.transport.disconnect(other.peer)
        await trio.sleep(0.1)
        assert (one.lost, other.lost) == ([other.peer], [one.peer, one.peer])
        assert len(relay.circuits) == 0

    await joined(play)


async def test_what_a_relay_carries_takes_its_link_both_ways(autojump_clock: object) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        await one.transport.dial(through(middle, other))
        before, began = (middle.transport.wire.sent, middle.transport.wire.received), trio.current_time()
        stream = await one.transport.open_stream(other.peer, "/echo")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, bytes(SIZE))
            got = 0
            while got < SIZE:
                got += len(await stream.receive_some(1 << 16))
        took = trio.current_time() - began
        # There and back over one uplink, behind half a window that is on its way.
        assert took == pytest.approx(2 * SIZE / RATE, rel=0.1)
        for now, then in zip((middle.transport.wire.sent, middle.transport.wire.received), before, strict=True):
            assert 2 * SIZE < now - then < 2.05 * SIZE

    await joined(play, (AccessLink(), AccessLink(up_bytes_per_s=RATE), AccessLink()))


async def test_the_relays_own_bound_holds(autojump_clock: object) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        await one.transport.dial(through(middle, other))
        began = trio.current_time()
        await echoed(one, other, bytes(SIZE))
        assert trio.current_time() - began == pytest.approx(2 * SIZE / RATE, rel=0.1)

    await joined(play, rate=RATE)


async def test_a_dial_through_a_relay_takes_its_round_trips_over_both_ways(autojump_clock: object) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        began = trio.current_time()
        await one.transport.dial(through(middle, other))
        # A stream to the relay and its far end (2 round trips each), the two questions, and a dial's 6 less TCP's,
        # each of which is two ways long.
        assert trio.current_time() - began == pytest.approx(2 * 0.1 * (2 + 2 + 1 + 1 + 2 * 5), rel=0.1)

    await joined(play, (AccessLink(), AccessLink(), AccessLink()), latency_s=0.1)


async def test_both_hear_of_a_relay_that_dies_and_of_one_that_stands_still(autojump_clock: object) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        network = one.transport._network
        for still in (True, False):
            await one.transport.dial(through(middle, other))
            stream = await one.transport.open_stream(other.peer, "/echo")
            if still:
                network.stall(middle.peer)
                await trio.sleep(SILENT_S + 6)
                network.unstall(middle.peer)
            else:
                for end in (one, other):
                    middle.transport.drop(end.peer)
                await trio.sleep(0.1)
            assert other.peer not in one.transport.peers
            assert one.peer not in other.transport.peers
            with pytest.raises(TransportError):
                await stream.receive_some(1)
        assert (one.lost.count(other.peer), other.lost.count(one.peer)) == (2, 2)
        with pytest.raises(TransportError):
            await one.transport.dial(through(middle, other))

    await joined(play)


async def test_a_circuit_goes_round_a_cut_between_its_ends(autojump_clock: object) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        await one.transport.dial(through(middle, other))
        network = one.transport._network
        network.cut(one.peer, other.peer)
        assert await echoed(one, other, b"still there") == b"still there"
        network.cut(middle.peer, other.peer)
        await trio.sleep(0.1)
        assert other.peer not in one.transport.peers

    await joined(play)


@pytest.mark.parametrize("links", [(), (AccessLink(),) * 3], ids=["without links", "over links"])
async def test_a_broadcast_comes_once_by_whichever_way(autojump_clock: object, links: tuple[AccessLink, ...]) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        await one.transport.dial(through(middle, other))
        await one.transport.publish(b"news")
        await trio.sleep(0.1)
        assert [data for _, data in other.heard] == [b"news"]
        assert [data for _, data in middle.heard] == [b"news"]
        assert one.heard == []

    await joined(play, links)


async def test_who_does_not_read_holds_up_its_stream_and_no_other(autojump_clock: object) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        read = trio.Event()

        async def unread(protocol: str, stream: Stream) -> None:
            if protocol == "/echo":
                await other.echo(protocol, stream)
            else:
                await read.wait()

        other.serve = unread
        await one.transport.dial(through(middle, other))
        stuck = await one.transport.open_stream(other.peer, "/stuck")
        with trio.move_on_after(1.0) as scope:
            await stuck.send_all(bytes(2 * WINDOW_BYTES + OUTBOX_BYTES))
        assert scope.cancelled_caught
        assert await echoed(one, other, bytes(SIZE)) == bytes(SIZE)
        read.set()
        await trio.sleep(0.1)
        with pytest.raises(TransportError):
            await stuck.send_all(b"more")

    await joined(play)


class Reversible:
    """An `Admission` that takes whoever shows its word."""

    def __init__(self, word: bytes) -> None:
        self.word = word

    def credentials(self) -> bytes:
        return self.word

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        if credentials != self.word:
            raise RemoteError(Reason.NO_MEMBER, "it has another word")

    def explain(self, peer: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        return b"not with that word"

    def heard(self, peer: PeerId, said: bytes) -> str:
        self.said = said
        return f"it says: {said.decode()}"


async def meet(nursery: trio.Nursery, one: End, relay: End, other: End) -> None:
    """Run the three; both ends are connected to the relay, and the other is reached through it."""
    for end in (one, relay, other):
        await nursery.start(end.transport.run, end)
    for end in (one, other):
        await end.transport.dial(relay.address)
    assert await other.transport.relayed_by(relay.peer) is not None


@pytest.mark.parametrize("word", [b"ours", b"theirs"])
async def test_membership_is_asked_at_the_ends(autojump_clock: object, word: bytes) -> None:
    """The relay has not heard of a revocation: it lets everybody pass."""
    network = MemoryNetwork(random.Random(2))
    one, middle, other = (End(network, number, Reversible(b"ours")) for number in (1, 2, 3))
    relay_at(middle)
    async with trio.open_nursery() as nursery:
        await meet(nursery, one, middle, other)
        one.transport._handshake_admission._admission = Reversible(word)
        if word == b"ours":
            await one.transport.dial(through(middle, other))
            assert await echoed(one, other, b"members") == b"members"
        else:
            with pytest.raises(TransportError, match="it says: not with that word"):
                await one.transport.dial(through(middle, other))
            await trio.sleep(0.1)
            assert one.peer not in other.transport.peers
            assert other.transport.drops["refused_no_member"] == 1
        nursery.cancel_scope.cancel()


async def test_who_dials_through_a_relay_may_refuse_and_says_why(autojump_clock: object) -> None:
    class Former(Reversible):
        """It admits everybody, and shows what nobody admits."""

        said = b""

        def credentials(self) -> bytes:
            return b"theirs"

    network, former = MemoryNetwork(random.Random(2)), Former(b"ours")
    one, middle, other = (End(network, number, Reversible(b"ours")) for number in (1, 2, 3))
    relay_at(middle)
    async with trio.open_nursery() as nursery:
        await meet(nursery, one, middle, other)
        other.transport._handshake_admission._admission = former
        with pytest.raises(TransportError, match="it was refused: no_member"):
            await one.transport.dial(through(middle, other))
        await trio.sleep(0.1)
        assert former.said == b"not with that word"
        assert not {one.peer, other.peer} & (one.transport.peers | other.transport.peers)
        nursery.cancel_scope.cancel()


# -- a relay that lies


class LyingRelay:
    """It grants what is asked, connects whom it likes, and makes something else of every so manieth piece."""

    def __init__(self, middle: End, far: PeerId, how: str, names: PeerId | None = None) -> None:
        self.middle, self.far, self.how, self.names = middle, far, how, names
        self.pieces = 0
        middle.serve = self.serve

    async def serve(self, protocol: str, near: Stream) -> None:
        await receive_message(near, 10)
        far = await self.middle.transport.open_stream(self.far, "/libp2p/circuit/relay/0.2.0/stop")
        asker = self.names or near.remote
        await send_message(far, encode_stop(CircuitMessage(kind=CircuitKind.CONNECT, peer=asker)), 10)
        await receive_message(far, 10)
        await send_message(near, encode_hop(CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.OK)), 10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.carry, near, far)
            nursery.start_soon(self.carry, far, near)

    async def carry(self, source: Stream, sink: Stream) -> None:
        kept = b""
        try:
            while piece := await source.receive_some(4096):
                self.pieces += 1
                if self.pieces % 40 == 0:
                    match self.how:
                        case "alters":
                            piece = piece[:-1] + bytes([piece[-1] ^ 1])
                        case "drops":
                            continue
                        case "repeats":
                            piece += piece
                        case "swaps":
                            kept = piece
                            continue
                        case "delays":
                            await trio.sleep(5.0)
                await sink.send_all(piece + kept)
                kept = b""
        except TransportError:
            pass
        await sink.reset()


@pytest.mark.parametrize("how", ["alters", "drops", "repeats", "swaps", "delays"])
async def test_what_a_relay_makes_of_bytes_is_never_taken_for_the_other_ends(autojump_clock: object, how: str) -> None:
    """It gains what a cut gains, and by delays what a slow link does."""

    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        liar = LyingRelay(middle, other.peer, how)
        content = random.Random(3).randbytes(SIZE)
        await one.transport.dial(through(middle, other))
        came = bytearray()
        over = False
        stream = await one.transport.open_stream(other.peer, "/echo")

        async def send() -> None:
            try:
                await stream.send_all(content)
            except TransportError:
                assert how != "delays"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            try:
                while len(came) < SIZE and (piece := await stream.receive_some(1 << 16)):
                    came += piece
            except TransportError:
                over = True
        assert content.startswith(bytes(came))
        assert over == (how != "delays")
        assert liar.pieces >= 40
        if over:
            await trio.sleep(SILENT_S + 6)
            assert other.peer not in one.transport.peers
            assert one.peer not in other.transport.peers

    await joined(play)


@pytest.mark.parametrize("lie", ["joins another", "names another"])
async def test_a_relay_cannot_put_one_peer_in_anothers_place(autojump_clock: object, lie: str) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        victim = Identity(b"\x09" * 32).peer_id
        LyingRelay(middle, other.peer, "", names=victim if lie == "names another" else None)
        target = victim if lie == "joins another" else other.peer
        with pytest.raises(TransportError):
            await one.transport.dial(circuit_address(middle.peer, target))
        await trio.sleep(RELAY_S)
        assert one.transport.peers == other.transport.peers == {middle.peer}
        assert other.transport.drops["circuit"] == 1

    await joined(play)


async def test_a_relay_brings_nobody_to_who_has_no_reservation(autojump_clock: object) -> None:
    async def play(one: End, middle: End, other: End, relay: Relay) -> None:
        LyingRelay(middle, one.peer, "")
        with pytest.raises(TransportError):
            await other.transport.dial(circuit_address(middle.peer, one.peer))
        assert one.transport.drops["circuit_unasked"] == 1

    await joined(play)
