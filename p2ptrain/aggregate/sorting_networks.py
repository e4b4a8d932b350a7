"""Networks of minima and maxima that leave the middle of n values, for trimmed means and medians.

A comparator (i, j) puts the lower of two values on wire i and the higher on wire j. A network of them works on whole
vectors as on numbers, with no branch: two vector operations each. The fewest comparators are looked for, in two ways:

- sort all wires (Batcher's odd-even merge sort), and leave out what the result does not need;
- sort blocks of 2f wires or more, merge the blocks' f lowest two by two, keeping the f lowest, and their f highest
  likewise: what is let go on the way belongs to the middle. For n = 64 and f = 2 that is less than half of the work.

The middle is wanted as a set, for its sum, and not in order. So a comparator between two wires of the middle is left
out, and of one between the middle and an extreme only the half that stays is computed. Nothing is ever subtracted:
beside a liar's 1e30 the honest digits would be lost.

The result is a `Program`: which operation reads which rows, and in which rows of scratch it leaves its result.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Wires = list[int]
Comparator = tuple[int, int]
Fate = Literal["lost", "kept", "exact"]
"""Of a wire's value: of no use, one of the middle in any order, or the one that the network put there."""
Kind = Literal["min", "max", "clamp"]
"""clamp(a, b, c) is min(max(a, b), c): one operation where the maximum is wanted for nothing else."""


@dataclass(frozen=True)
class Step:
    """One vector operation: `kind` of the values `of`, written to row `out` of the scratch.

    Values 0..n-1 are the inputs, n + r is row r of the scratch. `out` may be the row of an operand.
    """

    kind: Kind
    of: tuple[int, ...]
    out: int


@dataclass(frozen=True)
class Program:
    """Steps that leave the wanted values in the scratch's first rows."""

    n: int
    steps: tuple[Step, ...]
    scratch: int
    """Rows of scratch that it needs."""
    left: int
    """Values it leaves."""


