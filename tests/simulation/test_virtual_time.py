"""What devices, disks and sessions take of the virtual clock."""

import math
import random
from collections.abc import Generator
from itertools import pairwise
from statistics import fmean, median, stdev

import pytest
import trio

from node.simulation.derived import identity_of, rng_of, share_of
from node.simulation.scenario import DeviceClass, DiurnalSession, TraceSession, WeibullSession
from node.simulation.sessions import ALWAYS, intervals
from node.simulation.virtual_executor import KilledError, VirtualExecutor
from node.training.executors.base import SideWork, not_asked


def steps(count: int) -> Generator[None, None, str]:
    for _ in range(count):
        yield
    return "done"


async def times_of(device: DeviceClass, count: int) -> list[float]:
    executor, times = VirtualExecutor(device, random.Random(1)), [0.0]

    def noted() -> Generator[None, None, None]:
        for _ in range(count):
            yield
            times.append(trio.current_time())

    await executor.drive(noted())
    return [later - sooner for sooner, later in pairwise(times)]


async def test_a_step_takes_what_the_device_takes(autojump_clock: trio.testing.MockClock) -> None:
    executor = VirtualExecutor(DeviceClass(step_s=0.25), random.Random(1))
    assert await executor.drive(steps(8)) == "done"
    assert trio.current_time() == pytest.approx(2.0)


async def test_steps_are_lognormal(autojump_clock: trio.testing.MockClock) -> None:
    times = await times_of(DeviceClass(step_s=0.2, sigma=0.5), 2000)
    assert median(times) == pytest.approx(0.2, rel=0.05)
    assert fmean(times) == pytest.approx(0.2 * 2.718281828 ** (0.5**2 / 2), rel=0.05)


async def test_slow_phases_have_their_share(autojump_clock: trio.testing.MockClock) -> None:
    device = DeviceClass(step_s=0.1, slow_factor=10, slow_every_s=30.0, slow_for_s=10.0)
    times = await times_of(device, 5000)
    slow = sum(time for time in times if time > 0.5) / sum(times)
    assert {round(time, 6) for time in times} == {0.1, 1.0}
    assert slow == pytest.approx(10 / 40, abs=0.08)


async def test_other_work_is_charged_one_piece_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    executor = VirtualExecutor(
        DeviceClass(encode_s=0.5, decode_s=0.25, aggregate_s=1.0, other_s=0.125, evaluate_s=2.0), random.Random(1)
    )
    spent: list[float] = []
    async with trio.open_nursery() as nursery:
        for work in SideWork:
            nursery.start_soon(executor.offload, lambda: 1, spent.append, work)
        nursery.start_soon(executor.evaluate, lambda: 3)
    assert sorted(spent) == [0.125, 0.25, 0.5, 1.0], "each by its own price"
    assert trio.current_time() == pytest.approx(3.875), "and one after another"
    executor.owe(4.0)
    assert await executor.offload(lambda: "kept") == "kept"
    assert trio.current_time() == pytest.approx(8.0), "the disk was slow"


async def test_steps_of_a_round_are_slow_together(autojump_clock: trio.testing.MockClock) -> None:
    executor = VirtualExecutor(DeviceClass(step_s=0.2, round_sigma=0.5, spare_core=False), random.Random(1))
    means: list[float] = []
    for _ in range(1000):
        executor.computed(0.4)
        began = trio.current_time()
        await executor.drive(steps(3))
        means.append((trio.current_time() - began) / 5)
    assert median(means) == pytest.approx(0.2, rel=0.05), "what training stands still for is slow as well"
    assert stdev(map(math.log, means)) == pytest.approx(0.5, rel=0.05), "and three steps do not even it out"


