"""Links as people have them: one access link a node, which all of its streams and broadcasts share in each direction,
and a distance between nodes.

A piece of a stream passes, in this order:

1. the sender's uplink, first come, first served, so that streams that send piece by piece have equal shares of it;
2. the flow of this pair: slow start (ten segments, and as many more as were sent), and Mathis' ceiling where packets
   are lost, rate <= 1.22 MSS / (RTT sqrt(p)) (Mathis et al. 1997, "The macroscopic behavior of the TCP congestion
   avoidance algorithm"); all streams of a pair share it, as they share a connection;
3. the way: latency, jitter, and the queue that a busy uplink has built up (bufferbloat);
4. the receiver's downlink, first come, first served.

Pieces overlap on the way: a stream is bounded by its window a round trip (shaped_pipe.py), not by a piece a trip.
Packet headers are not counted (3% at a full MSS).
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from gossip.core.ids import PeerId

MSS: Final = 1460
"""Bytes of a segment: Ethernet's 1500 less the headers of IPv4 and TCP."""

INITIAL_SEGMENTS: Final = 10
"""Sent before the first acknowledgement (RFC 6928)."""

IDLE_S: Final = 1.0
"""A flow that was silent for so long begins anew (RFC 5681, 4.1; the least retransmission timeout of RFC 6298)."""

MATHIS: Final = 1.22
"""The constant of Mathis' ceiling: sqrt(3/2), with every packet acknowledged."""

LARGEST_PIECE: Final = 16 << 10
"""Bytes of a stream that pass at a time; fewer on a slow link, see PIECE_S."""

PIECE_S: Final = 0.01
"""Seconds of a link that one piece takes at most, where that is a segment or more: what else is to pass waits no longer
for it."""

DIAL_ROUND_TRIPS: Final = 6.0
"""Until a connection can be used: TCP 1, the choice of noise 2, noise XX 1 (the dialler may then send), the choice of
yamux 2. py-libp2p's multistream client waits for the header's answer before it names a protocol."""

STREAM_ROUND_TRIPS: Final = 2.0
"""Until a stream can be used: the choice of its protocol."""

STREAM_BYTES: Final = 450
"""What a stream costs each end beside what is written to it: the choice of its protocol, frames, acknowledgements of
windows. Of two runs of real nodes beside their twins: 420 and 480."""


@dataclass(frozen=True, kw_only=True)
class AccessLink:
    """A node's link. Rates in bytes a second. `loss`: share of packets. `queue_s`: the most that the link's queues hold
    up what passes while it is busy."""

    up_bytes_per_s: float = math.inf
    down_bytes_per_s: float = math.inf
    loss: float = 0.0
    jitter_s: float = 0.0
    queue_s: float = 0.0
    slow_start: bool = False


