"""`nearest`: those first that are here soonest."""

import random
from typing import ClassVar

from node.selection.base import MeasuredNeighbour

UNMEASURED_S = 1.0
"""Seconds of an update where none was fetched yet, as for the first exchange (gossip/updates/round_closer_task.py)."""

TIE = 1e-3
"""Share by which lots decide between equals."""


class Nearest:
    """Fetches from those first of whom the least is missing, over the fastest links."""

    measures: ClassVar[bool] = False

    def worth(self, candidate: MeasuredNeighbour, rng: random.Random) -> float:
        """Return the inverse of the seconds until its newest model is here."""
        return (1 + TIE * rng.random()) / seconds_to_fetch(candidate)


def seconds_to_fetch(candidate: MeasuredNeighbour) -> float:
    """Return how long it takes until the neighbour's newest model is here, and its next update; above 0."""
    each = UNMEASURED_S if candidate.seconds is None else max(candidate.seconds, 1e-6)
    return (1 + candidate.lag) * each
