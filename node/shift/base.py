"""The contract of a shift detector: one number a round in, whether its distribution has changed out.

Shift (data drift, concept drift) is a change of a node's own data over time. It is not client drift, the difference
between members' models after local steps, which `train.drift` corrects (p2ptrain/drift).
"""

from typing import Protocol


class ShiftDetector(Protocol):
    """A function of the values that it was given, in their order: who gives it the same ones again has the same
    detector. So its state in a checkpoint is those values."""

    def update(self, value: float) -> bool:
        """Take the next value, in standard deviations of the reference from its mean; return whether the distribution
        has changed. After a change the owner makes another detector."""
