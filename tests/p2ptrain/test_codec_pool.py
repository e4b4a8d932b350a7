"""Sharing chunks among threads: everything is done once, errors come in order, and nothing can get stuck."""

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
import torch

from p2ptrain.compress.pool import MAX_THREADS, for_each


@pytest.fixture
def _four_threads() -> Iterator[None]:
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(1)


class OddError(Exception):
    """What the failing work below raises."""


def refuse_odd(item: int) -> None:
    if item % 2:
        raise OddError(item)


def meet(barrier: threading.Barrier, seen: list[int]) -> None:
    """Ends only if as many threads as the barrier holds are in here at once."""
    barrier.wait(timeout=30)
    seen.append(threading.get_ident())


def test_with_one_thread_all_is_done_by_the_caller() -> None:
    seen: list[int] = []
    for_each(lambda _: seen.append(threading.get_ident()), range(50))
    assert seen == [threading.get_ident()] * 50


@pytest.mark.usefixtures("_four_threads")
def test_as_many_threads_work_as_torch_may_use() -> None:
    seen: list[int] = []
    for_each(lambda barrier: meet(barrier, seen), [threading.Barrier(4)] * 4)
    assert len(set(seen)) == 4
    assert threading.get_ident() in seen


@pytest.mark.parametrize("threads", [1, 4, MAX_THREADS + 5])
@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_every_item_is_done_once(threads: int, count: int) -> None:
    torch.set_num_threads(threads)
    done: list[int] = []
    for_each(done.append, range(count))
    torch.set_num_threads(1)
    assert sorted(done) == list(range(count))


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_failure_in_order_is_raised(threads: int) -> None:
    torch.set_num_threads(threads)
    raised = []
    for _ in range(50):
        with pytest.raises(OddError) as failed:
            for_each(refuse_odd, [2, 4, 6, 7, 9, 11, 13])
        raised.append(failed.value.args)
    torch.set_num_threads(1)
    assert raised == [(7,)] * 50


@pytest.mark.usefixtures("_four_threads")
def test_of_failures_at_once_the_first_in_order_is_raised() -> None:
    barrier = threading.Barrier(4)

    def refuse_together(item: int) -> None:
        barrier.wait(timeout=30)
        refuse_odd(item)

    with pytest.raises(OddError) as failed:
        for_each(refuse_together, [2, 5, 9, 3])
    assert failed.value.args == (5,)


def fail_with_a_vector() -> "weakref.ref[np.ndarray]":
    vector_d = np.zeros(4)
    with suppress(OddError):
        for_each(lambda item: refuse_odd(item + int(vector_d[0])), range(5))
    return weakref.ref(vector_d)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_failure_holds_on_to_nothing(threads: int) -> None:
    """Or else the vector of a refused payload would stay until the garbage is collected."""
    torch.set_num_threads(threads)
    gc.disable()
    vector = fail_with_a_vector()
    gc.enable()
    torch.set_num_threads(1)
    assert vector() is None


def test_nothing_is_begun_after_a_failure() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        refuse_odd(item)

    with pytest.raises(OddError):
        for_each(work, range(10))
    assert begun == [0, 1]


@pytest.mark.usefixtures("_four_threads")
def test_work_within_work_ends() -> None:
    """The inner calls find all threads of the pool taken."""
    done: list[int] = []
    for_each(lambda _: for_each(done.append, range(10)), range(30))
    assert sorted(done) == sorted(list(range(10)) * 30)


@pytest.mark.usefixtures("_four_threads")
def test_many_callers_at_once_end() -> None:
    done: list[int] = []
    callers = [threading.Thread(target=for_each, args=(done.append, range(100))) for _ in range(12)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert sorted(done) == sorted(list(range(100)) * 12)


@pytest.mark.usefixtures("_four_threads")
def test_overflow_warns_in_no_thread() -> None:
    """Warnings are errors in these tests."""
    out = np.zeros(40, dtype=np.float32)

    def overflow(item: int) -> None:
        out[item] = np.float32(3e38) * np.float32(item + 2)

    for_each(overflow, range(40))
    assert np.isinf(out).all()


@pytest.mark.usefixtures("_four_threads")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")  # nor, then, a child with half a pool
def test_a_forked_child_has_threads_of_its_own() -> None:
    for_each(lambda _: None, range(8))  # the parent's pool has begun
    child = os.fork()
    if child == 0:
        try:
            for_each(lambda barrier: barrier.wait(timeout=30), [threading.Barrier(4)] * 4)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
