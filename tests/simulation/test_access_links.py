"""Access links against arithmetic: what a link's rate, distance and queue say that a transfer takes, it takes."""

import math
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from statistics import fmean, stdev

import pytest
import trio
import trio.testing

from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.transport.base import Stream, TransportError
from gossip.transport.memory.network import MemoryNetwork, MemoryTransport
from gossip.transport.memory.pipe import WINDOW_BYTES, MemoryStream
from gossip.transport.memory.wan import (
    INITIAL_SEGMENTS,
    MSS,
    STREAM_ROUND_TRIPS,
    AccessLine,
    AccessLink,
    EventLoop,
    Flow,
    WideAreaNetwork,
)
from gossip.transport.wire_bytes import WireBytes

SIZE = 200_000
RATE = 100_000.0


class Sink:
    """A node that reads what comes, and notes when."""

    def __init__(self) -> None:
        self.read: list[tuple[float, int]] = []
        self.messages: list[tuple[float, bytes]] = []
        self.content = b""
        self.reads = trio.Event()
        self.reads.set()

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        await self.reads.wait()
        while data := await stream.receive_some(1 << 16):
            self.content += data
            self.read.append((trio.current_time(), len(data)))

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        self.messages.append((trio.current_time(), data))
        return False

    def peer_connected(self, peer: PeerId) -> None: ...

    def peer_lost(self, peer: PeerId) -> None: ...

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        return frozenset()

    def keeps(self, peer: PeerId) -> bool:
        return True

    def offended(self, peer: PeerId, error: RemoteError) -> None: ...

    def caller_refused(self, caller: str, why: str) -> None: ...

    @property
    def seconds(self) -> float:
        return self.read[-1][0]


Play = Callable[[list[MemoryTransport], list[Sink]], Awaitable[None]]


async def on_network(
    links: list[AccessLink], latency_s: float, play: Play, loops: list[EventLoop] | None = None
) -> tuple[MemoryNetwork, list[Sink]]:
    """Nodes with these links, each connected with all others, while `play` lasts."""
    wan = WideAreaNetwork(random.Random(1), lambda one, other: latency_s)
    network = MemoryNetwork(random.Random(2), wan=wan)
    nodes, sinks = [], []
    async with trio.open_nursery() as nursery:
        for number, link in enumerate(links):
            wan.connect(PeerId(f"peer{number}"), link, None if loops is None else loops[number])
            nodes.append(network.attach(PeerId(f"peer{number}")))
            sinks.append(Sink())
            await nursery.start(nodes[-1].run, sinks[-1])
        for one, node in enumerate(nodes):
            for other in nodes[one + 1 :]:
                await node.dial(other.addresses[0])
        await play(nodes, sinks)
        nursery.cancel_scope.cancel()
    return network, sinks


async def send(node: MemoryTransport, to: MemoryTransport, size: int) -> None:
    stream = await node.open_stream(to.peer_id, "bulk")
    await stream.send_all(bytes(size))
    await stream.close()


async def all_sent(pairs: list[tuple[MemoryTransport, MemoryTransport]], size: int) -> None:
    async with trio.open_nursery() as nursery:
        for one, other in pairs:
            nursery.start_soon(send, one, other, size)


async def test_eight_neighbours_share_one_uplink(autojump_clock: trio.testing.MockClock) -> None:
    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        await all_sent([(nodes[0], other) for other in nodes[1:]], SIZE)
        await trio.sleep(1)

    _, sinks = await on_network([AccessLink(up_bytes_per_s=RATE), *[AccessLink()] * 8], 0.0, play)
    assert max(sink.seconds for sink in sinks[1:]) == pytest.approx(8 * SIZE / RATE, rel=0.001)
    assert min(sink.seconds for sink in sinks[1:]) == pytest.approx(8 * SIZE / RATE, rel=0.05), "and share it evenly"


