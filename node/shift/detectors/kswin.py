"""KSWIN: a Kolmogorov-Smirnov test of the newest values against a sample of those before (Raab et al., 2020)."""

from typing import Annotated

from node.shift.river import detectors_of_river
from p2ptrain.options import BadOptionError

SEED = 0
"""Of the sample: what is drawn follows from the values' number alone, so that a restart draws the same."""


class Kswin:
    """Notices any change of the distribution, of its spread too. Blind until `window` values have come."""

    def __init__(
        self,
        alpha: Annotated[float, "p-value of one test below which it alarms; it tests in every round."] = 0.0001,
        window: Annotated[int, "Values in the window, old and new ones."] = 40,
        newest: Annotated[int, "How many of them are the new ones."] = 12,
    ) -> None:
        if not 0 < alpha < 1:
            raise BadOptionError(f"alpha must lie between 0 and 1, not {alpha}")
        if not 2 <= newest <= window // 2:
            raise BadOptionError(f"newest must lie between 2 and half of window ({window // 2}), not {newest}")
        self._river = detectors_of_river().KSWIN(alpha=alpha, window_size=window, stat_size=newest, seed=SEED)

    def update(self, value: float) -> bool:
        """Take the next value; return whether the newest ones differ."""
        self._river.update(value)
        return bool(self._river.drift_detected)
