"""The Pareto front of cost and loss."""

from collections.abc import Sequence


def is_on_front(mine: tuple[float, float], all_: Sequence[tuple[float, float]]) -> bool:
    """Return whether no other (cost, loss) has less loss for as little cost, or as little loss for less."""
    return not any(cost <= mine[0] and loss <= mine[1] and (cost, loss) != mine for cost, loss in all_)
