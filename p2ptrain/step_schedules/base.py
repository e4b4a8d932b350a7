"""What a step schedule is: it spreads a run's inner steps over its rounds, as H (the synchronization period) over time.

Rounds, and so exchanges and bytes, and steps of the whole run are as many whatever the schedule: `train.inner_steps`
is the mean of H. Every member computes the schedule by itself, and a newcomer or a restarted one needs no more than
the settings. So it is a pure function of them, in whole numbers: a float from a platform's `cos` could differ in its
last bit, and then two members would disagree about where a round ends.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class StepSchedule(Protocol):
    """Options are keywords of the factory, with defaults."""

    name: str
    least_inner_steps: int
    """Fewest steps that a round may have, at least 1. `train.inner_steps` may not be below it."""

    def starts(self, rounds: int, inner_steps: int, rates: Callable[[], Sequence[int]]) -> Sequence[int]:
        """Return the steps at which rounds begin, and at last that at which the run ends: `rounds + 1` whole numbers,
        from 0 to `rounds * inner_steps`, each at least `least_inner_steps` above the one before.

        `rates()` are the learning rates of all steps in whole units (training/relative_rates.py), above 0 and never
        rising. It takes time: only who needs them calls it. Sum no floats, and take none from a function of `math`.
        """
