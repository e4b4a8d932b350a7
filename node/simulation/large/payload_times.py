"""When a payload has reached all of an author's neighbours: arithmetic on their links, in place of packets."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from node.simulation.scenario import LinkClass

TRIPS: Final = 3
"""Times that one way is gone: the announcement, the request, and the payload's first byte."""

FIRST_WINDOW: Final = 14_600
"""Bytes of the ten segments that a transfer begins with."""

SEGMENT: Final = 1_460
MATHIS: Final = 1.22
"""Of Mathis' ceiling on a stream that loses packets (SIGCOMM CCR 1997)."""


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """A neighbour that takes a payload."""

    link: LinkClass
    one_way_s: float
    """From the author."""
    payloads: int
    """That it takes in a round, which share its link."""


def exchange_s(size: int, link: LinkClass, receivers: Sequence[Receiver], jitter: Callable[[], float]) -> float:
    """Return the seconds from a payload's announcement until the last neighbour has all of its `size` bytes. `jitter`
    draws from [0, 1)."""
    up_s = len(receivers) * size / link.up
    return max(_one_s(size, link, one, up_s, jitter) for one in receivers)


def _one_s(size: int, link: LinkClass, one: Receiver, up_s: float, jitter: Callable[[], float]) -> float:
    trip_s = one.one_way_s + (link.jitter_ms * jitter() + one.link.jitter_ms * jitter()) / 1000
    loss = 1 - (1 - link.loss) * (1 - one.link.loss)
    stream_s = size / _ceiling(2 * trip_s, loss)
    transfer_s = max(up_s, one.payloads * size / one.link.down, stream_s)
    queue_s = min(max(link.queue_ms, one.link.queue_ms) / 1000, transfer_s)
    growth_s = 2 * trip_s * _doublings(size) if link.slow_start else 0.0
    return TRIPS * trip_s + queue_s + max(transfer_s, growth_s)


def _ceiling(round_trip_s: float, loss: float) -> float:
    """Bytes a second of a stream."""
    if loss <= 0 or round_trip_s <= 0:
        return math.inf
    return MATHIS * SEGMENT / (round_trip_s * math.sqrt(loss))


def _doublings(size: int) -> int:
    """Round trips in which a transfer's window doubles before all of it is on its way."""
    return max(0, math.ceil(math.log2(size / FIRST_WINDOW + 1)) - 1) if size > 0 else 0
