"""`random`: everybody is worth the same."""

import random
from typing import ClassVar

from node.selection.base import Candidate


class RandomDraw:
    """Draws lots. What other policies are compared with."""

    measures: ClassVar[bool] = False

    def worth(self, candidate: Candidate, rng: random.Random) -> float:
        """Return a number drawn from [0, 1)."""
        return rng.random()
