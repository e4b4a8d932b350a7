"""Chooses whose updates are fetched first, round by round. Pure: measurements come in, a choice comes out.

A choice holds for `HOLD` rounds, because a neighbour that was set aside costs its whole model to take up again. All
places but one go to those that the policy finds worth most. The last one is for exploration: it goes to whoever
was unheard of for `oldest` rounds or more, the longest first, or else, with probability `explore` in each round, to one
drawn from the others. That one stays until its model was in a round, and measured, or for `PATIENCE` rounds: one that
never delivers does not keep the place from others. So each neighbour has the place again after at most
`oldest + (n - 1) * (PATIENCE + 1)` rounds, whatever all others do and whatever the policy thinks of it.
"""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Final

from node.selection.base import Candidate, SelectionPolicy

HOLD: Final = 16
"""Rounds: a model in fp32 is as large as sixteen updates in two bits."""

PATIENCE: Final = 24
"""Rounds in which a model comes, beside the others' updates, with some to spare."""

WINDOW: Final = 5
"""Measurements of usefulness that count, as for the speed of links (gossip/updates/throughput.py)."""

MOST_USEFUL: Final = 2.0
"""Times the median that a neighbour's usefulness is at most: who sends nonsense is as far from ours as it likes."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is known of a neighbour's link and chain now: see `Candidate`."""

    lag: int
    seconds: float | None


class Chooser:
    """State: who is first, since when, and what was measured of each neighbour."""

    def __init__(
        self, policy: SelectionPolicy, *, most: int, least: int, oldest: int, explore: float, rng: random.Random
    ) -> None:
        """`most`: how many are first, or all where there are no more; raised to `least`, the neighbours that the
        aggregator needs, and one that is being explored."""
        self.policy = policy
        self.least = least
        self._places = max(most, least + 1)
        self._oldest = oldest
        self._explore = explore
        self._rng = rng
        self._round = 0
        self._kept: list[str] = []
        self._kept_at = 0
        self._explored: str | None = None
        self._explored_at = 0
        self._heard_at: dict[str, int] = {}
        self._useful: dict[str, deque[float]] = {}

    def measured(self, distances: Mapping[str, float]) -> None:
        """Note how far the models of fresh neighbours were from ours at the end of a round."""
        if not distances:
            return
        middle = median(distances.values())
        for peer, distance in distances.items():
            share = min(MOST_USEFUL, distance / middle) if middle > 0 else 1.0
            self._useful.setdefault(peer, deque(maxlen=WINDOW)).append(share)

    def choose(self, here: Mapping[str, Measured], heard: Sequence[str]) -> frozenset[str] | None:
        """Return who is first in the next round; None: everybody, as there are no more than places. `here`: the
        neighbours; `heard`: those whose fresh models were in the round that has ended."""
        self._note(here, heard)
        if len(here) <= self._places:
            self._kept, self._explored = [], None
            return None
        candidates = {peer: self._candidate(peer, it) for peer, it in sorted(here.items())}
        if not self._kept or self._round - self._kept_at >= HOLD or any(peer not in here for peer in self._kept):
            self._keep(candidates)
        self._look_further(candidates, heard)
        return frozenset(self._kept) | ({self._explored} if self._explored is not None else set())

    def _note(self, here: Mapping[str, Measured], heard: Sequence[str]) -> None:
        self._round += 1
        self._heard_at = {peer: self._heard_at.get(peer, self._round) for peer in here}
        self._heard_at.update((peer, self._round) for peer in heard if peer in here)
        self._useful = {peer: it for peer, it in self._useful.items() if peer in here}

    def _candidate(self, peer: str, it: Measured) -> Candidate:
        useful = self._useful.get(peer)
        return Candidate(
            peer=peer,
            usefulness=mean(useful) if useful else None,
            lag=it.lag,
            seconds=it.seconds,
            unheard=self._round - self._heard_at[peer],
        )

    def _keep(self, candidates: Mapping[str, Candidate]) -> None:
        """Give all places but one to those that are worth most."""
        worth = {peer: self.policy.worth(it, self._rng) for peer, it in candidates.items()}
        self._kept = sorted(worth, key=lambda peer: (-worth[peer], peer))[: self._places - 1]
        self._kept_at = self._round

    def _look_further(self, candidates: Mapping[str, Candidate], heard: Sequence[str]) -> None:
        """Give the last place to one of the others, where it is free."""
        one = self._explored
        if one is not None:
            done = one in heard or one in self._kept or self._round - self._explored_at >= PATIENCE
            if done or one not in candidates:
                if one in candidates:
                    self._heard_at[one] = self._round  # it has had its turn
                self._explored = None
        if self._explored is None:
            self._explored = self._next([it for peer, it in candidates.items() if peer not in self._kept])
            self._explored_at = self._round

    def _next(self, others: Sequence[Candidate]) -> str | None:
        oldest = max(others, key=lambda it: (it.unheard, it.peer))
        if oldest.unheard >= self._oldest:
            return oldest.peer
        return self._rng.choice(others).peer if self._rng.random() < self._explore else None
