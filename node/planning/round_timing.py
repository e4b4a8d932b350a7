"""The seconds of a round, and which of its parts bounds it.

    train     H steps
    exchange  the slower of all copies out and all copies in, latency, encoding, decoding, averaging
    round     train + whatever of the exchange outlasts the steps that it may run beside

A node trains while a round closes (`node.overlap`), so that an exchange costs no time until it is longer than the
round's steps. From then on rounds are as long as an exchange (decision 35), and their steps go on at a rate that falls
as planned over taken: of `taken` steps H (1 + ln(taken / H)) count (`effective_steps`). What an exchange
does cost is staleness: its result arrives `late_steps` steps late. Where cores are shared (`crowding`), work beside
training slows training down, and is not hidden.

`utilization` is that of p2ptrain.training.pace: the share of time in planned steps. Links are full duplex.
"""

import math
from dataclasses import dataclass
from typing import Final

from p2ptrain.training.pace import utilization

FIRST_WINDOW_BYTES: Final = 14_000.0
"""What a TCP connection sends before the first acknowledgement: ten segments (RFC 6928)."""
COMPUTING: Final = "computing"
UPLINK: Final = "uplink"
DOWNLINK: Final = "downlink"
LATENCY: Final = "latency"
CODECS: Final = "codecs and averaging"


@dataclass(frozen=True, kw_only=True)
class PlannedLink:
    """A member's link to all others."""

    up_bits_s: float
    down_bits_s: float
    rtt_s: float

    @property
    def up(self) -> float:
        """Return bytes a second."""
        return self.up_bits_s / 8

    @property
    def down(self) -> float:
        """Return bytes a second."""
        return self.down_bits_s / 8


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What goes through a member's link in a round, overhead included."""

    sent_bytes: float
    """By the member that sends most: the round waits for it."""
    received_bytes: float
    payload_bytes: float
    """The largest that comes over one connection."""
    one_ways: float
    """One-way latencies one after another."""


@dataclass(frozen=True, kw_only=True)
class RoundWork:
    """What a member computes in a round."""

    step_s: float
    inner_steps: float
    codec_s: float = 0.0
    """Encoding, decoding, averaging and the event loop, in seconds of a core."""
    evaluation_s: float = 0.0
    """Seconds of training that evaluations take, of a round on average."""
    crowding: float = 0.0
    """Seconds that a second of `codec_s` takes from training: 0 where cores are free, nodes / cores where nodes share
    them."""

    @property
    def planned_s(self) -> float:
        """Return the seconds of the planned steps."""
        return self.inner_steps * self.step_s

    @property
    def train_s(self) -> float:
        """Return the seconds until the planned steps are done."""
        return self.planned_s + self.evaluation_s + self.crowding * self.codec_s


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """A round, in seconds."""

    train_s: float
    send_s: float
    receive_s: float
    latency_s: float
    codec_s: float
    exchange_s: float
    round_s: float
    utilization: float
    """Share of the time in planned steps, in 0..1."""
    late_steps: float
    """Steps by which the round's result is late, of the following round."""
    effective_steps: float
    """Steps at the full rate that a round counts as: the planned ones, and more where phases are longer."""
    bound: str
    """What takes most of the round, of training and the parts of its exchange: one of the five names above."""
    bound_s: float

    @property
    def staleness_rounds(self) -> float:
        """Return the rounds that pass until a model's movement is in its neighbours' averages."""
        return self.exchange_s / self.round_s

    @property
    def words(self) -> str:
        """Say what binds: `uplink: 51 s of 60 s`."""
        return f"{self.bound}: {_seconds(self.bound_s)} of {_seconds(self.round_s)}"


def round_times(
    work: RoundWork,
    transfer: Transfer,
    link: PlannedLink,
    *,
    overlap_s: float | None = None,
    exchange_s: float | None = None,
) -> RoundTimes:
    """Return a round's times. `overlap_s`: seconds of training beside which an exchange may run; None: all of the
    round's; 0: training waits. `exchange_s`: as measured, in place of what the link says."""
    send_s, receive_s = transfer.sent_bytes / link.up, transfer.received_bytes / link.down
    latency_s = latency(transfer, link)
    codec_s = work.codec_s if not work.crowding else work.codec_s * work.crowding
    computed = max(send_s, receive_s) + latency_s + codec_s
    exchange = computed if exchange_s is None else exchange_s
    beside = work.train_s if overlap_s is None else min(overlap_s, work.train_s)
    round_s = work.train_s + max(0.0, exchange - beside)
    lengthened_s = round_s - work.train_s if overlap_s is None else 0.0  # else training waits
    parts = {UPLINK: send_s, DOWNLINK: receive_s, LATENCY: latency_s, CODECS: codec_s}
    if exchange_s is not None:  # measured as a whole: it is the link's, in the slower direction
        parts = {UPLINK: exchange if send_s >= receive_s else 0.0, DOWNLINK: exchange if send_s < receive_s else 0.0}
    largest = max(parts, key=lambda name: parts[name])
    computes = work.train_s >= parts[largest]
    bound, bound_s = (COMPUTING, work.train_s) if computes else (largest, parts[largest])
    return RoundTimes(
        train_s=work.train_s,
        send_s=send_s,
        receive_s=receive_s,
        latency_s=latency_s,
        codec_s=codec_s,
        exchange_s=exchange,
        round_s=round_s,
        utilization=_utilization(work, round_s),
        late_steps=min(exchange, beside) / work.step_s if work.step_s > 0 else 0.0,
        effective_steps=effective_steps(work.inner_steps, lengthened_s / work.step_s if work.step_s > 0 else 0.0),
        bound=bound,
        bound_s=bound_s,
    )


def effective_steps(planned: float, more: float) -> float:
    """Return the steps at the full rate that `planned` steps and `more` beyond them count as. Step s of a phase is
    taken at a rate of planned / s, at most 1 (`RunState.rate_factor`): returned is the sum, taken as an integral."""
    return planned * (1 + math.log1p(more / planned)) if planned > 0 else 0.0


def latency(transfer: Transfer, link: PlannedLink) -> float:
    """Return the seconds that a round waits for light: its messages one after another, and TCP's slow start, in which
    a window doubles each round trip until it fills the link."""
    if transfer.payload_bytes <= 0:
        return 0.0
    fills = min(transfer.payload_bytes, link.down * link.rtt_s, link.up * link.rtt_s)
    doublings = max(0.0, math.log2(fills / FIRST_WINDOW_BYTES)) if fills > 0 else 0.0
    return (transfer.one_ways / 2 + doublings) * link.rtt_s


def bits_for_utilization(
    work: RoundWork, transfer: Transfer, wanted: float, *, rtt_s: float = 0.0, overlap_s: float | None = None
) -> float:
    """Return the bits a second, the same both ways, from which on utilization is `wanted`, by halving; infinite where
    no link gives it."""
    low, high = 1.0, 1e18

    def reached(bits: float) -> bool:
        link = PlannedLink(up_bits_s=bits, down_bits_s=bits, rtt_s=rtt_s)
        return round_times(work, transfer, link, overlap_s=overlap_s).utilization >= wanted

    if not reached(high):
        return math.inf
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _utilization(work: RoundWork, round_s: float) -> float:
    """By the rule that nodes pace themselves by: what is not a planned step is an exchange that nothing hides."""
    if work.planned_s <= 0:
        return 0.0
    waits_s = round_s - work.planned_s
    return utilization(1, step_seconds=work.planned_s, exchange_s=max(0.0, waits_s), overlap_steps=0)


def _seconds(value: float) -> str:
    return f"{value:.3g} s"