class EventLoop:
    """What a node's one event loop computes for its traffic: one piece after another. `broadcast_s`: of each broadcast
    that comes in. `stream_s`: of each stream, at either end. `wake_s`: until it comes to what has arrived, each time,
    the mean of an exponential distribution (a stream's opening and end take the mean): no work, but waiting for a
    turn. `computed` gets each piece's seconds."""

    def __init__(
        self,
        *,
        broadcast_s: float = 0.0,
        stream_s: float = 0.0,
        wake_s: float = 0.0,
        computed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.broadcast_s = broadcast_s
        self.stream_s = stream_s
        self.wake_s = wake_s
        self._computed = computed
        self._free_at = -math.inf

    async def compute(self, seconds: float) -> None:
        """Wait until the loop has come to a piece of work that takes `seconds`, and has done it."""
        if seconds:
            await trio.sleep_until(self.reserve(seconds))

    def reserve(self, seconds: float) -> float:
        """Take the loop for a piece of work that takes `seconds`; return when it will be done."""
        if seconds:
            self._computed(seconds)
        self._free_at = max(self._free_at, trio.current_time()) + seconds
        return self._free_at


class AccessLine:
    """One direction of an access link: what comes first passes first."""

    def __init__(self, bytes_per_s: float, queue_s: float = 0.0) -> None:
        self.bytes_per_s = bytes_per_s
        self._queue_s = queue_s
        self._free_at = -math.inf
        self._busy_since = -math.inf

    def reserve(self, size: int, now: float) -> float:
        """Take the line for `size` bytes; return when the last of them has passed."""
        if math.isinf(self.bytes_per_s):
            return now
        if now >= self._free_at:
            self._busy_since = self._free_at = now
        self._free_at += size / self.bytes_per_s
        return self._free_at

    def queued_s(self, now: float) -> float:
        """Return by how much what passes now is held up by the queue of a link that has been busy for a while, beyond
        what already waits in `reserve`."""
        if now >= self._free_at:
            return 0.0
        return max(0.0, min(self._queue_s, now - self._busy_since) - (self._free_at - now))


class Flow:
    """What passes from one node to another, by TCP's rules."""

    def __init__(self, rtt_s: float, loss: float, *, slow_start: bool) -> None:
        self._rtt_s = rtt_s
        self._slow_start = slow_start
        self._ceiling = MATHIS * MSS / (rtt_s * math.sqrt(loss)) if loss > 0 and rtt_s > 0 else math.inf
        self._window = float(INITIAL_SEGMENTS * MSS)
        self._free_at = -math.inf

    def reserve(self, size: int, now: float) -> float:
        """Take the flow for `size` bytes; return when the last of them may have been sent."""
        if now - self._free_at > IDLE_S:
            self._window = float(INITIAL_SEGMENTS * MSS)
        rate = min(self._ceiling, self._window / self._rtt_s if self._slow_start and self._rtt_s > 0 else math.inf)
        self._window += size
        self._free_at = max(self._free_at, now) + (0.0 if math.isinf(rate) else size / rate)
        return self._free_at


class OrderedArrivals:
    """When a node comes to what arrives over one connection, in order: `wait` draws how long it takes until it looks,
    and then it takes all that is there."""

    def __init__(self, wait: Callable[[], float]) -> None:
        self._wait = wait
        self._looks_at = -math.inf

    def taken_at(self, arrives_at: float) -> float:
        """Return when it comes to what arrives then. Calls follow the order in which things were sent."""
        if arrives_at >= self._looks_at:
            self._looks_at = arrives_at + self._wait()
        return self._looks_at


class Route:
    """The way from one node to another."""

    def __init__(
        self,
        up: AccessLine,
        flow: Flow,
        down: AccessLine,
        *,
        latency_s: float,
        loss: float,
        jitter: Callable[[], float],
        wait: Callable[[], float],
        mean_wait_s: float,
    ) -> None:
        self._up, self._flow, self._down = up, flow, down
        self._way_s = latency_s
        self.latency_s = latency_s + mean_wait_s
        """Until the other end has come to it, jitter apart."""
        self.loss = loss
        self._jitter = jitter
        self._pieces, self._broadcasts = OrderedArrivals(wait), OrderedArrivals(wait)
        slowest = min(up.bytes_per_s, down.bytes_per_s)
        self.piece_bytes = int(max(MSS, min(LARGEST_PIECE, slowest * PIECE_S)))
        """Bytes that pass at a time."""

    def leaves_at(self, size: int, now: float) -> float:
        """Take the uplink and the flow for a piece; return when its last byte has left."""
        return max(self._up.reserve(size, now), self._flow.reserve(size, now))

    def broadcast_leaves_at(self, size: int, now: float) -> float:
        """Take the uplink for a broadcast, which is smaller than any window."""
        return self._up.reserve(size, now)

    def arrives_at(self, now: float) -> float:
        """Return when a piece that leaves now comes to the receiver's link: not before those that left earlier."""
        return self._pieces.taken_at(self._passes(now))

    def broadcast_arrives_at(self, now: float) -> float:
        """Return when a broadcast that leaves now comes to the receiver's link, in the order of broadcasts."""
        return self._broadcasts.taken_at(self._passes(now))

    def _passes(self, now: float) -> float:
        return now + self._way_s + self._jitter() + self._up.queued_s(now) + self._down.queued_s(now)

    def lands_at(self, size: int, now: float) -> float:
        """Take the downlink for what has come; return when its last byte is there."""
        return self._down.reserve(size, now)


class WideAreaNetwork:
    """Every node's access link, and the ways between. `latency_s` says how far two nodes are apart, one way."""

    def __init__(self, rng: random.Random, latency_s: Callable[[PeerId, PeerId], float]) -> None:
        self._rng = rng
        self._latency_s = latency_s
        self._links: dict[PeerId, AccessLink] = {}
        self._loops: dict[PeerId, EventLoop] = {}
        self._lines: dict[PeerId, tuple[AccessLine, AccessLine]] = {}
        self._routes: dict[tuple[PeerId, PeerId], Route] = {}

    def connect(self, peer: PeerId, link: AccessLink, loop: EventLoop | None = None) -> None:
        """Give a node its link, and an event loop that takes time. Raises ValueError where it has one."""
        if peer in self:
            raise ValueError(f"{peer} has a link already")
        self._links[peer] = link
        self._loops[peer] = EventLoop() if loop is None else loop
        self._lines[peer] = (
            AccessLine(link.up_bytes_per_s, link.queue_s),
            AccessLine(link.down_bytes_per_s, link.queue_s),
        )

    def __contains__(self, peer: PeerId) -> bool:
        """Return whether a node has a link."""
        return peer in self._links

    def route(self, one: PeerId, other: PeerId) -> Route:
        """Return the way from one node to another; both have links."""
        route = self._routes.get((one, other))
        if route is None:
            route = self._routes[one, other] = self._make(one, other)
        return route

    def loop(self, peer: PeerId) -> EventLoop:
        """Return a node's event loop."""
        return self._loops[peer]

    def _make(self, one: PeerId, other: PeerId) -> Route:
        ours, theirs = self._links[one], self._links[other]
        way_s = self._latency_s(one, other)
        # Half of what each end waits for, so that a trip there and back is right from either end.
        wake_s = (self._loops[one].wake_s + self._loops[other].wake_s) / 2
        loss = 1 - (1 - ours.loss) * (1 - theirs.loss)
        jitter_s = ours.jitter_s + theirs.jitter_s
        return Route(
            self._lines[one][0],
            Flow(2 * way_s, loss, slow_start=ours.slow_start),
            self._lines[other][1],
            latency_s=way_s,
            loss=loss,
            jitter=(lambda: self._rng.uniform(0.0, jitter_s)) if jitter_s else lambda: 0.0,
            wait=(lambda: self._rng.expovariate(1 / wake_s)) if wake_s else lambda: 0.0,
            mean_wait_s=wake_s,
        )
