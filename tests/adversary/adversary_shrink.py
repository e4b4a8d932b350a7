"""Makes a failing plan as short as it can be: fewer moves first, then less of each (delta debugging)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from adversary_move import Move
from adversary_plan import Plan

TRIALS: Final = 40
"""Runs that shrinking may take: a minute."""

Fails = Callable[[Plan], bool]


def shrink(plan: Plan, fails: Fails, trials: int = TRIALS) -> Plan:
    """The shortest plan found that still `fails`; this one does."""
    left = trials

    def still(moves: Sequence[Move]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(replace(plan, moves=tuple(moves)))

    moves = _fewer(list(plan.moves), still)
    moves = _smaller(moves, still)
    return replace(plan, moves=tuple(moves))


def _fewer(moves: list[Move], still: Callable[[Sequence[Move]], bool]) -> list[Move]:
    """Drop halves, quarters, ... and single moves, for as long as that changes nothing."""
    size = max(1, len(moves) // 2)
    while moves:
        at, dropped = 0, False
        while at < len(moves):
            rest = moves[:at] + moves[at + size :]
            if still(rest):
                moves, dropped = rest, True
            else:
                at += size
        if size == 1 and not dropped:
            break
        size = max(1, size // 2)
    return moves


def _smaller(moves: list[Move], still: Callable[[Sequence[Move]], bool]) -> list[Move]:
    """Less of each move, as far as it goes."""
    for number in range(len(moves)):
        tried = True
        while tried:
            tried = False
            for less in moves[number].smaller():
                if still([*moves[:number], less, *moves[number + 1 :]]):
                    moves[number], tried = less, True
                    break
    return moves