async def test_eight_neighbours_share_one_downlink(autojump_clock: trio.testing.MockClock) -> None:
    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        await all_sent([(other, nodes[0]) for other in nodes[1:]], SIZE)
        await trio.sleep(100)

    _, sinks = await on_network([AccessLink(down_bytes_per_s=RATE), *[AccessLink()] * 8], 0.0, play)
    assert sinks[0].seconds == pytest.approx(8 * SIZE / RATE, rel=0.001)


async def test_both_directions_of_a_link_are_apart(autojump_clock: trio.testing.MockClock) -> None:
    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        await all_sent([(nodes[0], nodes[1]), (nodes[1], nodes[0])], SIZE)
        await trio.sleep(100)

    link = AccessLink(up_bytes_per_s=RATE, down_bytes_per_s=RATE)
    _, sinks = await on_network([link, link], 0.0, play)
    for sink in sinks:
        assert sink.seconds == pytest.approx(SIZE / RATE, rel=0.01)


async def test_pieces_overlap_on_a_long_way(autojump_clock: trio.testing.MockClock) -> None:
    """One latency for all, not one for each piece; and the stream's two round trips of multistream."""
    latency_s, begun = 0.2, 0.0

    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        nonlocal begun
        begun = trio.current_time()
        await send(nodes[0], nodes[1], SIZE)
        await trio.sleep(10)

    _, sinks = await on_network([AccessLink(up_bytes_per_s=RATE), AccessLink()], latency_s, play)
    opening = 2 * STREAM_ROUND_TRIPS * latency_s
    assert sinks[1].seconds - begun == pytest.approx(opening + SIZE / RATE + latency_s, abs=0.01)


async def test_a_stream_is_bounded_by_its_window_a_round_trip(autojump_clock: trio.testing.MockClock) -> None:
    latency_s, begun, size = 0.5, 0.0, 4 * WINDOW_BYTES

    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        nonlocal begun
        begun = trio.current_time() + 2 * STREAM_ROUND_TRIPS * latency_s
        await send(nodes[0], nodes[1], size)
        await trio.sleep(10)

    _, sinks = await on_network([AccessLink(), AccessLink()], latency_s, play)
    assert sinks[1].seconds - begun == pytest.approx(3 * 2 * latency_s + latency_s, rel=0.02)


async def test_jitter_keeps_the_order_of_bytes(autojump_clock: trio.testing.MockClock) -> None:
    content = random.Random(3).randbytes(SIZE)

    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        stream = await nodes[0].open_stream(nodes[1].peer_id, "bulk")
        await stream.send_all(content)
        await stream.close()
        await trio.sleep(10)

    _, sinks = await on_network([AccessLink(up_bytes_per_s=RATE, jitter_s=0.1), AccessLink()], 0.01, play)
    assert sinks[1].content == content
    gaps = [later[0] - sooner[0] for sooner, later in pairwise(sinks[1].read)]
    assert max(gaps) > 2 * SIZE / RATE / len(gaps), "it jitters"


async def test_what_waits_for_an_event_loop_waits_in_order(autojump_clock: trio.testing.MockClock) -> None:
    sent = [str(number).encode() for number in range(400)]
    begun: list[float] = []

    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        for message in sent:
            begun.append(trio.current_time())
            await nodes[0].publish(message)
            await trio.sleep(0.5)
        await nodes[0].publish(b"first of many")
        for _ in range(20):
            await nodes[0].publish(b"at once")
        await trio.sleep(1)

    loops = [EventLoop(wake_s=0.02), EventLoop(wake_s=0.06)]
    _, sinks = await on_network([AccessLink(), AccessLink()], 0.01, play, loops)
    burst = sinks[1].messages[len(sent) :]
    assert [message for _, message in sinks[1].messages[: len(sent)]] == sent
    assert burst[0][1] == b"first of many"
    assert {at for at, _ in burst} == {burst[0][0]}, "who looks takes all that is there, and draws once"
    waits = [at - began - 0.01 for (at, _), began in zip(sinks[1].messages, begun, strict=False)]
    assert fmean(waits) == pytest.approx((0.02 + 0.06) / 2, rel=0.15), "half of what each end waits for"
    assert stdev(waits) == pytest.approx(fmean(waits), rel=0.2), "exponential"


