"""The executor whose inner loop somebody else's thread runs, a step at a time."""

import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
import trio

from node.training.executors.caller import CallerExecutor


def counting(steps: int, ran: list[tuple[int, int]]) -> Generator[None, None, int]:
    """Work of so many steps, which notes each and the thread that runs it."""
    for step in range(steps):
        ran.append((step, threading.get_ident()))
        yield
    return steps


def in_loop(main: Callable[[], Any], executor: CallerExecutor) -> tuple[threading.Thread, list[Any]]:
    """Run `main` in a trio loop of another thread; close the executor at its end."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(trio.run(main))
        except BaseException as error:
            found.append(error)
        finally:
            executor.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def test_work_runs_in_the_callers_thread_a_step_for_each_call() -> None:
    executor, ran = CallerExecutor(), list[tuple[int, int]]()

    async def main() -> list[int]:
        return [await executor.drive(counting(3, ran)), await executor.drive(counting(2, ran))]

    thread, found = in_loop(main, executor)
    assert executor.begin()
    assert [step for step, _ in ran] == [0], "up to the first step, which the caller is to take"
    calls = 1
    while executor.advance():
        calls += 1
    thread.join(5)
    assert found == [[3, 2]]
    assert calls == 5
    assert {ident for _, ident in ran} == {threading.get_ident()}
    assert not executor.advance(), "nothing is left to do"


def test_an_error_in_the_work_is_the_loops_and_lets_the_caller_go() -> None:
    executor = CallerExecutor()

    def faulty() -> Generator[None, None, None]:
        yield
        raise ValueError("no such thing")

    async def main() -> None:
        await executor.drive(faulty())

    thread, found = in_loop(main, executor)
    assert executor.begin()
    assert not executor.advance()
    thread.join(5)
    assert isinstance(found[0], ValueError)


def test_a_cancelled_work_is_withdrawn_between_two_steps() -> None:
    executor, ran = CallerExecutor(), list[tuple[int, int]]()
    begun = threading.Event()

    async def main() -> str:
        with trio.move_on_after(0.2):
            begun.set()
            await executor.drive(counting(1_000, ran))
        return "cancelled"

    thread, found = in_loop(main, executor)
    begun.wait(5)
    assert executor.begin()
    thread.join(5)
    assert found == ["cancelled"]
    assert not executor.advance()
    assert len(ran) == 1


def test_a_caller_that_serves_runs_everything_until_the_end() -> None:
    executor, ran = CallerExecutor(), list[tuple[int, int]]()

    async def main() -> int:
        first = await executor.drive(counting(4, ran))
        return first + await executor.drive(counting(5, ran))

    thread, found = in_loop(main, executor)
    executor.serve()
    thread.join(5)
    assert found == [9]


def test_a_caller_serves_until_it_is_over_and_runs_what_there_is_by_then() -> None:
    executor, over, ran = CallerExecutor(), threading.Event(), list[tuple[int, int]]()
    ended = threading.Event()

    async def main() -> None:
        await executor.drive(counting(2, ran))
        over.set()
        executor.wake()
        await trio.to_thread.run_sync(ended.wait)

    thread, _ = in_loop(main, executor)
    assert executor.serve_until(over.is_set), "there may be more"
    assert len(ran) == 2
    ended.set()
    thread.join(5)
    assert not executor.serve_until(lambda: False), "the loop has ended"


def test_offloaded_work_does_not_wait_for_the_caller() -> None:
    executor = CallerExecutor()

    async def main() -> int:
        return await executor.offload(lambda: 7)

    thread, found = in_loop(main, executor)
    thread.join(5)
    assert found == [7]


@pytest.mark.parametrize("steps", [0, 1])
def test_work_without_steps_is_done_on_the_way(steps: int) -> None:
    """Between two rounds the node has the caller apply corrections: no step of its own."""
    executor, ran = CallerExecutor(), list[tuple[int, int]]()

    async def main() -> None:
        await executor.drive(counting(steps, ran))
        await executor.drive(counting(2, ran))

    thread, _ = in_loop(main, executor)
    assert executor.begin()
    while executor.advance():
        pass
    thread.join(5)
    assert len(ran) == steps + 2


def test_a_caller_that_goes_on_alone_waits_for_no_work_and_runs_what_there_is() -> None:
    alone, ran, more = threading.Event(), list[tuple[int, int]](), list[tuple[int, int]]()
    executor, wanted = CallerExecutor(alone.is_set), threading.Event()

    async def main() -> None:
        await executor.drive(counting(1, ran))
        await trio.to_thread.run_sync(wanted.wait)  # nothing is to be run: who waited for work would hang here
        await executor.drive(counting(2, more))

    thread, found = in_loop(main, executor)
    assert executor.begin()
    alone.set()
    assert executor.advance(), "returns although there is no work"
    assert executor.advance()
    wanted.set()
    while executor.advance():
        pass
    thread.join(5)
    assert found == [None]
    assert [step for step, _ in more] == [0, 1]
