"""Both executors run work to its end and stop between two steps when cancelled."""

import threading
from collections.abc import Generator

import pytest
import trio
import trio.testing

from node.training.executors import Executor, InlineExecutor, ThreadExecutor


def counting(log: list[int], steps: int) -> Generator[None, None, str]:
    for number in range(steps):
        log.append(number)
        yield
    return "done"


@pytest.fixture(params=["inline", "thread"])
def executor(request: pytest.FixtureRequest) -> Executor:
    return InlineExecutor(step_seconds=0.001) if request.param == "inline" else ThreadExecutor()


async def test_work_runs_to_its_end(executor: Executor) -> None:
    log: list[int] = []
    assert await executor.drive(counting(log, 5)) == "done"
    assert log == [0, 1, 2, 3, 4]


async def test_what_the_work_raises_is_raised(executor: Executor) -> None:
    def broken() -> Generator[None, None, str]:
        yield
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await executor.drive(broken())


async def test_cancellation_stops_between_steps(executor: Executor) -> None:
    log: list[int] = []
    running = trio.Event()

    def endless() -> Generator[None, None, str]:
        while True:
            log.append(1)
            if len(log) == 3:
                if isinstance(executor, ThreadExecutor):
                    trio.from_thread.run_sync(running.set)
                else:
                    running.set()
            yield

    async with trio.open_nursery() as nursery:
        nursery.start_soon(executor.drive, endless())
        await running.wait()
        nursery.cancel_scope.cancel()
    after = len(log)
    await trio.sleep(0.01)
    assert len(log) == after, "the work went on after its executor was cancelled"


async def test_offload_returns_and_raises(executor: Executor) -> None:
    assert await executor.offload(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await executor.offload(lambda: 1 // 0)


async def test_the_thread_executor_leaves_the_event_loop_alone() -> None:
    executor, admission, loop_thread = ThreadExecutor(), threading.Event(), threading.get_ident()

    def blocking() -> Generator[None, None, int]:
        admission.wait(5)  # for what only the event loop can do
        yield
        return threading.get_ident()

    results: list[int] = []

    async def drive() -> None:
        results.append(await executor.drive(blocking()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drive)
        assert await executor.offload(threading.get_ident) != loop_thread
        admission.set()
    assert results[0] != loop_thread


async def test_inline_steps_take_the_clocks_time(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    await InlineExecutor(step_seconds=2.0).drive(counting([], 5))
    assert trio.current_time() - began == pytest.approx(10.0)
