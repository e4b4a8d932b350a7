"""The round that the swarm is in, and how long one of ours is kept open: a vote, and a learned deadline.

Both are pure: functions of announced rounds, and of closing times. With whom a round counts is in standing.py.
"""

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from typing import Final

from gossip.core.ids import PeerId

WINDOW: Final = 32
"""Closing times remembered: enough for a steady median, few enough to follow a change within half an hour."""

ENOUGH: Final = 3
"""Closing times needed before the deadline is learned from them: the fewest with a meaningful median."""

SPREAD_FLOOR: Final = 0.1
"""The MAD counts as at least this share of the median. Otherwise equal times would set the deadline to the median
itself, half of all rounds would be cut short, and each cut would lower the next deadline."""


def swarm_round(announced: Mapping[PeerId, int | None], *, liars: int, paused: Collection[PeerId] = ()) -> int | None:
    """Return the highest round that more than `liars` and more than half of these neighbours say they have reached, or
    as many of those that are not `paused`. None: too few have announced anything.

    A neighbour that has announced nothing (None) has reached none. So neither `liars` of any number of neighbours nor
    any minority moves it upwards, however many are silent. What a paused one said last is old: a majority of such
    rounds would take who wakes to an old model. Among few that are awake `liars` still need an honest one with them.
    """
    everybody = _voted(announced, liars)
    if not paused:
        return everybody
    awake = _voted({peer: at for peer, at in announced.items() if peer not in paused}, liars)
    return max((vote for vote in (everybody, awake) if vote is not None), default=None)


def _voted(announced: Mapping[PeerId, int | None], liars: int) -> int | None:
    said = sorted((at for at in announced.values() if at is not None), reverse=True)
    needed = max(liars, len(announced) // 2) + 1
    return said[needed - 1] if len(said) >= needed else None


class LearnedDeadline:
    """median + k * MAD of past closing times, between a least and an initial value (seconds).

    A round cut off by the deadline counts with the deadline itself, so that a deadline set too low grows by the factor
    1 + k * SPREAD_FLOOR a round until the slow are heard again.
    """

    def __init__(self, *, initial: float, least: float, k: float) -> None:
        self.change(initial=initial, least=least, k=k)
        self._seconds: deque[float] = deque(maxlen=WINDOW)

    def change(self, *, initial: float, least: float, k: float) -> None:
        """Set other bounds; what was learned stays."""
        self._initial = initial
        self._least = least
        self._k = k

    def seconds(self, at_most: float, *, at_least: float = 0.0) -> float:
        """Return the deadline in seconds for the next round: at most `at_most`, and at least `at_least` where a bound
        allows."""
        return min(at_most, self._initial, max(at_least, self._learned()))

    def learn(self, seconds: float) -> None:
        """Note that a round closed after so many seconds."""
        self._seconds.append(seconds)

    def _learned(self) -> float:
        if len(self._seconds) < ENOUGH:
            return self._initial
        middle = median(self._seconds)
        mad = median(abs(value - middle) for value in self._seconds)
        return max(self._least, middle + self._k * max(mad, SPREAD_FLOOR * middle))
