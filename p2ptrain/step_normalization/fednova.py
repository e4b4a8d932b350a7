"""FedNova: a difference is divided by the steps that it is of, and multiplied by those that the round was to have."""

from typing import Annotated, Final

LARGEST_FACTOR: Final = 16.0
"""As `node.pace = "dylu"` gives no round less than a 16th of its steps."""


class FedNova:
    """factor = min(most, scheduled / work) ^ exponent (normalized averaging, Wang et al., 2007.07481).

    At exponent 1 all members' differences are as long, whatever their speed: each has one vote. Below 1 a member
    weighs work ^ (1 - exponent) of that, and at 0 as many steps as it did.

    The paper multiplies by the members' mean number of steps, which somebody has to tell. The schedule's number is the
    same at all of them, and nobody tells it. A difference of few steps is noisy, and so is its multiple.
    Guarantee: as `base.py` has it. Cost: one vector for the time of an exchange.
    """

    name = "fednova"

    def __init__(
        self,
        *,
        exponent: Annotated[float, "How far short rounds are lengthened, in (0, 1]; 1: all rounds count alike."] = 1.0,
        most: Annotated[float, "The most that steps scheduled over steps done count as."] = LARGEST_FACTOR,
    ) -> None:
        if not 0 < exponent <= 1:
            raise ValueError(f"the exponent of {self.name} must be above 0 and at most 1, not {exponent}")
        if not 1 <= most <= LARGEST_FACTOR:
            raise ValueError(f"{self.name} lengthens by at least 1 and at most {LARGEST_FACTOR:g}, not {most}")
        self.exponent, self.most = exponent, most

    def factor(self, work: float, scheduled: int) -> float:
        """Return min(most, scheduled / work) ^ exponent, or 1 where nothing was done."""
        if work <= 0:
            return 1.0
        return float(max(1.0, min(self.most, scheduled / work)) ** self.exponent)
