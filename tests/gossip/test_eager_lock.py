"""A lock that is free is taken at once; one that is held is waited for, in turn."""

import pytest
import trio
import trio.testing

from gossip.eager_lock import EagerLock


class Steps(trio.abc.Instrument):
    """Counts the scheduler's steps."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count one."""
        self.count += 1


async def test_a_free_lock_lets_nobody_run_first() -> None:
    lock, steps = EagerLock(), Steps()
    trio.lowlevel.add_instrument(steps)
    async with lock:
        assert lock.locked()
    assert not lock.locked()
    assert steps.count == 0


async def test_who_waits_longest_has_it_next() -> None:
    lock, order = EagerLock(), []

    async def take(number: int) -> None:
        async with lock:
            order.append(number)

    async with trio.open_nursery() as nursery:
        async with lock:
            for number in range(3):
                nursery.start_soon(take, number)
                await trio.testing.wait_all_tasks_blocked()
            assert lock.waiting == 3
        async with lock:  # it was given to the first of them already
            order.append(3)
    assert order == [0, 1, 2, 3]


async def test_a_cancelled_task_does_not_take_it() -> None:
    lock = EagerLock()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with lock:
            pytest.fail("it was cancelled before")
    assert not lock.locked()
