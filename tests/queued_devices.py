"""A device that works when it likes: queues whose work is done later, in any order that their marks allow.

What a program may count on is the order within a queue, and what it waits for. Everything else is drawn by a seed, so
that a mark that is missing shows as a wrong value for some seeds.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from p2ptrain.training.device_copies import Mark, Queues


@dataclass
class QueuedDevice:
    """Two queues on CPU tensors. `pace`: how many pieces of work may be done while one is queued; 0: none before
    somebody waits. `computes_at_once`: what is computed is done when it is queued, as what a Trainer on a CPU computes
    without queueing it."""

    seed: int = 0
    pace: int = 2
    computes_at_once: bool = False
    locked_sizes: list[int] = field(default_factory=list)
    """Of every buffer that was asked for on the host."""
    scratch_sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self.computing, self.copying = WorkQueue(self), WorkQueue(self)

    def queues(self) -> Queues:
        """Return what a device's copies are built with."""
        return Queues(computing=self.computing, copying=self.copying, locked=self._locked, scratch=self._scratch)

    def drain(self) -> None:
        """Do all that is queued."""
        while self.step():
            pass

    def dawdle(self) -> None:
        """Do some of it."""
        for _ in range(self._rng.randint(0, self.pace)):
            self.step()
        if self.computes_at_once:
            self.computing.mark().wait()

    def step(self) -> bool:
        """Do one piece of work that may be done now. Return False where there is none."""
        ready = [queue for queue in (self.computing, self.copying) if queue.is_ready()]
        if not ready:
            return False
        self._rng.choice(ready).do_next()
        return True

    def _locked(self, size: int) -> torch.Tensor:
        self.locked_sizes.append(size)
        return torch.full((size,), 0x7F, dtype=torch.uint8)  # read before it is written: a huge number

    def _scratch(self, size: int) -> torch.Tensor:
        """Memory of a tensor that was let go of, and is written to by what was queued before."""
        self.scratch_sizes.append(size)
        memory = torch.full((size,), 0x7F, dtype=torch.uint8)
        self.computing.run(partial(memory.fill_, 0x7F))
        return memory


@dataclass(frozen=True)
class CountMark:
    """So many pieces of work of a queue."""

    queue: "WorkQueue"
    count: int

    def is_reached(self) -> bool:
        """Return whether they are done."""
        return self.queue.done >= self.count

    def wait(self) -> None:
        """Have the device work until they are done."""
        while not self.is_reached():
            assert self.queue.device.step(), "two queues wait for each other"


class WorkQueue:
    """One of the device's queues."""

    def __init__(self, device: QueuedDevice) -> None:
        self.device = device
        self.done = 0
        self._work: list[Callable[[], object] | CountMark] = []

    def run(self, work: Callable[[], object]) -> None:
        """Queue `work`."""
        self._work.append(work)
        self.device.dawdle()

    def mark(self) -> Mark:
        """Return a mark behind what is queued now."""
        return CountMark(self, self.done + len(self._work))

    def after(self, mark: Mark) -> None:
        """Queue a wait for the mark."""
        assert isinstance(mark, CountMark)
        self._work.append(mark)
        self.device.dawdle()

    def is_ready(self) -> bool:
        """Return whether the next piece may be done."""
        first = self._work[0] if self._work else None
        return first.is_reached() if isinstance(first, CountMark) else first is not None

    def do_next(self) -> None:
        """Do it."""
        first = self._work.pop(0)
        if not isinstance(first, CountMark):
            first()
        self.done += 1
