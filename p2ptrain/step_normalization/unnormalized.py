"""No step normalization: a round of few steps counts for as much as it moved. The default."""


class Unnormalized:
    """Leaves every difference as it is: under the mean a member weighs as many steps as it does."""

    name = "none"

    def factor(self, work: float, scheduled: int) -> float:
        """Return 1."""
        return 1.0
