"""`useful`: those first whose models tell this node most, for what they cost its link."""

import random
from dataclasses import dataclass
from typing import Annotated, ClassVar

from node.selection.base import MeasuredNeighbour
from node.selection.policies.nearest import TIE, seconds_to_fetch


@dataclass(frozen=True, kw_only=True)
class Useful:
    """Weighs how far a neighbour's model is from ours against the time that it takes, as Oort weighs a client's loss
    (Lai et al., 2010.06081), which here nobody is asked for."""

    measures: ClassVar[bool] = True

    link: Annotated[float, "How much the time to fetch counts against usefulness; 0: not at all."] = 0.5

    def __post_init__(self) -> None:
        """ValueError for an exponent that is none."""
        if not 0 <= self.link <= 4:
            raise ValueError(f"link must lie in 0..4, not {self.link:g}")

    def worth(self, candidate: MeasuredNeighbour, rng: random.Random) -> float:
        """Return usefulness over the time to fetch to the power of `link`. Who was not measured counts as the
        median."""
        useful = 1.0 if candidate.usefulness is None else candidate.usefulness
        time_s: float = seconds_to_fetch(candidate) ** self.link
        return useful * (1 + TIE * rng.random()) / time_s
