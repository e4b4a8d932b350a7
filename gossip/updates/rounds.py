"""When a round closes, and over whom: pure functions of announced and applied rounds, and a learned deadline.

A neighbour counts as *live* while its newest applied round is at most `max_staleness` behind ours, and as *fresh* when
it has reached ours. The base of a chain has the work of the round before it: of none, at the start of a run. A round
closes at a quorum of fresh among the live ones, or at the deadline. One that has announced a pause
(announced_pauses.py) is not waited for: it belongs to the round as before, and does not count in the quorum's
denominator, unless it is fresh. So a neighbour that died costs a few deadlines, and then nothing, because it is too
stale to be live. With neighbours but no live one we wait for the deadline: a node that ran ahead of all others must not
run further. Nor must one that has none left beside it but as many as may lie, where rounds withstood these before, and
more than these deliver behind it: a liar that keeps up with a fast node would take it out of the swarm for good.

A neighbour that is too stale here, but has announced our round and delivers, is *due*: it keeps up, and the exchange
does not. It counts in the quorum's denominator. Otherwise every neighbour whose updates pile up would make the quorum
smaller, the rounds shorter and the pile larger, until each node closed its rounds alone.

A pause takes nothing from the denominator that publishing in time would not have added to the fresh. So liars close no
round by pauses that they could not close by updates. Where all neighbours are paused, there is nobody to wait for.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from gossip.core.ids import PeerId

LEAD_ROUNDS: Final = 64
"""A neighbour that claims to be this far ahead of the swarm's round and of ours is not believed: it would count as
fresh for ever. No honest node is so far ahead; its own deadlines slow the fastest down long before."""

WINDOW: Final = 32
"""Closing times remembered: enough for a steady median, few enough to follow a change within half an hour."""

ENOUGH: Final = 3
"""Closing times needed before the deadline is learned from them: the fewest with a meaningful median."""

SPREAD_FLOOR: Final = 0.1
"""The MAD counts as at least this share of the median. Otherwise equal times would set the deadline to the median
itself, half of all rounds would be cut short, and each cut would lower the next deadline."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The members of a round: staleness in rounds of each live neighbour, how many are fresh, how many neighbours have
    yet to announce anything, and how many are paused: of all neighbours, and of the live and the arriving ones.
    `beyond`: those that are too far ahead to count. `behind`: those that are too far behind, and not paused. Only these
    and how many are paused depend on pauses."""

    staleness: dict[PeerId, int]
    fresh: int
    neighbours: int
    arriving: int = 0
    paused: int = 0
    excused: int = 0
    beyond: frozenset[PeerId] = frozenset()
    behind: frozenset[PeerId] = frozenset()

    @property
    def awaits_nobody(self) -> bool:
        """Whether there is no neighbour that has not paused."""
        return self.paused == self.neighbours

    def quorum_reached(self, quorum: float, *, due: int = 0) -> bool:
        """Return whether enough are fresh: of the live and the arriving neighbours that are not paused, and of those
        that are `due`, whose updates are still on the way."""
        live = len(self.staleness) + self.arriving - self.excused
        return live > 0 and self.fresh >= math.ceil(quorum * (live + due) - 1e-9)


ARRIVAL_S: Final = 30.0
"""For so many seconds after our chain began, neighbours that are not tracked yet count as arriving: nodes that begin
together do so within seconds of each other. Until then a round waits for them, and none is averaged over fewer members
than tolerate the liars: the first neighbour to be heard may be one. As long as the deadline before any is learned.
Chosen."""


def standing(
    round: int,
    applied: Mapping[PeerId, int | None],
    max_staleness: int,
    *,
    liars: int = 0,
    trusted: Collection[PeerId] = (),
    swarm: int | None = None,
    beginning: bool = False,
    paused: Collection[PeerId] = (),
) -> Standing:
    """Return who belongs to `round`, given each neighbour's newest applied round (None: not tracked yet; -1: base of
    a run). `liars`: how many may lie; of neighbours far ahead of all others so many of the `trusted` count, and no
    others; all where nobody lies. `swarm`: the swarm's round (`swarm_round`), if enough have announced. `beginning`:
    our chain began less than ARRIVAL_S ago. `paused`: neighbours that have said so, and have not announced this round,
    and those that are not waited for by choice (pull_priority.py). A fresh one is not paused: it is here."""
    here = max(round, swarm or 0)
    oldest, newest = round - max_staleness, here + LEAD_ROUNDS
    beyond = {peer for peer, at in applied.items() if at is not None and at > newest}
    if liars:  # else a liar and a node that it ruined, when there were the two of them, are two wrong models
        far = {peer for peer, at in applied.items() if at is not None and at > here + max_staleness}
        uncounted = far.difference(sorted(far.intersection(trusted))[:liars])
        applied = {peer: at for peer, at in applied.items() if peer not in uncounted}
        beyond |= uncounted
    live = {peer: max(0, round - at) for peer, at in applied.items() if at is not None and oldest <= at <= newest}
    arriving = {peer for peer, at in applied.items() if at is None} if beginning else set()
    absent = {peer for peer in paused if peer in applied and live.get(peer) != 0}
    return Standing(
        staleness=live,
        fresh=list(live.values()).count(0),
        neighbours=len(applied),
        arriving=len(arriving),
        paused=len(absent),
        excused=len(absent & (live.keys() | arriving)),
        beyond=frozenset(beyond),
        behind=frozenset(peer for peer, at in applied.items() if at is not None and at < oldest and peer not in absent),
    )


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
