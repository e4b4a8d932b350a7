"""An executor on the event loop whose work takes virtual time, as a device of the scenario takes it."""

import math
import random
from collections.abc import Callable, Generator
from typing import TypeVar

import trio

from node.simulation.scenario import DeviceClass
from node.training.executors.base import SideWork, Spent, not_asked

T = TypeVar("T")


class KilledError(Exception):
    """The process of this work is no more."""


class VirtualExecutor:
    """Charges steps, evaluations and other work. `rng` draws the length of steps and of slow phases. After `die` no
    work is done."""

    def __init__(self, device: DeviceClass, rng: random.Random) -> None:
        self._device = device
        self._rng = rng
        self._slow = False
        self._phase_ends = self._phase(device.slow_every_s)
        self._other_work = trio.CapacityLimiter(1)
        """Beside training one piece of work runs at a time, as in a real node's worker thread."""
        self._owed_s = 0.0
        self._training_owes_s = 0.0
        """What training stands still for before its next step: work that took its core."""
        self._dead = False

    def die(self) -> None:
        """Refuse all work from now on with KilledError."""
        self._dead = True

    def owe(self, seconds: float) -> None:
        """Let the work that runs now take so much longer: the disk it writes to is slow."""
        self._owed_s += seconds

    def computed(self, seconds: float) -> None:
        """Note that the node computed something else for so long: where there is no core to spare, training stood
        still."""
        if not self._device.spare_core:
            self._training_owes_s += seconds

    async def drive(self, work: Generator[None, None, T]) -> T:
        """Run `work`, sleeping for each of its steps."""
        factor = self._lognormal(self._device.round_sigma)
        while True:
            self._check()
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            standing_s, self._training_owes_s = self._training_owes_s, 0.0
            await trio.sleep(factor * (standing_s + self._step_s()))

    async def offload(self, function: Callable[[], T], spent: Spent = not_asked, work: SideWork = SideWork.OTHER) -> T:
        """Run `function`, and take what the device is charged for such work."""
        return await self._run(function, self._device.work_s(work), spent)

    async def evaluate(self, function: Callable[[], T]) -> T:
        """Run `function`, and take what the device is charged for an evaluation."""
        return await self._run(function, self._device.evaluate_s, not_asked)

    async def _run(self, function: Callable[[], T], seconds: float, spent: Spent) -> T:
        self._check()
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._other_work.acquire_nowait()  # the usual case, without a wake-up
        except trio.WouldBlock:
            await self._other_work.acquire()
        try:
            self._check()
            try:
                result = function()
            finally:
                spent(seconds)
                self.computed(seconds)
                owed, self._owed_s = self._owed_s, 0.0
            if waits := seconds + owed:
                with trio.CancelScope(shield=True):  # a worker thread is waited for, too
                    await trio.sleep(waits)
        finally:
            self._other_work.release()
        return result

    def _step_s(self) -> float:
        device = self._device
        seconds = device.step_s * self._lognormal(device.sigma)
        return seconds * (device.slow_factor if self._is_slow(trio.current_time()) else 1.0)

    def _lognormal(self, sigma: float) -> float:
        """A factor whose median is 1."""
        return math.exp(sigma * self._rng.gauss(0.0, 1.0)) if sigma else 1.0

    def _is_slow(self, now: float) -> bool:
        while now >= self._phase_ends:
            self._slow = not self._slow
            self._phase_ends += self._phase(self._device.slow_for_s if self._slow else self._device.slow_every_s)
        return self._slow

    def _phase(self, mean_s: float | None) -> float:
        return math.inf if mean_s is None else self._rng.expovariate(1 / mean_s)

    def _check(self) -> None:
        if self._dead:
            raise KilledError
