"""Moshpit's groups (2103.03239): members lie on a grid, and a round averages along one of its axes."""

from collections.abc import Sequence
from math import prod

from p2ptrain.graphs.base import Draw, Form, Mixing
from p2ptrain.graphs.exchange_groups import MEAN, mixing_of
from p2ptrain.graphs.hypercube import lines


class GridGraph:
    """Groups along the axes of a grid with as many places as it takes, of which the last ones may stay empty.

    The number of a member in the order of the pass, in digits to the base `group`, is its place on the grid. Those that
    differ in one digit only are a group. Exact for n = group^(d-1) k members, k <= group, after d rounds; any other n
    comes a good deal nearer.
    """

    name = "grid"
    form: Form = "means"
    symmetric = True

    def __init__(self, *, group: int = 4) -> None:
        if group < 2:
            raise ValueError(f"group must be at least 2, not {group}")
        self.group = group

    def period(self, members: int) -> int:
        """Return d: the least with group^d >= members."""
        axes, places = 1, self.group
        while places < members:
            axes, places = axes + 1, places * self.group
        return axes

    def is_exact(self, members: int) -> bool:
        """Return whether the grid is full but for whole slices of its last axis."""
        slice_ = prod([self.group] * (self.period(members) - 1))
        return members % slice_ == 0

    def mixing(self, members: Sequence[str], index: int, draw: Draw) -> Mixing:
        """Return the round along axis `index`."""
        groups = lines(range(len(members)), self.group, self.group**index)
        return mixing_of(members, ((group, MEAN) for group in groups))
