"""One signal of shift: its first values say what is usual, a detector watches the others."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Final

from node.shift.base import ShiftDetector

REFERENCE: Final = 16
"""Values from which mean and standard deviation follow; then the detector begins. Chosen: with fewer the deviation is
off by more than a fifth, and so is every threshold."""

KEPT: Final = 1024
"""Newest values from which a restarted node makes the detector again. An older part of a window is forgotten then."""

LEAST_SPREAD: Final = 1e-3
"""Of the mean's size: a signal that hardly ever moves must not alarm at its last digit. Chosen."""

NEWEST: Final = 3
"""Values whose mean says in which direction a signal went."""


class SignalStream:
    """A detector is a function of the values, so these are the whole state."""

    def __init__(self, make: Callable[[], ShiftDetector], *, rises: bool = False) -> None:
        """`make` makes a new detector. `rises`: whether only a rise is a shift, as of a signal that falls while the
        model learns."""
        self._make, self._rises = make, rises
        self.begin()

    def begin(self) -> None:
        """Learn anew what is usual."""
        self._reference: list[float] = []
        self._values: deque[float] = deque(maxlen=KEPT)
        self._detector: ShiftDetector | None = None

    @property
    def watches(self) -> bool:
        """Return whether it knows what is usual."""
        return len(self._reference) == REFERENCE

    @property
    def deviation(self) -> float | None:
        """Return how far its newest value is from the mean, in standard deviations; None: it does not watch yet."""
        return self._standard(self._values[-1]) if self._values else None

    def add(self, value: float) -> bool:
        """Take a round's value; return whether it has shifted. It then begins anew. A value that is no number is left
        out."""
        if not math.isfinite(value):
            return False
        if not self.watches:
            self._reference.append(value)
            return False
        self._values.append(value)
        if not self._feed(value):
            return False
        shifted = not self._rises or fmean(list(self._values)[-NEWEST:]) > fmean(self._reference)
        self.begin()
        return shifted

    def state(self) -> list[float]:
        """Return its values, the reference first."""
        return [*self._reference, *self._values]

    def load(self, values: Sequence[float]) -> None:
        """Take up `state`: the same detector as before, as far as it was made of the newest values."""
        self.begin()
        self._reference = list(values[:REFERENCE])
        for value in values[REFERENCE:]:
            self._values.append(value)
            if self._feed(value):  # of a detector with other settings: it begins anew
                self.begin()
                return

    def _feed(self, value: float) -> bool:
        if self._detector is None:
            self._detector = self._make()
        return self._detector.update(self._standard(value))

    def _standard(self, value: float) -> float:
        mean = fmean(self._reference)
        return (value - mean) / max(stdev(self._reference), LEAST_SPREAD * abs(mean), 1e-12)