async def test_broadcasts_take_the_uplink_too(autojump_clock: trio.testing.MockClock) -> None:
    begun = 0.0

    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        nonlocal begun
        begun = trio.current_time()
        await nodes[0].publish(bytes(10_000))
        await trio.sleep(10)

    _, sinks = await on_network([AccessLink(up_bytes_per_s=RATE), *[AccessLink()] * 4], 0.05, play)
    times = sorted(sink.messages[0][0] - begun for sink in sinks[1:])
    assert times == pytest.approx([0.05 + (number + 1) * 10_000 / RATE for number in range(4)], abs=0.001)


async def test_a_lost_broadcast_is_lost_and_a_stream_is_not(autojump_clock: trio.testing.MockClock) -> None:
    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        for _ in range(400):
            await nodes[0].publish(b"news")
        await send(nodes[0], nodes[1], 10_000)
        await trio.sleep(10)

    _, sinks = await on_network([AccessLink(loss=0.3), AccessLink(loss=0.2)], 0.01, play)
    assert len(sinks[1].messages) / 400 == pytest.approx(0.7 * 0.8, abs=0.08)
    assert len(sinks[1].content) == 10_000


async def test_what_a_node_computes_for_a_broadcast_holds_up_the_next(autojump_clock: trio.testing.MockClock) -> None:
    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        for _ in range(5):
            await nodes[0].publish(b"news")
        await trio.sleep(10)

    computed: list[float] = []
    loops = [EventLoop(), EventLoop(broadcast_s=0.5, computed=computed.append)]
    _, sinks = await on_network([AccessLink(), AccessLink()], 0.0, play, loops)
    times = [at for at, _ in sinks[1].messages]
    assert [later - sooner for sooner, later in pairwise(times)] == pytest.approx([0.5] * 4)
    assert computed == [0.5] * 5


async def test_an_event_loop_comes_to_one_stream_after_another(autojump_clock: trio.testing.MockClock) -> None:
    """Two callers open a stream each, at the same time, to a node that computes 0.5 s for each; they take 0.25 s."""
    read: list[float] = []

    async def ask(node: MemoryTransport, to: MemoryTransport) -> None:
        await send(node, to, 10)
        read.append(trio.current_time())

    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        await all_sent([(nodes[0], nodes[2]), (nodes[1], nodes[2])], 10)
        await trio.sleep(10)
        read.extend(at for at, _ in sinks[2].read)

    loops = [EventLoop(stream_s=0.25), EventLoop(stream_s=0.25), EventLoop(stream_s=0.5)]
    await on_network([AccessLink()] * 3, 0.0, play, loops)
    assert read[-2:] == pytest.approx([0.75, 1.25])


async def test_nothing_passes_a_stalled_node_and_all_comes_later(autojump_clock: trio.testing.MockClock) -> None:
    network: list[MemoryNetwork] = []

    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        network.append(nodes[0]._network)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, nodes[0], nodes[1], SIZE)
            await trio.sleep(1)
            network[0].stall(nodes[1].peer_id)
            await trio.sleep(0.5)
            before = len(sinks[1].content)
            await trio.sleep(30)
            assert len(sinks[1].content) == before
            network[0].unstall(nodes[1].peer_id)
        await trio.sleep(10)

    _, sinks = await on_network([AccessLink(up_bytes_per_s=RATE), AccessLink()], 0.01, play)
    assert len(sinks[1].content) == SIZE


async def test_a_cut_breaks_the_streams_on_their_way(autojump_clock: trio.testing.MockClock) -> None:
    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        async with trio.open_nursery() as nursery:

            async def broken() -> None:
                with pytest.raises(TransportError):
                    await send(nodes[0], nodes[1], SIZE)

            nursery.start_soon(broken)
            await trio.sleep(1)
            nodes[0]._network.cut_exactly([frozenset((nodes[0].peer_id, nodes[1].peer_id))])
        assert nodes[0].peers == frozenset()
        with pytest.raises(TransportError):
            await nodes[0].dial(nodes[1].addresses[0])
        nodes[0]._network.cut_exactly([])
        await nodes[0].dial(nodes[1].addresses[0])

    await on_network([AccessLink(up_bytes_per_s=RATE), AccessLink()], 0.01, play)


