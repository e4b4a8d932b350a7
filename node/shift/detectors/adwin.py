"""ADWIN: an adaptive window that is cut where the means of its two parts differ (Bifet and Gavalda, 2007)."""

from typing import Annotated

from node.shift.river import detectors_of_river
from p2ptrain.options import BadOptionError

SCALE = 4.0
"""Standard deviations that become 1, as its bound is for values in an interval of length 1. Values beyond are cut."""


class Adwin:
    """Notices a change of the mean. Quiet values make its window longer, and it finer."""

    def __init__(
        self, delta: Annotated[float, "Probability of a false alarm at one cut, by its bound."] = 0.002
    ) -> None:
        if not 0 < delta < 1:
            raise BadOptionError(f"delta must lie between 0 and 1, not {delta}")
        # river looks for a cut at every 32nd value: a value here is a whole round.
        self._river = detectors_of_river().ADWIN(delta=delta, clock=1)

    def update(self, value: float) -> bool:
        """Take the next value; return whether the window was cut."""
        self._river.update(max(-1.0, min(1.0, value / SCALE)))
        return bool(self._river.drift_detected)
