"""What a step normalization is: it lengthens what a member learned in a round of fewer steps than scheduled.

Slow members do fewer steps a round, so that their differences are shorter, and count for less in a mean. Each member
normalizes its own, before it publishes: theta becomes phi + factor (theta - phi), with phi the anchor where its steps
began. So nobody has to believe how many steps another one did, and the number in an update weighs nothing.
"""

from typing import Protocol, runtime_checkable


@runtime_checkable
class StepNormalization(Protocol):
    """Options are keywords of the factory, with defaults."""

    name: str

    def factor(self, work: float, scheduled: int) -> float:
        """Return the factor on own difference, of `work` steps at the full learning rate, in a round for which the
        schedule has `scheduled` steps, at least 1.

        It is at least 1, finite, falls as `work` grows, and never makes a difference longer than `scheduled` steps
        would. A round of no work, or of all that is scheduled, is left as it is. A pure function."""
