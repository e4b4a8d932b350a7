"""Equivocation: two signed histories."""

from p2ptrain.attacks.base import Misdeeds


class Equivocation:
    """Signs `twins` more successors of the same link in every round, so that neighbours would follow different models.

    Any two of them are a proof that convinces everybody: it is answered by a ban, without aggregation having a part.
    """

    name = "equivocation"

    def __init__(self, *, twins: int = 1) -> None:
        if twins < 1:
            raise ValueError(f"equivocation: twins must be at least 1, not {twins}")
        self.twins = twins

    def misdeeds(self, round: int) -> Misdeeds:
        """Return what to broadcast once the update of `round` is published."""
        return Misdeeds(twins=self.twins)
