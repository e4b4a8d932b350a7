"""A node's owner says how much of the link it may take, and when: rates up and down, fair shares, quiet hours."""

import pytest
import trio
from gossip_swarm import FakeRuntime, Swarm, all_follow, swarm, until
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.config import GossipConfig
from gossip.core.errors import LocalError
from gossip.core.limits import MIN_RATE
from gossip.core.quiet_hours import DAY, QuietHours
from gossip.transport.throttled import BURST_S, bucket

RATE = 256_000.0
SIZE = 4 << 20
DEGREE = 8


async def seconds_until_followed(node: FakeRuntime, by: list[FakeRuntime], size: int) -> list[float]:
    """How long each took to have a new payload."""
    began = trio.current_time()
    taken: dict[int, float] = {}

    async def watch(index: int, other: FakeRuntime) -> None:
        await until(lambda: other.follows(node), 600)
        taken[index] = trio.current_time() - began

    await node.publish(1, bytes(size))
    async with trio.open_nursery() as nursery:
        for index, other in enumerate(by):
            nursery.start_soon(watch, index, other)
    return [taken[index] for index in range(len(by))]


async def pair(it: Swarm, **changes: float) -> list[FakeRuntime]:
    one = await it.start(1, **changes)
    other = await it.start(2, peers=(one.address,))
    for node in (one, other):
        await node.begin()
    await until(lambda: all_follow([one, other]))
    return [one, other]


async def test_nothing_is_sent_faster_than_allowed(autojump_clock):
    async with swarm() as it:
        one, other = await pair(it, up_bytes_per_s=RATE)
        (seconds,) = await seconds_until_followed(one, [other], SIZE)
        assert SIZE / RATE - 2 * BURST_S < seconds < 1.05 * SIZE / RATE + 3
        assert not other.told("rejected")


async def test_nothing_is_taken_faster_than_allowed(autojump_clock):
    async with swarm() as it:
        one, other = await pair(it, down_bytes_per_s=RATE)
        (seconds,) = await seconds_until_followed(other, [one], SIZE)
        assert SIZE / RATE - 2 * BURST_S < seconds < 1.05 * SIZE / RATE + 3
        assert not one.told("rejected")


async def test_without_limits_it_goes_at_once(autojump_clock):
    async with swarm() as it:
        one, other = await pair(it)
        (seconds,) = await seconds_until_followed(one, [other], SIZE)
        assert seconds < 1.0


@pytest.mark.thorough
async def test_neighbours_have_equal_shares_of_a_slow_link(autojump_clock):
    """At the least rate that is taken, eight at once: nobody is starved into giving up, all end together."""
    async with swarm() as it:
        one = await it.start(1, up_bytes_per_s=float(MIN_RATE * DEGREE))
        others = [await it.start(number, peers=(one.address,)) for number in range(2, 2 + DEGREE)]
        for node in (one, *others):
            await node.begin()
        await until(lambda: all(other.follows(one) for other in others))
        seconds = await seconds_until_followed(one, others, SIZE // 4)
        assert max(seconds) < 1.3 * min(seconds)
        assert max(seconds) < 1.1 * SIZE / 4 / MIN_RATE + 5
        assert not any(node.told("rejected") for node in others)


@pytest.mark.slow
async def test_quiet_hours_leave_the_link_alone_and_afterwards_all_is_caught_up(autojump_clock):
    async with swarm() as it:
        one, other = await pair(it)
        it.minute = 23 * 60
        quiet = await it.start(3, peers=(one.address,), quiet_hours=("22:00-07:00",))
        await quiet.begin()
        await until(lambda: quiet.peer in one.service.neighbours() and one.peer in quiet.service.neighbours())
        for round_ in range(1, 13):
            await one.publish(round_)
            await quiet.publish(round_)
            await trio.sleep(30)
        await until(lambda: other.follows(one))
        assert quiet.service.stats.payload_bytes_received == quiet.service.stats.payload_bytes_sent == 0
        assert quiet.service.stats.snapshot_bytes_received == quiet.service.stats.snapshot_bytes_sent == 0
        assert quiet.peer in one.service.neighbours(), "it is still there"
        it.minute = 7 * 60
        await until(lambda: all_follow([one, other, quiet]))
        for node in (one, other, quiet):
            assert not node.told("rejected")


# -- the parts


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 100)), max_size=50), st.floats(1, 1e9))
def test_an_allowance_is_never_exceeded(asked, rate):
    allowance, now, gone, began = bucket(rate), 0.0, 0, 0.0
    last = 0.0
    for size, pause in asked:
        now += pause
        at = now + allowance.reserve(size, now)
        gone += size
        assert at >= last - 1e-6, "in the order of asking"
        last = max(last, at)
        # What was asked for before this moment has gone by then, and no more than the rate and the burst allow.
        assert gone <= rate * (at - began + BURST_S) * (1 + 1e-9) + 1e-6 * gone + 1e-3
        began = began if gone > 0 else now


@given(st.integers(0, DAY - 1), st.integers(0, DAY - 1), st.integers(0, DAY - 1))
def test_hours_contain_what_lies_between_them(begins, ends, minute):
    if begins == ends:
        return
    text = f"{begins // 60:02}:{begins % 60:02}-{ends // 60:02}:{ends % 60:02}"
    hours = QuietHours.parse(text)
    assert hours.contain(minute) == ((minute - begins) % DAY < (ends - begins) % DAY)


@pytest.mark.parametrize(
    "text", ["", "22-7", "24:00-07:00", "22:60-07:00", "22:00-22:00", "2:00-07:00", "22:00-07:00x"]
)
def test_what_is_no_time_is_refused_in_one_line(text):
    with pytest.raises(LocalError, match="quiet hours are written 22:00-07:00"):
        GossipConfig(quiet_hours=(text,))


@pytest.mark.parametrize("name", ["up_bytes_per_s", "down_bytes_per_s"])
def test_a_rate_at_which_nothing_would_arrive_is_refused(name):
    with pytest.raises(LocalError, match="must leave 16384 bytes a second for each of 4 neighbours"):
        GossipConfig(degree=4, **{name: 4 * MIN_RATE - 1.0})
    GossipConfig(degree=4, **{name: 4.0 * MIN_RATE})


@pytest.mark.parametrize("name", ["initial_deadline_s", "deadline_k", "silence_s", "up_bytes_per_s", "quorum"])
def test_no_setting_is_nan(name: str) -> None:
    with pytest.raises(LocalError, match=f"{name} is not a number"):
        GossipConfig(**{name: float("nan")})
