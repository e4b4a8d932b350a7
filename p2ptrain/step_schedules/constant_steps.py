"""Rounds of equally many steps: local SGD's fixed H, as in DiLoCo (2311.08105). The default."""

from collections.abc import Callable, Sequence


class ConstantSteps:
    """Gives every round `inner_steps` steps. It costs nothing, however long the run is."""

    name = "constant"
    least_inner_steps = 1

    def starts(self, rounds: int, inner_steps: int, rates: Callable[[], Sequence[int]]) -> Sequence[int]:
        """Return the steps at which rounds begin, and at last that at which the run ends."""
        return range(0, rounds * inner_steps + 1, inner_steps)