@pytest.mark.parametrize(("spare", "seconds"), [(True, 1.0), (False, 1.0 + 0.5 + 0.25)])
async def test_training_stands_still_where_no_core_is_to_spare(
    autojump_clock: trio.testing.MockClock, spare: bool, seconds: float
) -> None:
    executor = VirtualExecutor(DeviceClass(step_s=0.25, encode_s=0.5, spare_core=spare), random.Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(executor.drive, steps(4))
        nursery.start_soon(executor.offload, lambda: 1, not_asked, SideWork.ENCODE)
        await trio.sleep(0.1)
        executor.computed(0.25)  # what the event loop did
    assert trio.current_time() == pytest.approx(seconds)


async def test_a_killed_process_does_no_work(autojump_clock: trio.testing.MockClock) -> None:
    executor = VirtualExecutor(DeviceClass(), random.Random(1))
    executor.die()
    with pytest.raises(KilledError):
        await executor.drive(steps(1))
    with pytest.raises(KilledError):
        await executor.offload(lambda: 1)


def drawn(session: object, until_s: float = 1000.0, **more: float) -> list[tuple[float, float]]:
    about = {"day_s": 240.0, "local_h": 0.0} | more
    return intervals(session, random.Random(1), until_s=until_s, **about)  # type: ignore[arg-type]


def test_sessions_are_in_order_and_apart() -> None:
    weibull = WeibullSession(kind="weibull", on_scale_s=50.0, off_scale_s=20.0)
    for found in (drawn(weibull), drawn(DiurnalSession(kind="diurnal", from_h=18, to_h=8, spread_h=1))):
        assert found[0][0] >= 0
        assert found[-1][0] < 1000
        assert all(begin < end for begin, end in found)
        assert all(end < begin for (_, end), (begin, _) in pairwise(found))


def test_a_weibull_sessions_mean() -> None:
    session = WeibullSession(kind="weibull", on_scale_s=50.0, on_shape=1.0, off_scale_s=20.0, off_shape=1.0)
    found = drawn(session, until_s=200_000.0)
    assert fmean(end - begin for begin, end in found) == pytest.approx(50, rel=0.1)
    assert fmean(begin - end for (_, end), (begin, _) in pairwise(found)) == pytest.approx(20, rel=0.1)


def test_a_diurnal_session_follows_the_local_hour() -> None:
    nights = DiurnalSession(kind="diurnal", from_h=18, to_h=8)
    assert drawn(nights, until_s=300.0) == [(0.0, 80.0), (180.0, 320.0)], "an hour is ten seconds here"
    assert drawn(nights, until_s=300.0, local_h=18.0) == [(0.0, 140.0), (240.0, 380.0)]
    assert drawn(nights, until_s=100.0, local_h=12.0) == [(60.0, 200.0)]


def test_a_whole_day_has_no_end() -> None:
    day = DiurnalSession(kind="diurnal", from_h=0, to_h=24, spread_h=1)
    assert drawn(day) == [ALWAYS]


@pytest.mark.parametrize("local_h", [-14.0, -8.0, 0.0, 8.0, 16.0, 38.0])
@pytest.mark.parametrize(("from_h", "to_h"), [(22, 17), (20, 19), (1, 0), (8, 20), (24, 1)])
def test_who_is_there_at_the_start_is_so_by_its_local_hour(from_h: float, to_h: float, local_h: float) -> None:
    found = drawn(DiurnalSession(kind="diurnal", from_h=from_h, to_h=to_h), until_s=300.0, local_h=local_h)
    for whole in range(300):
        second = whole + 0.5  # beside the hours at which it comes and goes: ten seconds are an hour here
        hour = (local_h + second / 10) % 24
        there = (hour - from_h) % 24 < (to_h - from_h) % 24
        assert there == any(begin <= second < end for begin, end in found), hour


def test_a_trace_and_no_session() -> None:
    assert drawn(TraceSession(kind="trace", intervals_s=[[0, 5], [10, 20], [2000, 3000]])) == [(0, 5), (10, 20)]
    assert drawn(None) == [ALWAYS]


@pytest.mark.parametrize(
    ("count", "share", "found"), [(100, 0.07, 7), (25, 0.28, 7), (20, 0.55, 11), (3, 0.5, 2), (9, 0.0, 0), (9, 1.0, 9)]
)
def test_a_share_is_rounded_up_from_what_is_written(count: int, share: float, found: int) -> None:
    assert share_of(count, share) == found


def test_each_purpose_has_random_numbers_of_its_own() -> None:
    draws = {rng_of(*key).random() for key in [(1, "a", "x"), (1, "a", "y"), (1, "b", "x"), (2, "a", "x"), (1, "a|x")]}
    assert len(draws) == 4, "and the same key the same ones, as the last and the first"
    assert identity_of(1, "a").peer_id != identity_of(2, "a").peer_id
