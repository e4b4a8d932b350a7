"""Chooses whose updates are fetched first, round by round. Pure: measurements come in, a choice comes out.

In the first `WARM_UP` rounds everybody is measured. Then those are *kept* that the policy finds worth most, and stay:
a neighbour that was set aside costs its whole model to take up again. So a choice changes by one at a time. The one
that is *explored* takes the place of the kept one that is worth least: the one first or in a round longest ago, if
that is `oldest` rounds, or else, with probability `explore` in each round, one drawn from the others. Once its model is
in a round it is kept. The other comes back only if it is still in the rounds and worth more, or if the explored one
has not delivered within `PATIENCE` rounds. So every neighbour is first or in a round once in `oldest + n * PATIENCE`
rounds of n neighbours, whatever the others do and whatever the policy thinks of it. Who is kept and delivers nothing
for `PATIENCE` rounds is replaced.
"""

import random
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, median
from typing import Final

from node.selection.base import MeasuredNeighbour, SelectionPolicy

WARM_UP: Final = 3
"""Rounds before the first choice: the first update of each neighbour comes in the second. Chosen."""

PATIENCE: Final = 16
"""Rounds in which a model has to come: in fp32 it is as large as sixteen updates in two bits, and one that takes longer
is too old when it is here."""

WINDOW: Final = 5
"""Measurements of usefulness that count, as for the speed of links (gossip/updates/throughput.py)."""

MOST_USEFUL: Final = 2.0
"""Times the median that usefulness is at most: who sends nonsense is as far from us as it likes. Chosen."""

LEAST_PLACES: Final = 2
"""One that is kept, and one that is explored."""


@dataclass(frozen=True, kw_only=True)
class FetchCost:
    """What fetching from a neighbour takes now: see `MeasuredNeighbour`."""

    lag: int
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Whose updates are fetched first, and for which of them a round waits."""

    first: frozenset[str]
    awaited: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """One neighbour is explored in the place of another since a round."""

    explored: str
    instead_of: str
    since: int


class Chooser:
    """State: who is kept, who is explored, and what was measured of each neighbour."""

    def __init__(
        self, policy: SelectionPolicy, *, most: int, least: int, oldest: int, explore: float, rng: random.Random
    ) -> None:
        """`most`: how many are first. `least`: neighbours that the aggregator needs; `most` is raised to one more, as
        one of them may be explored."""
        self.policy = policy
        self.least = least
        self.newest: Choice | None = None
        """The newest choice; None: all are alike."""
        self._places = max(most, least + 1, LEAST_PLACES)
        self._oldest = oldest
        self._explore = explore
        self._rng = rng
        self._round = 0
        self._kept: dict[str, int] = {}
        """Who is kept, and since which round."""
        self._silent: set[str] = set()
        """Who was kept until now, and has delivered nothing for long."""
        self._trial: _Trial | None = None
        self._heard_at: dict[str, int] = {}
        self._turn_at: dict[str, int] = {}
        self._useful: dict[str, deque[float]] = {}

    def measured(self, distances: Mapping[str, float]) -> None:
        """Note how far the models of neighbours that are in the rounds are from ours (L2)."""
        middle = median(distances.values()) if distances else 0.0
        for peer, distance in distances.items():
            share = min(MOST_USEFUL, distance / middle) if middle > 0 else 1.0
            self._useful.setdefault(peer, deque(maxlen=WINDOW)).append(share)

    def choose(self, here: Mapping[str, FetchCost], heard: Collection[str]) -> Choice | None:
        """Return who is first in a round; None: everybody. `here`: the neighbours. `heard`: those whose models are
        recent enough to be in the round."""
        self.newest = self._choice(here, heard)
        return self.newest

    def _choice(self, here: Mapping[str, FetchCost], heard: Collection[str]) -> Choice | None:
        self._note(here, heard)
        if len(here) <= self._places or self._round <= WARM_UP:
            self._kept, self._trial = {}, None
            return None
        candidates = {peer: self._candidate(peer, it) for peer, it in sorted(here.items())}
        if self._trial is None:
            self._fill(candidates)
            self._begin_trial(candidates)
        else:
            self._end_trial(self._trial, candidates, heard)
            self._fill(candidates)
        kept = frozenset(self._kept)
        self._turn_at.update(dict.fromkeys(kept, self._round))
        return Choice(first=kept if self._trial is None else kept | {self._trial.explored}, awaited=kept)

    def _note(self, here: Mapping[str, FetchCost], heard: Collection[str]) -> None:
        self._round += 1
        at = self._round
        self._heard_at = {peer: at if peer in heard else self._heard_at.get(peer, at) for peer in here}
        self._turn_at = {peer: self._turn_at.get(peer, 0) for peer in here}
        self._useful = {peer: it for peer, it in self._useful.items() if peer in here}
        here_still = {peer: since for peer, since in self._kept.items() if peer in here}
        self._silent = {peer for peer, since in here_still.items() if at - max(since, self._heard_at[peer]) >= PATIENCE}
        self._kept = {peer: since for peer, since in here_still.items() if peer not in self._silent}

    def _candidate(self, peer: str, it: FetchCost) -> MeasuredNeighbour:
        useful = self._useful.get(peer)
        return MeasuredNeighbour(
            peer=peer,
            usefulness=mean(useful) if useful else None,
            lag=it.lag,
            seconds=it.seconds,
            unheard=self._round - max(self._heard_at[peer], self._turn_at[peer]),
        )

    def _worth(self, candidates: Mapping[str, MeasuredNeighbour], peers: Iterable[str]) -> dict[str, float]:
        return {peer: self.policy.worth(candidates[peer], self._rng) for peer in sorted(peers)}

    def _end_trial(self, trial: _Trial, candidates: Mapping[str, MeasuredNeighbour], heard: Collection[str]) -> None:
        one, other = trial.explored, trial.instead_of
        if one not in candidates or self._round - trial.since >= PATIENCE:
            back = other if other in candidates else None
        elif one not in heard:
            return
        else:
            worth = self._worth(candidates, {one, other}.intersection(candidates))
            back = other if other in heard and worth.get(other, 0.0) > worth[one] else one
        if one in candidates:
            self._turn_at[one] = self._round
        if back is not None:
            self._kept[back] = self._round
        self._trial = None

    def _fill(self, candidates: Mapping[str, MeasuredNeighbour]) -> None:
        """Give free places to those that are worth most."""
        free = self._places - len(self._kept) - (self._trial is not None)
        besides = {*self._kept, *(() if self._trial is None else (self._trial.explored,))}
        worth = self._worth(candidates, candidates.keys() - besides)
        ordered = sorted(worth, key=lambda peer: (peer in self._silent, -worth[peer], peer))
        self._kept.update(dict.fromkeys(ordered[: max(0, free)], self._round))

    def _begin_trial(self, candidates: Mapping[str, MeasuredNeighbour]) -> None:
        explored = self._next([it for peer, it in candidates.items() if peer not in self._kept])
        if explored is not None:
            worth = self._worth(candidates, self._kept)
            least = min(worth, key=lambda peer: (worth[peer], peer))
            del self._kept[least]
            self._trial = _Trial(explored=explored, instead_of=least, since=self._round)

    def _next(self, others: list[MeasuredNeighbour]) -> str | None:
        oldest = max(others, key=lambda it: (it.unheard, it.peer))
        if oldest.unheard >= self._oldest:
            return oldest.peer
        return self._rng.choice(others).peer if self._rng.random() < self._explore else None
