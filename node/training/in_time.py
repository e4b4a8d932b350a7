"""The share of the neighbours' updates that arrives in time, and the messages when it falls and when it recovers.

A round's update is in time when it arrives before the end of the phase after that round. The exchange is then hidden
behind that phase, and nothing was averaged without it for longer than a round. (Rounds themselves close earlier, at a
quorum, so `fresh`, the count at that moment, says less.)
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Final, Literal

from gossip.core.api import Arrivals
from gossip.core.ids import PeerId

WINDOW: Final = 20
"""Rounds over which the share is taken: a single bad one among eight neighbours moves it by 5%."""

LEAST_ROUNDS: Final = 10
"""Rounds before the first message: in the first ones neighbours still connect, and no exchange has been measured."""

LOW: Final = 0.5
"""Below this share a node trains more on its own than with the others."""

WELL: Final = 0.6
"""From this share on it has recovered: a margin of two rounds of the window, so that a wavering share warns once."""

LENGTHENED: Final = 2.0
"""Rounds with this many times the planned steps count as lengthened; catching up and jitter lengthen them less."""

ANNOUNCED: Final = 1.5
"""An update takes this many times as long as a measured exchange: it also has to be announced, which no clock of ours
sees. In the simulated swarm the announcement is a third of the whole (one hop of three)."""

Turn = Literal["fell", "recovered"]


class InTime:
    """The share of updates in time, over the newest rounds and over all."""

    def __init__(self) -> None:
        self._rounds: deque[Arrivals] = deque(maxlen=WINDOW)
        self._arrived = self._possible = 0
        self._low = False

    @property
    def rounds(self) -> int:
        """Return how many rounds `share` is over."""
        return len(self._rounds)

    @property
    def share(self) -> float | None:
        """Return the share over the newest WINDOW rounds with neighbours; None before the first."""
        possible = sum(it.neighbours for it in self._rounds)
        return sum(it.arrived for it in self._rounds) / possible if possible else None

    @property
    def is_low(self) -> bool:
        """Whether it has fallen, and not recovered."""
        return self._low

    @property
    def total(self) -> float | None:
        """Return the share since the process began; None before the first round with neighbours."""
        return self._arrived / self._possible if self._possible else None

    @property
    def under_way(self) -> bool:
        """Return whether most late updates had been announced: then the exchange takes too long, and not training."""
        announced = sum(it.announced - it.arrived for it in self._rounds)
        return 2 * announced >= sum(it.neighbours - it.arrived for it in self._rounds)

    def add(self, arrivals: Arrivals) -> Turn | None:
        """Count one more round. Return whether the share fell below LOW by it, or recovered; None where neither."""
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
    """Notices, once, that rounds have become longer than planned."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._told = False

    def add(self, steps: int, planned: int) -> int | None:
        """Count one more phase of `steps` steps. The first time that most of the newest WINDOW phases had at least
        LENGTHENED times their planned steps, return the median of their steps; otherwise None."""
        self._rounds.append((steps, planned))
        if self._told or len(self._rounds) < WINDOW:
            return None
        if median_low(did / plan for did, plan in self._rounds) < LENGTHENED:
            return None
        self._told = True
        return median_low(did for did, _ in self._rounds)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How long a phase and an exchange take. `inner_steps`: of the phase, by `schedule`. `longest_s`: how long a round
    is kept open at most."""

    inner_steps: int
    schedule: str = "constant"
    step_seconds: float
    exchange_s: float | None
    longest_s: float

    @property
    def wanted_steps(self) -> int:
        """Return the steps that outlast an exchange; twice as many as now where its duration is unknown."""
        if self.exchange_s is None or self.step_seconds <= 0:
            return 2 * self.inner_steps
        return round_up(max(ANNOUNCED * self.exchange_s / self.step_seconds, self.inner_steps + 1))


def round_up(steps: float) -> int:
    """Return `steps` rounded up to two digits."""
    unit: int = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return math.ceil(steps / unit - 1e-9) * unit


@dataclass(frozen=True, kw_only=True)
class Apart:
    """How many of the neighbours are in rounds so far behind that their updates count in none of ours."""

    behind: int
    neighbours: int
    rounds: int
    """How far behind the nearest of them is."""

    @property
    def most(self) -> bool:
        """Whether that is most of them."""
        return 2 * self.behind > self.neighbours


class FarBehind:
    """Which neighbours are too far behind for their updates to count, and train on there."""

    def __init__(self) -> None:
        self._first: dict[PeerId, int] = {}
        """The round in which each was first seen behind: of those that still are."""
        self._looks: dict[PeerId, int] = {}
        """How many looks in a row have seen each of them behind."""
        self._lead: dict[PeerId, int] = {}
        """By how many rounds each of them was behind at the last look."""

    def look(self, mine: int, theirs: Mapping[PeerId, int | None], max_staleness: int) -> Apart:
        """Return who is how far behind. `theirs`: the round that each neighbour has announced; None: none yet. Who has
        announced none since it was first seen behind does not count: it may be stopped, or its connection dead. Nor
        does who is less far behind than at the last look: it was held up, and is catching up. Nor who is behind for
        fewer than LEAST_ROUNDS looks: between neighbours of one speed the distance wavers."""
        behind = {peer: at for peer, at in theirs.items() if at is not None and mine - at > max_staleness}
        self._first = {peer: self._first.get(peer, at) for peer, at in behind.items()}
        self._looks = {peer: self._looks.get(peer, 0) + 1 for peer in behind}
        lead, self._lead = self._lead, {peer: mine - at for peer, at in behind.items()}
        stays = {
            peer
            for peer, rounds in self._lead.items()
            if rounds >= lead.get(peer, rounds) and self._looks[peer] >= LEAST_ROUNDS
        }
        rounds = [mine - at for peer, at in behind.items() if at > self._first[peer] and peer in stays]
        return Apart(behind=len(rounds), neighbours=len(theirs), rounds=min(rounds, default=0))


def apart_words(others: Apart, *, goes_back: bool) -> str:
    """Return the message for a node whose neighbours train without it. `goes_back`: it will join them by itself."""
    joins = "to train with them start it with another --run-dir"
    if goes_back:
        joins = "this node takes their model once that has lasted"
    return (
        f"{others.behind} of {others.neighbours} neighbours are {others.rounds} rounds or more behind, and train "
        "without this node; if they are as fast, it had begun before they came, and the word of one is not taken: "
        f"{joins}; if they are slower, set node.pace=dylu on all"
    )


def late_words(in_time: InTime, lengths: Lengths) -> str:
    """Return the message for a share that has fallen: what is wrong, and which setting to change."""
    share = in_time.share or 0.0
    what = f"only {share:.0%} of the neighbours' updates arrived in time over the last {in_time.rounds} rounds"
    exchange_s, longest_s, inner_steps = lengths.exchange_s, lengths.longest_s, lengths.inner_steps
    if not in_time.under_way:
        mend = "most were not even announced; if nodes are slower, set node.pace=dylu on all; else see p2ptrain doctor"
    elif exchange_s is not None and exchange_s >= longest_s:
        mend = f"an exchange takes {exchange_s:.2g} s; set network.initial_deadline_s above it (now {longest_s:g})"
    else:
        mend = f"set train.inner_steps={lengths.wanted_steps} or more on all nodes (now {inner_steps})"
        if lengths.schedule != "constant":
            mend = (
                f"set train.inner_steps_schedule=constant on all nodes ({lengths.schedule} has {inner_steps} steps now)"
            )
    return f"{what}: {mend}"


def lengthened_words(steps: int, lengths: Lengths) -> str:
    """Return the message for rounds longer than planned, and which setting to change."""
    took = "" if lengths.exchange_s is None else f" (an exchange takes {lengths.exchange_s:.2g} s)"
    plan = f"set train.inner_steps={round_up(steps)} and fewer train.rounds"
    if lengths.schedule != "constant":
        plan = f"set train.inner_steps_schedule=constant: {lengths.schedule} has shorter rounds than the links hide"
    return (
        f"rounds last some {steps} steps instead of {lengths.inner_steps}, or updates would come late{took}; "
        f"to plan for it, {plan}"
    )
