"""When a round closes, and over whom: pure functions of who has said what, and a deadline that is learned.

A neighbour counts as *live* while its newest applied round is at most `max_staleness` behind ours, and as *fresh* when
it has reached ours. A round closes at a quorum of fresh among the live ones, or at the deadline. A neighbour that
died therefore costs a few deadlines and then, too stale to be live, nothing. With neighbours but no live one we wait
for the deadline: a node that ran ahead of all others must not run further.

A neighbour that is too stale here, but has announced our round and delivers, is *due*: it keeps up, and the exchange
does not. It counts in the quorum's denominator. Without it every neighbour whose updates pile up would make the quorum
smaller, the rounds shorter and the pile larger, until each node closed its rounds alone.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, median_low
from typing import Final

from gossip.ids import PeerId

LEAD_ROUNDS: Final = 64
"""A neighbour that claims to be this far ahead of the swarm's median and of us is not believed: it would count as
fresh for ever. No honest node is; the fastest is held back by its own deadlines long before."""

WINDOW: Final = 32
"""Closing times remembered: enough for a steady median, few enough to follow a change within half an hour."""

ENOUGH: Final = 3
"""Closing times needed before the deadline is learned from them: the least that have a median worth the name."""

SPREAD_FLOOR: Final = 0.1
"""The MAD counts as at least this share of the median. Equal times would else set the deadline to the median itself,
half of all rounds would be cut short, and each cut would lower the next deadline."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The members of a round: staleness in rounds of each live neighbour, and how many are fresh."""

    staleness: dict[PeerId, int]
    fresh: int
    neighbours: int

    def quorum_reached(self, quorum: float, *, due: int = 0) -> bool:
        """Whether enough of the live neighbours are fresh, and of those that are `due`: their updates are on the way,
        and too many of them."""
        live = len(self.staleness)
        return live > 0 and self.fresh >= math.ceil(quorum * (live + due) - 1e-9)


def standing(round: int, applied: Mapping[PeerId, int | None], max_staleness: int) -> Standing:
    """Who belongs to `round`, given each neighbour's newest applied round (None: not tracked yet)."""
    known = {peer: at for peer, at in applied.items() if at is not None}
    horizon = max(round, median_low(known.values()) if known else 0) + LEAD_ROUNDS
    staleness = {peer: max(0, round - at) for peer, at in known.items() if at <= horizon}
    live = {peer: behind for peer, behind in staleness.items() if behind <= max_staleness}
    return Standing(staleness=live, fresh=sum(behind == 0 for behind in live.values()), neighbours=len(applied))


def swarm_round(announced: Mapping[PeerId, int]) -> int | None:
    """The low median of what neighbours announced: no minority moves it, however large a number it names."""
    return median_low(announced.values()) if announced else None


class LearnedDeadline:
    """median + k * MAD of past closing times, between a least and an initial value (seconds).

    A round cut off by the deadline counts with the deadline itself, so that a deadline set too low grows by the factor
    1 + k * SPREAD_FLOOR a round until the slow are heard again.
    """

    def __init__(self, *, initial: float, least: float, k: float) -> None:
        self.change(initial=initial, least=least, k=k)
        self._seconds: deque[float] = deque(maxlen=WINDOW)

    def change(self, *, initial: float, least: float, k: float) -> None:
        """Other bounds; what was learned stays."""
        self._initial = initial
        self._least = least
        self._k = k

    def seconds(self, at_most: float, *, at_least: float = 0.0) -> float:
        """The deadline for the next round, never above `at_most`; below `at_least` only where that is above a bound."""
        return min(at_most, self._initial, max(at_least, self._learned()))

    def learn(self, seconds: float) -> None:
        """A round closed after so many seconds."""
        self._seconds.append(seconds)

    def _learned(self) -> float:
        if len(self._seconds) < ENOUGH:
            return self._initial
        middle = median(self._seconds)
        mad = median(abs(value - middle) for value in self._seconds)
        return max(self._least, middle + self._k * max(mad, SPREAD_FLOOR * middle))
