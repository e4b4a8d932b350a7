"""The Base-(k+1) graph (2305.11420): everybody is the mean of all after a few rounds, for any number of members.

Worked out here as groups, since groups are what exchanges: every round is one of disjoint groups of at most k + 1
members who all go the same step towards their mean, x' = x + c (mean - x). No edge has a weight of its own.

*Where n has no prime factor above k + 1* members are a box (hypercube.py): means along its axes, c = 1.

*Any other n*, in digits to the base k + 1: n = a_1 q_1 + ... + a_L q_L, q_l = (k + 1)^(p_l) falling, 1 <= a_l <= k.
Block B_l has a_l q_l members. (The paper's Simple Base-(k+1) graph.)

1. Each block becomes its own mean: means along its axes, c = 1.
2. Round l of L - 1: the r-th member of all blocks after B_l, which are fewer than q_l, makes a group with the r-th of
   each of the a_l parts of B_l, q_l members each, with c = (a_l + 1) q_l / m, m being the members from B_l on. Its
   partners all hold the same value u, so it moves by c a_l / (a_l + 1) = |B_l| / m of the way to u. That makes the mean
   of the later blocks what it is with B_l together, M; groups keep their sum, so the mean of B_l is now M, too, and
   that of each of its parts, since equal places of the parts changed alike. And members of one later block stay alike.
3. The parts of B_l become their means: means along their axes, c = 1. All have M, the mean of all from B_l on. The
   later blocks go on with round l + 1. M is the same for all l, since round l leaves the later blocks with the mean of
   all.

c is below 2, since q_l < m and a_l q_l < m: |1 - c| < 1, so that who takes a step goes nearer to the mean, or as near
on its other side. The weights in a group are c / (a_l + 1) of each other and 1 - |B_l| / m, or 1 - q_l / m in B_l, of
its own: none is negative.

*The whole graph* for n = s t, where s has no prime factor above k + 1 and t no other: s copies of the above for t, side
by side, then means along the axes of s; or the above for n, where that takes fewer rounds.

Blocks that are done average along their axes again while others are not. That changes nothing without training, and
with it what was learned meanwhile is averaged. At most 2 log_(k+1) n + 2 rounds.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from p2ptrain.graphs.base import Draw, Form, Mixing
from p2ptrain.graphs.exchange_groups import MEAN, PlaceGroup, mixing_of
from p2ptrain.graphs.hypercube import Radices, along, radices_of

Round = list[PlaceGroup]


class BaseGraph:
    """Groups of at most `group` = k + 1 members. Exact for any number of members."""

    name = "base"
    form: Form = "steps"
    symmetric = True

    def __init__(self, *, group: int = 4) -> None:
        if group < 2:
            raise ValueError(f"group must be at least 2, not {group}")
        self.group = group

    def period(self, members: int) -> int:
        """Return how many rounds make all members alike."""
        return max(1, len(_rounds(members, self.group)))

    def is_exact(self, members: int) -> bool:
        """Return True."""
        return True

    def mixing(self, members: Sequence[str], index: int, draw: Draw) -> Mixing:
        """Return one of the rounds of `_rounds`."""
        return mixing_of(
            members, (group for groups in _rounds(len(members), self.group)[index : index + 1] for group in groups)
        )


class _Block(NamedTuple):
    """A digit of n: `digit` parts of `part` places each."""

    places: range
    digit: int
    part: int

    @property
    def parts(self) -> list[range]:
        return [self.places[at : at + self.part] for at in range(0, len(self.places), self.part)]


@lru_cache(maxsize=256)
def _rounds(n: int, base: int) -> list[Round]:
    """The rounds for n members."""
    smooth = _smooth_part(n, base)
    rest = n // smooth
    axes = _factored(smooth, base)
    copies = [range(copy * rest, (copy + 1) * rest) for copy in range(smooth)]
    side_by_side = [_simple(copy, base) for copy in copies]
    inner = [[group for each in rounds for group in each] for rounds in zip(*side_by_side, strict=True)]
    outer = [
        [(line, MEAN) for place in range(rest) for line in along([copy[place] for copy in copies], axes, axis)]
        for axis in range(len(axes))
    ]
    whole, simple = [*inner, *outer], _simple(range(n), base)
    return simple if len(simple) < len(whole) else whole


def _simple(places: range, base: int) -> list[Round]:
    """The Simple Base-(k+1) graph of these places."""
    axes = radices_of(len(places), base)
    if axes is not None:
        return [_means(places, axes, axis) for axis in range(len(axes))]
    blocks = list(_blocks(places, base))
    box = {block: _factored(len(block.places), base) for block in blocks}
    first = max(len(radices) for radices in box.values())
    rounds = [[group for block in blocks for group in _means(block.places, box[block], axis)] for axis in range(first)]
    part_axes = [_factored(block.part, base) for block in blocks]
    last = first + max(number + 1 + len(axes) for number, axes in enumerate(part_axes[:-1]))
    for at in range(first, last):
        groups: Round = []
        for number, block in enumerate(blocks):
            crossing = first + number
            if number == len(blocks) - 1:
                groups += _means(block.places, box[block], at) if at >= crossing else []
            elif at == crossing:
                groups += _crossing(block, places[block.places.stop - places.start :])
            elif at > crossing:
                groups += [
                    group for part in block.parts for group in _means(part, part_axes[number], at - crossing - 1)
                ]
        rounds.append(groups)
    return rounds


def _crossing(block: _Block, later: range) -> Round:
    """Each member of the later blocks with one of each part of this one."""
    together = len(block.places) + len(later)
    step = Fraction((block.digit + 1) * block.part, together)
    return [((place, *(part[number] for part in block.parts)), step) for number, place in enumerate(later)]


def _means(places: Sequence[int], axes: Radices, axis: int) -> Round:
    return [(line, MEAN) for line in along(places, axes, axis)]


def _blocks(places: range, base: int) -> Iterator[_Block]:
    """The places by the digits of their number, the highest first."""
    part = 1
    while part * base <= len(places):
        part *= base
    begin = 0
    while part:
        digit = (len(places) - begin) // part
        if digit:
            yield _Block(places[begin : begin + digit * part], digit, part)
        begin, part = begin + digit * part, part // base


def _smooth_part(n: int, base: int) -> int:
    """The largest divisor of n without a prime factor above the base."""
    rest = n
    for factor in range(2, base + 1):
        while rest % factor == 0:
            rest //= factor
    return n // rest


def _factored(n: int, base: int) -> Radices:
    axes = radices_of(n, base)
    assert axes is not None, "no prime factor is above the base"
    return axes
