"""Page-Hinkley: a cumulative sum of deviations from the mean so far, both ways (Page, 1954)."""

from typing import Annotated

from node.shift.river import detectors_of_river
from p2ptrain.options import BadOptionError

LEAST_VALUES = 2
"""From the second value on it may alarm: what is usual was learned from the reference."""


class PageHinkleyTest:
    """Notices a lasting change of the mean soonest, by how far it is beyond `allowed`."""

    def __init__(
        self,
        threshold: Annotated[float, "Summed standard deviations at which it alarms: more, later and surer."] = 12.0,
        allowed: Annotated[float, "Standard deviations of each value that do not count."] = 0.75,
    ) -> None:
        if not (threshold > 0 and allowed >= 0):
            raise BadOptionError(f"threshold must be above 0 and allowed 0 at least, not {threshold} and {allowed}")
        self._river = detectors_of_river().PageHinkley(
            min_instances=LEAST_VALUES, delta=allowed, threshold=threshold, alpha=1.0
        )

    def update(self, value: float) -> bool:
        """Take the next value; return whether the sum has gone beyond the threshold."""
        self._river.update(value)
        return bool(self._river.drift_detected)
