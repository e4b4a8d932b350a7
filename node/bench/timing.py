"""Timings as ratios to a reference that runs beside them: the only ones that mean something on a shared machine.

Reference and candidates take turns, round after round, and each candidate is divided by the reference of its own round.
The median over rounds is reported: a neighbour's burst of work spoils single rounds, and a slow machine slows both.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Work = Callable[[], object]

ROUNDS = 15
"""Turns a candidate gets. Odd, so that the median is one of them; fifteen hold it within a few percent here."""
LEAST_ROUNDS = 3
TICK_S = 1e-7
"""Less than any call that is worth timing."""
BUDGET_S = 4.0
"""After so long a candidate gets no more turns than LEAST_ROUNDS: a slow one differs by more than these scatter."""


@dataclass(frozen=True)
class Spent:
    """What one call took, in seconds."""

    wall: float
    cpu: float
    """Of all threads together, and only while they ran: what others do on the machine hardly shows in it."""


@dataclass(frozen=True)
class Taken:
    """How long something took: medians over its turns."""

    ratio: float
    """Times the reference of its own turn."""
    cpu_ratio: float
    """The same of CPU time."""
    seconds: float
    cpu_seconds: float

    @classmethod
    def of(cls, turns: Sequence[tuple[Spent, Spent]]) -> "Taken":
        """Return the medians of pairs of own time and the reference's."""
        return cls(
            ratio=statistics.median(own.wall / base.wall for own, base in turns),
            cpu_ratio=statistics.median(own.cpu / base.cpu for own, base in turns),
            seconds=statistics.median(own.wall for own, _ in turns),
            cpu_seconds=statistics.median(own.cpu for own, _ in turns),
        )


def in_turns(
    reference: Work, candidates: Mapping[str, Work], *, rounds: int = ROUNDS, budget_s: float = BUDGET_S
) -> dict[str, Taken]:
    """Time each candidate beside `reference`. Each runs once before anything is timed."""
    for work in (reference, *candidates.values()):
        work()
    turns: dict[str, list[tuple[Spent, Spent]]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name, work in candidates.items():
            if number < LEAST_ROUNDS or sum(own.wall + base.wall for own, base in turns[name]) < budget_s:
                base = spent(reference)
                turns[name].append((spent(work), base))
    return {name: Taken.of(each) for name, each in turns.items()}


def settled(work: Work, device: torch.device) -> Work:
    """Return `work` so that it is over when it returns: a GPU goes on by itself."""
    if device.type != "cuda":
        return work

    def wait() -> object:
        out = work()
        torch.cuda.synchronize(device)
        return out

    return wait


def spent(work: Work) -> Spent:
    """Time one call. Neither time is ever 0: clocks are coarse."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Spent(max(TICK_S, time.perf_counter() - wall), max(TICK_S, time.process_time() - cpu))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run torch with so many threads, and afterwards with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """Return the cores that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
