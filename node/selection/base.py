"""The contract of a selection policy: how much each neighbour is worth to this node, by what it measured itself."""

import random
from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, kw_only=True)
class MeasuredNeighbour:
    """A neighbour as this node has measured it. Nothing here is what it says of itself, and what it may seem to be is
    bounded: see `usefulness`."""

    peer: str
    usefulness: float | None
    """Distance of its model to ours at a round's end, over the median of all neighbours' that were fresh: the mean of
    the newest few, each 2 at most. None: not measured yet."""
    lag: int
    """Its updates that we know of and have not fetched."""
    seconds: float | None
    """What fetching an update of it took lately, beside all other transfers; None: not measured."""
    unheard: int
    """Rounds of ours since its model was last in one."""


class SelectionPolicy(Protocol):
    """Decides by measurements alone."""

    measures: ClassVar[bool]
    """Whether it reads `usefulness`, which takes a pass over each neighbour's model a round."""

    def worth(self, candidate: MeasuredNeighbour, rng: random.Random) -> float:
        """Return how much it is worth to fetch from this neighbour first: any finite number; the highest come first."""