@lru_cache(maxsize=256)
def middle(n: int, f: int) -> Program:
    """Return the n - 2f values between the f lowest and the f highest of n, in any order. f >= 1."""
    assert n > 2 * f >= 2
    candidates = [_sorting(n, f), *(_by_blocks(n, f, blocks) for blocks in range(2, n // (2 * f) + 1))]
    programs = [
        _compile(n, _prune(comparators, fates), fates, flip)
        for comparators, fates in candidates
        for flip in (False, True)
    ]
    return min(programs, key=lambda each: len(each.steps))


@lru_cache(maxsize=256)
def ordered(n: int, f: int, centre: int) -> Program:
    """All n values, of which the f lowest, the f highest and the `centre` ones in the middle are in their places."""
    comparators, wires = _sort(list(range(n)))
    exact = [*range(f), *range(n - f, n), *range((n - centre) // 2, (n + centre) // 2)]
    fates: list[Fate] = ["exact" if rank in exact else "kept" for rank in range(n)]
    return _compile(n, _prune(comparators, dict(zip(wires, fates, strict=True))), dict.fromkeys(wires, "exact"), False)


def _sorting(n: int, f: int) -> tuple[list[Comparator], dict[int, Fate]]:
    comparators, wires = _sort(list(range(n)))
    return comparators, {wire: "kept" if f <= rank < n - f else "lost" for rank, wire in enumerate(wires)}


def _by_blocks(n: int, f: int, blocks: int) -> tuple[list[Comparator], dict[int, Fate]]:
    """Blocks of at least 2f wires, so that a block's lowest and highest are not the same ones."""
    comparators: list[Comparator] = []
    lows: list[Wires] = []
    highs: list[Wires] = []
    start = 0
    for index in range(blocks):
        size = n // blocks + (index < n % blocks)
        sorting, wires = _sort(list(range(start, start + size)))
        comparators += sorting
        lows.append(wires[:f])
        highs.append(wires[-f:])
        start += size
    low, below = _tournament(lows, lambda wires: wires[:f])
    high, above = _tournament(highs, lambda wires: wires[-f:])
    fates: dict[int, Fate] = dict.fromkeys(range(n), "kept")
    # The f lowest of two sorted rows a and b of f are the lower ones of all (a[i], b[f-1-i]).
    last = [*zip(low[0], reversed(low[1]), strict=True), *zip(high[0], reversed(high[1]), strict=True)]
    for wire in [*low[0], *high[1]]:
        fates[wire] = "lost"
    return [*comparators, *below, *above, *last], fates


def _tournament(rows: list[Wires], keep: Callable[[Wires], Wires]) -> tuple[list[Wires], list[Comparator]]:
    """Merge sorted rows two by two, keeping the best of each, until two are left."""
    comparators: list[Comparator] = []
    while len(rows) > 2:
        merges = [_merge(left, right) for left, right in zip(rows[::2], rows[1::2], strict=False)]
        comparators += [each for merging, _ in merges for each in merging]
        rows = [keep(wires) for _, wires in merges] + (rows[-1:] if len(rows) % 2 else [])
    return rows, comparators


def _sort(wires: Wires) -> tuple[list[Comparator], Wires]:
    """Comparators that sort, and the wires in the order of what they then hold."""
    if len(wires) <= 1:
        return [], wires
    half = len(wires) // 2
    first, left = _sort(wires[:half])
    second, right = _sort(wires[half:])
    merging, merged = _merge(left, right)
    return [*first, *second, *merging], merged


def _merge(left: Wires, right: Wires) -> tuple[list[Comparator], Wires]:
    """Batcher's odd-even merge of two sorted rows of any length."""
    if not left or not right:
        return [], left or right
    if len(left) == len(right) == 1:
        return [(left[0], right[0])], [left[0], right[0]]
    evens, even = _merge(left[::2], right[::2])
    odds, odd = _merge(left[1::2], right[1::2])
    pairs = list(zip(odd, even[1:], strict=False))
    rest = odd[len(pairs) :] + even[1 + len(pairs) :]
    return [*evens, *odds, *pairs], [even[0], *(wire for pair in pairs for wire in pair), *rest]


Half = tuple[int, int, bool, bool]
"""A comparator, and whether its lower and its higher output are wanted."""


def _prune(comparators: Sequence[Comparator], fates: dict[int, Fate]) -> list[Half]:
    """Only what the fates ask for, seen from the end."""
    fates = dict(fates)
    needed: list[Half] = []
    for low, high in reversed(comparators):
        if fates[low] == fates[high] != "exact":
            continue  # both lost, or both in the sum, which does not ask which is which
        needed.append((low, high, fates[low] != "lost", fates[high] != "lost"))
        fates[low] = fates[high] = "exact"
    return needed[::-1]


Operations = dict[int, tuple[Kind, tuple[int, ...]]]
"""What makes each value from n on, in the order in which they are made."""


def _compile(n: int, halves: Sequence[Half], fates: dict[int, Fate], flip: bool) -> Program:
    """`flip`: minima and maxima exchanged, which leaves the same middle, and may fit more of them into clamps."""
    values = list(range(n))  # the value on each wire
    kinds: tuple[Kind, Kind] = ("max", "min") if flip else ("min", "max")
    operations: Operations = {}
    for low, high, *wanted in halves:
        operands = (values[low], values[high])
        for kind, wire, is_wanted in zip(kinds, (low, high), wanted, strict=True):
            if is_wanted:
                values[wire] = n + len(operations)
                operations[values[wire]] = (kind, operands)
    results = [values[wire] for wire in fates if fates[wire] != "lost"]
    assert all(value >= n for value in results), "every input meets a comparator, since each may be an extreme"
    return _allocate(n, _with_clamps(operations, results), results)


def _with_clamps(operations: Operations, results: Sequence[int]) -> Operations:
    """The same with each maximum that only one minimum uses in one operation with it."""
    uses = Counter([*results, *(value for _, operands in operations.values() for value in operands)])
    fused = dict(operations)
    for value, (kind, operands) in operations.items():
        for inner, other in (operands, operands[::-1]):
            if kind == "min" and uses[inner] == 1 and fused.get(inner, ("",))[0] == "max":
                fused[value] = ("clamp", (*fused.pop(inner)[1], other))
                break
    return fused


def _allocate(n: int, operations: Operations, results: Sequence[int]) -> Program:
    """Rows of scratch for the values, each free again after its last use: few enough to stay in a cache."""
    last = {operand: value for value, (_, operands) in operations.items() for operand in operands}
    for value in results:
        last[value] = -1
    rows: dict[int, int] = {}
    free: list[int] = []
    used = 0
    for value, (_, operands) in operations.items():
        free += [rows[operand] for operand in dict.fromkeys(operands) if operand >= n and last[operand] == value]
        if not free:
            free.append(used)
            used += 1
        rows[value] = free.pop()  # the row freed last is the one most surely in the cache
    kept = [rows[value] for value in results]
    number = {row: place for place, row in enumerate([*kept, *(row for row in range(used) if row not in kept)])}
    place = {value: n + number[row] for value, row in rows.items()} | {value: value for value in range(n)}
    steps = [
        Step(kind, tuple(place[each] for each in of), place[value] - n) for value, (kind, of) in operations.items()
    ]
    return Program(n, tuple(steps), used, len(results))
