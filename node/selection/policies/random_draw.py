"""`random`: everybody is worth the same."""

import random
from typing import ClassVar

from node.selection.base import MeasuredNeighbour


class RandomDraw:
    """Draws lots. What other policies are compared with."""

    measures: ClassVar[bool] = False

    def worth(self, candidate: MeasuredNeighbour, rng: random.Random) -> float:
        """Return a number drawn from [0, 1)."""
        return rng.random()
