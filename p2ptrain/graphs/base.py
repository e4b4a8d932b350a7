"""What a graph is: who averages with whom in which round, and by which weights.

A graph's rounds come in passes of `period` rounds. Before each pass the members are put in an order drawn anew from a
seed that all share (passes.py), so that nobody's partners, and nobody's place where places are unlike, stay the same.
Members who know the same members agree on everything, with no word spoken.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Literal, Protocol, TypeAlias, runtime_checkable

Weight: TypeAlias = Fraction | float
"""Above 0. A fraction wherever it is one, so that a mean is known to be a mean."""

Mixing: TypeAlias = Mapping[str, Mapping[str, Weight]]
"""A round as its mixing matrix W: for each member its partners, and the weight W_ij of each in x_i' = sum_j W_ij x_j.
The own weight W_ii is what is left of 1, and not below 0. Rows and columns sum to 1 (W is doubly stochastic), so that
the members' mean stays where it is."""

Draw: TypeAlias = Callable[..., bytes]
"""From names, the number that they draw in this pass."""

Form: TypeAlias = Literal["means", "steps", "edges"]
"""What a graph's rounds look like.

`means`: disjoint groups, each of which takes its mean.
`steps`: disjoint groups whose members all go the same step towards the group's mean, or beyond it:
    x' = x + step (mean - x), with a step below 2. A step of 1 is a mean.
`edges`: anything else. No exchange within groups can carry it out.
"""


@runtime_checkable
class Graph(Protocol):
    """A sequence of mixing matrices, for any number of members. Its factory takes `group`, the most members that
    average with each other in a round, with a default, and raises ValueError on one that it cannot keep to."""

    name: str
    form: Form
    symmetric: bool
    """Whether every edge has the same weight both ways."""
    group: int
    """The most members that average with each other in a round, own included: one more than the degree."""

    def period(self, members: int) -> int:
        """Return how many rounds a pass of so many members has, 1 or more."""

    def is_exact(self, members: int) -> bool:
        """Return whether a pass is known to make all of so many members the mean of all (finite-time consensus)."""

    def mixing(self, members: Sequence[str], index: int, draw: Draw) -> Mixing:
        """Return round `index` of a pass, from 0, of these members, who are in the order that was drawn for it."""
