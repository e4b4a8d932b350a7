"""Which share of the neighbours' updates arrives in time, and what to say when it falls, and when it is well again.

An update of a round is in time when it is here before the phase after that round has ended: the exchange is then hidden
behind that phase, and nothing was averaged without it for longer than a round. (Rounds themselves close earlier, at a
quorum, so that who is `fresh` at that moment says less.)
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median_low
from typing import Final, Literal

from gossip.core.api import Arrivals

WINDOW: Final = 20
"""Rounds that the share is of: a single bad one among eight neighbours moves it by 5%."""

LEAST_ROUNDS: Final = 10
"""Rounds before anything is said: in the first ones neighbours are still met, and exchanges not measured yet."""

LOW: Final = 0.5
"""Below it a node trains more on its own than with the others."""

WELL: Final = 0.6
"""From it on all is well again: a margin of two rounds of the window, so that one that wavers is told of once."""

LENGTHENED: Final = 2.0
"""Times as many steps as planned from which on rounds count as lengthened; catching up and jitter make less of them."""

ANNOUNCED: Final = 1.5
"""Times as long as a measured exchange the whole way of an update is: it also has to be announced, which no clock of
ours sees. A third of the way in the simulated swarm (a hop of three)."""

Turn = Literal["fell", "recovered"]


class InTime:
    """The share over the newest rounds, and over all."""

    def __init__(self) -> None:
        self._rounds: deque[Arrivals] = deque(maxlen=WINDOW)
        self._arrived = self._possible = 0
        self._low = False

    @property
    def share(self) -> float | None:
        """Of the newest WINDOW rounds with neighbours; None before the first."""
        possible = sum(it.neighbours for it in self._rounds)
        return sum(it.arrived for it in self._rounds) / possible if possible else None

    @property
    def total(self) -> float | None:
        """Since the process began."""
        return self._arrived / self._possible if self._possible else None

    @property
    def under_way(self) -> bool:
        """Whether most of what is late had been announced: it is the exchange that takes too long, and not training."""
        announced = sum(it.announced - it.arrived for it in self._rounds)
        return 2 * announced >= sum(it.neighbours - it.arrived for it in self._rounds)

    def add(self, arrivals: Arrivals) -> Turn | None:
        """Count one more round, and say whether the share has fallen below LOW by it, or recovered."""
        if arrivals.neighbours == 0:
            return None
        self._rounds.append(arrivals)
        self._arrived += arrivals.arrived
        self._possible += arrivals.neighbours
        share = self.share
        if share is None or len(self._rounds) < LEAST_ROUNDS:
            return None
        if not self._low and share < LOW:
            self._low = True
            return "fell"
        if self._low and share >= WELL:
            self._low = False
            return "recovered"
        return None


class Lengthened:
    """Whether rounds have become longer than planned; it says so once."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._told = False

    def add(self, steps: int, planned: int) -> int | None:
        """Count one more phase, of so many `steps`. When for the first time most of the newest WINDOW phases had
        LENGTHENED times as many as planned: the median of theirs; None otherwise."""
        self._rounds.append((steps, planned))
        if self._told or len(self._rounds) < WINDOW:
            return None
        if median_low(did / plan for did, plan in self._rounds) < LENGTHENED:
            return None
        self._told = True
        return median_low(did for did, _ in self._rounds)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """What a phase and an exchange take. `longest_s`: for which a round is kept open at most."""

    inner_steps: int
    step_seconds: float
    exchange_s: float | None
    longest_s: float

    @property
    def wanted_steps(self) -> int:
        """Steps that outlast an exchange; twice as many as now where nobody knows."""
        if self.exchange_s is None or self.step_seconds <= 0:
            return 2 * self.inner_steps
        return round_up(max(ANNOUNCED * self.exchange_s / self.step_seconds, self.inner_steps + 1))


def round_up(steps: float) -> int:
    """To two digits."""
    unit: int = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return math.ceil(steps / unit - 1e-9) * unit


def late_words(in_time: InTime, lengths: Lengths) -> str:
    """What is wrong when the share has fallen, and what to set."""
    share = in_time.share or 0.0
    what = f"only {share:.0%} of the neighbours' updates arrived in time over the last {WINDOW} rounds"
    exchange_s, longest_s, inner_steps = lengths.exchange_s, lengths.longest_s, lengths.inner_steps
    if not in_time.under_way:
        mend = "most were not even announced; if nodes are slower, set node.pace=dylu on all; else see p2ptrain doctor"
    elif exchange_s is not None and exchange_s >= longest_s:
        mend = f"an exchange takes {exchange_s:.2g} s; set network.initial_deadline_s above it (now {longest_s:g})"
    else:
        mend = f"set train.inner_steps={lengths.wanted_steps} or more on all nodes (now {inner_steps})"
    return f"{what}: {mend}"


def lengthened_words(steps: int, lengths: Lengths) -> str:
    """What to say when rounds have become longer than planned, and what to set."""
    took = "" if lengths.exchange_s is None else f" (an exchange takes {lengths.exchange_s:.2g} s)"
    return (
        f"rounds last some {steps} steps instead of {lengths.inner_steps}, or updates would come late{took}; "
        f"to plan for it, set train.inner_steps={round_up(steps)} and fewer train.rounds"
    )
