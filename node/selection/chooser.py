"""Chooses whose updates are fetched first, round by round. Pure: measurements come in, a choice comes out.

All places but one go to those that the policy finds worth most, and are theirs for `HOLD` rounds: a neighbour that was
set aside costs its whole model to take up again. The last place is for exploration. It goes to whoever had no recent
model in a round for `oldest` rounds, the longest first, or else, with probability `explore` in each round, to one drawn
from the others. That one stays until its model was in a round, and takes the place of the least of those kept if it is
worth clearly more. After `PATIENCE` rounds it has to go: who never delivers does not keep the place from others. So
every neighbour is first or in a round once in `oldest + n * PATIENCE` rounds of n neighbours, whatever the others do
and whatever the policy thinks of it.

Who was kept for all that time and delivered nothing comes behind everybody else at the next choice.
"""

import random
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import mean, median
from typing import Final

from node.selection.base import Candidate, SelectionPolicy

HOLD: Final = 16
"""Rounds: a model in fp32 is as large as sixteen updates in two bits."""

PATIENCE: Final = 24
"""Rounds in which a model comes beside the others' updates, half as long again as it takes at an equal share."""

WINDOW: Final = 5
"""Measurements of usefulness that count, as for the speed of links (gossip/updates/throughput.py)."""

MOST_USEFUL: Final = 2.0
"""Times the median that usefulness is at most: who sends nonsense is as far from us as it likes. Chosen."""

CLEARLY_MORE: Final = 1.1
"""Times the worth of one that is kept from which another replaces it: a change costs two models. Chosen."""


LEAST_PLACES: Final = 2
"""One that is kept, and one that is explored."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is known of a neighbour's chain and link now: see `Candidate`."""

    lag: int
    seconds: float | None


class Chooser:
    """State: who is first, since when, and what was measured of each neighbour."""

    def __init__(
        self, policy: SelectionPolicy, *, most: int, least: int, oldest: int, explore: float, rng: random.Random
    ) -> None:
        """`most`: how many are first. `least`: neighbours that the aggregator needs; `most` is raised to one more, as
        one of them is explored."""
        self.policy = policy
        self.least = least
        self._places = max(most, least + 1, LEAST_PLACES)
        self._oldest = oldest
        self._explore = explore
        self._rng = rng
        self._round = 0
        self._kept: list[str] = []
        self._kept_at = 0
        self._explored: str | None = None
        self._explored_at = 0
        self._heard_at: dict[str, int] = {}
        self._turn_at: dict[str, int] = {}
        self._useful: dict[str, deque[float]] = {}

    def measured(self, distances: Mapping[str, float]) -> None:
        """Note how far the models of the neighbours that keep up are from ours (L2)."""
        middle = median(distances.values()) if distances else 0.0
        for peer, distance in distances.items():
            share = min(MOST_USEFUL, distance / middle) if middle > 0 else 1.0
            self._useful.setdefault(peer, deque(maxlen=WINDOW)).append(share)

    def choose(self, here: Mapping[str, Measured], heard: Collection[str]) -> frozenset[str] | None:
        """Return who is first in a round; None: everybody, as there are no more neighbours than places. `here`: the
        neighbours. `heard`: those of whom a recent model is here."""
        self._note(here, heard)
        if len(here) <= self._places:
            self._kept, self._explored = [], None
            return None
        candidates = {peer: self._candidate(peer, it) for peer, it in sorted(here.items())}
        self._keep(candidates)
        self._look_further(candidates, heard)
        return frozenset(self._kept if self._explored is None else (*self._kept, self._explored))

    def _note(self, here: Mapping[str, Measured], heard: Collection[str]) -> None:
        self._round += 1
        self._heard_at = {peer: self._round if peer in heard else self._heard_at.get(peer, self._round) for peer in here}
        self._turn_at = {peer: self._turn_at.get(peer, 0) for peer in here}
        self._useful = {peer: it for peer, it in self._useful.items() if peer in here}

    def _candidate(self, peer: str, it: Measured) -> Candidate:
        useful = self._useful.get(peer)
        since = max(self._heard_at[peer], self._turn_at[peer])
        return Candidate(
            peer=peer,
            usefulness=mean(useful) if useful else None,
            lag=it.lag,
            seconds=it.seconds,
            unheard=self._round - since,
        )

    def _keep(self, candidates: Mapping[str, Candidate]) -> None:
        """Fill the places of those that left, and all of them anew once they were held for long enough."""
        silent = {peer for peer in self._kept if peer in candidates and self._heard_at[peer] <= self._kept_at}
        if not self._kept or self._round - self._kept_at >= HOLD:
            stay, self._kept_at = [], self._round
        else:
            stay, silent = [peer for peer in self._kept if peer in candidates], set()
        free = self._places - 1 - len(stay)
        if free > 0:
            worth = {peer: self.policy.worth(it, self._rng) for peer, it in candidates.items() if peer not in stay}
            stay += sorted(worth, key=lambda peer: (peer in silent, -worth[peer], peer))[:free]
        self._kept = stay

    def _look_further(self, candidates: Mapping[str, Candidate], heard: Collection[str]) -> None:
        """Give the last place to one of the others, where it is free."""
        one = self._explored
        if one in heard and one in candidates and one not in self._kept:
            self._replace_least(candidates[one], candidates)
        if one not in candidates or one in heard or one in self._kept or self._had_its_time():
            if one in candidates:
                self._turn_at[one] = self._round
            self._explored = self._next([it for peer, it in candidates.items() if peer not in (*self._kept, one)])
            self._explored_at = self._round

    def _had_its_time(self) -> bool:
        return self._round - self._explored_at >= PATIENCE

    def _replace_least(self, one: Candidate, candidates: Mapping[str, Candidate]) -> None:
        worth = {peer: self.policy.worth(candidates[peer], self._rng) for peer in self._kept}
        least = min(worth, key=lambda peer: (worth[peer], peer))
        if self.policy.worth(one, self._rng) > CLEARLY_MORE * worth[least]:
            self._kept = [peer for peer in self._kept if peer != least] + [one.peer]

    def _next(self, others: list[Candidate]) -> str | None:
        if not others:
            return None
        oldest = max(others, key=lambda it: (it.unheard, it.peer))
        if oldest.unheard >= self._oldest:
            return oldest.peer
        return self._rng.choice(others).peer if self._rng.random() < self._explore else None