async def test_a_reading_that_is_cancelled_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    content = random.Random(4).randbytes(50_000)
    wan = WideAreaNetwork(random.Random(1), lambda one, other: 0.05)
    network = MemoryNetwork(random.Random(2), wan=wan)
    for name in ("a", "b"):
        wan.connect(PeerId(name), AccessLink(down_bytes_per_s=RATE))
    pipe = network.pipe(PeerId("a"), PeerId("b"))
    got = b""
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            await pipe.send_all(content)
            pipe.end()

        nursery.start_soon(write)
        while len(got) < len(content):
            with trio.move_on_after(0.0031):
                got += await pipe.receive_some(1 << 16)
    assert got == content
    assert await pipe.receive_some(1) == b""


def test_a_busy_link_builds_up_its_queue_and_an_idle_one_has_none() -> None:
    line = AccessLine(RATE, queue_s=0.3)
    assert line.queued_s(0.0) == 0.0
    held = []
    for piece in range(100):
        now = piece * 0.01
        line.reserve(1000, now)  # as fast as the link takes it
        held.append(line.queued_s(now))
    assert held[0] == 0.0
    assert held[-1] == pytest.approx(0.3 - 0.01, abs=0.001)
    assert all(sooner <= later + 1e-9 for sooner, later in pairwise(held))
    assert line.queued_s(10.0) == 0.0


def test_a_flow_starts_with_ten_segments_and_doubles_each_round_trip() -> None:
    flow, now, rtt = Flow(0.1, 0.0, slow_start=True), 0.0, 0.1
    times = []
    for _ in range(70):
        now = flow.reserve(MSS, now)
        times.append(now)
    first = times[INITIAL_SEGMENTS - 1]
    second = times[3 * INITIAL_SEGMENTS - 1] - first
    assert first < rtt
    assert second == pytest.approx(first, rel=0.25), "twice as many in the same time"
    assert flow.reserve(MSS, now + 100) - (now + 100) == pytest.approx(times[0]), "after silence it begins anew"


def test_mathis_bounds_a_flow_with_loss() -> None:
    flow, now = Flow(0.1, 0.01, slow_start=False), 0.0
    for _ in range(100):
        now = flow.reserve(MSS, now)
    assert 100 * MSS / now == pytest.approx(1.22 * MSS / (0.1 * math.sqrt(0.01)))


def test_a_link_without_limits_takes_no_time() -> None:
    assert AccessLine(math.inf).reserve(1 << 30, 5.0) == 5.0
    assert Flow(0.0, 0.5, slow_start=True).reserve(1 << 30, 5.0) == 5.0


def test_a_node_has_one_link() -> None:
    wan = WideAreaNetwork(random.Random(1), lambda one, other: 0.0)
    wan.connect(PeerId("a"), AccessLink())
    with pytest.raises(ValueError, match="a has a link already"):
        wan.connect(PeerId("a"), AccessLink())


async def test_a_reader_that_waits_learns_the_end_when_it_has_come(autojump_clock: trio.testing.MockClock) -> None:
    ends: list[tuple[bytes, float]] = []

    async def read(stream: Stream) -> None:
        ends.append((await stream.receive_some(10), trio.current_time()))

    async def play(nodes: list[MemoryTransport], sinks: list[Sink]) -> None:
        sinks[1].reads = trio.Event()  # it keeps its own end open, and neither reads nor writes
        stream = await nodes[0].open_stream(nodes[1].peer_id, "bulk")
        served = stream._outgoing  # type: ignore[attr-defined]  # what the other end reads
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, MemoryStream(nodes[0].peer_id, served, served, WireBytes()))
                await trio.testing.wait_all_tasks_blocked()
                before = trio.current_time()
                await stream.close()
        assert ends == [(b"", pytest.approx(before + 0.2))]

    await on_network([AccessLink(), AccessLink()], 0.2, play)
