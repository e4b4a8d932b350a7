"""Other rules for closing rounds in the middle of a run, as a private swarm's newer manifest brings them."""

from collections.abc import Collection, Iterable
from types import SimpleNamespace

import pytest
import trio

from gossip.context import Notifier
from gossip.core.api import Arrivals
from gossip.core.config import GossipConfig
from gossip.core.ids import PeerId
from gossip.updates.exchange_times import ExchangeTimes
from gossip.updates.round_closer_task import RoundCloser
from gossip.updates.rounds import LearnedDeadline
from gossip.updates.standing import standing


def test_a_deadline_keeps_what_it_learned_under_other_bounds() -> None:
    deadline = LearnedDeadline(initial=30.0, least=0.5, k=4.0)
    for _ in range(8):
        deadline.learn(2.0)
    before = deadline.seconds(60.0)
    deadline.change(initial=30.0, least=10.0, k=4.0)
    assert deadline.seconds(60.0) == 10.0 > before
    deadline.change(initial=1.0, least=0.5, k=4.0)
    assert deadline.seconds(60.0) == 1.0
    deadline.change(initial=30.0, least=0.5, k=4.0)
    assert deadline.seconds(60.0) == before


async def test_a_round_closes_by_the_newest_rules(autojump_clock) -> None:
    a, b = PeerId("a"), PeerId("b")
    engine = SimpleNamespace(
        standing=lambda round, now: standing(round, {a: round, b: round - 1}, 4),
        least_members=0,
        round_closed=lambda: None,
        seated=dict,
        paused=lambda round, now: frozenset(),
        unawaited=frozenset(),
        neighbours={a, b},
        degrees_of=lambda peers: dict.fromkeys(peers, 2),
    )
    config = GossipConfig(quorum=1.0, initial_deadline_s=7.0)
    context = SimpleNamespace(config=config, engine=engine, changed=Notifier(), liars=1)
    round_closer = RoundCloser(context, ExchangeTimes(()))  # type: ignore[arg-type]
    first = await round_closer.close(1, at_most_s=60.0)
    assert (first.closed_by, round(first.seconds, 6)) == ("deadline", 7.0)
    round_closer.settle(GossipConfig(quorum=0.5, initial_deadline_s=7.0))
    assert (await round_closer.close(2, at_most_s=60.0)).closed_by == "quorum"
    round_closer.settle(GossipConfig(quorum=1.0, initial_deadline_s=3.0))
    third = await round_closer.close(3, at_most_s=60.0)
    assert (third.closed_by, round(third.seconds, 6)) == ("deadline", 3.0)


NEAR, FAR = [PeerId(letter) for letter in "abcd"], [PeerId(letter) for letter in "wxyz"]


def closer(
    applied: dict[PeerId, int | None],
    delivering: Iterable[PeerId],
    *,
    liars: int = 1,
    withstood: bool = True,
    paused: Collection[PeerId] = (),
) -> tuple[RoundCloser, ExchangeTimes]:
    """Of a node with these neighbours, of whom some have just delivered an update."""
    engine = SimpleNamespace(
        standing=lambda round, now: standing(round, applied, 4, liars=liars, trusted=FAR, paused=paused),
        least_members=2 * liars + 1 if withstood else 0,
        round_closed=lambda: None,
        seated=lambda: {peer: SimpleNamespace(announced_round=at, tracked=True) for peer, at in applied.items()},
        paused=lambda round, now: frozenset(),
        unawaited=frozenset(),
        neighbours=applied,
        degrees_of=lambda peers: dict.fromkeys(peers, 7),
    )
    exchanges = ExchangeTimes(applied)
    for peer in delivering:
        exchanges.applied(peer, (0, 40), trio.current_time(), delta=True)
    context = SimpleNamespace(config=GossipConfig(), engine=engine, changed=Notifier(), liars=liars)
    return RoundCloser(context, exchanges), exchanges  # type: ignore[arg-type]


async def test_a_round_is_not_kept_open_for_those_that_are_too_far_ahead_to_count(autojump_clock) -> None:
    """Their updates come, and are no member's: to wait for them is to wait for every deadline."""
    round_closer, _ = closer(dict.fromkeys(NEAR, 5) | dict.fromkeys(FAR, 40), delivering=FAR)
    view = await round_closer.close(5, at_most_s=60.0)
    assert (view.closed_by, view.fresh) == ("quorum", 5)
    assert round_closer.arrivals(5) == Arrivals(neighbours=5, announced=5, arrived=5)


async def test_of_neighbours_that_are_not_awaited_nothing_counts_as_arrived(autojump_clock) -> None:
    """Those that are here would hide that those that are awaited come late."""
    round_closer, _ = closer({NEAR[0]: 4, NEAR[1]: 5, NEAR[2]: 5}, delivering=NEAR, paused=NEAR[1:])
    assert round_closer.arrivals(5) == Arrivals(neighbours=1, announced=0, arrived=0)


@pytest.mark.parametrize(
    ("liars", "beside", "behind", "withstood", "closed_by"),
    [
        (1, 1, 3, True, "deadline"),  # the one beside it may be a liar, which would take it out of the swarm
        (1, 1, 2, True, "deadline"),
        (1, 1, 1, True, "quorum"),  # the one behind may be a liar, too, that holds a pair up
        (1, 2, 3, True, "quorum"),  # three average
        (1, 1, 3, False, "quorum"),  # no round ever withstood a liar, or none could
        (2, 3, 3, True, "deadline"),  # two of those beside it may be liars, which would take the pair out of the swarm
        (2, 3, 2, True, "quorum"),
        (2, 4, 3, True, "quorum"),  # five average
    ],
)
async def test_who_runs_on_with_too_few_to_withstand_liars_waits_for_those_behind(
    autojump_clock, liars: int, beside: int, behind: int, withstood: bool, closed_by: str
) -> None:
    applied: dict[PeerId, int | None] = dict.fromkeys(NEAR[:beside], 20) | dict.fromkeys(FAR[:behind], 12)
    round_closer, _ = closer(applied, delivering=FAR, liars=liars, withstood=withstood)
    is_held = closed_by == "deadline"
    assert (round_closer.patience(20) == GossipConfig().initial_deadline_s) is is_held
    view = await round_closer.close(20, at_most_s=60.0)
    assert (view.closed_by, round(view.seconds)) == (closed_by, GossipConfig().initial_deadline_s if is_held else 0)
    assert len(round_closer._deadline._seconds) == (not is_held), "what held rounds last is nothing to learn from"


@pytest.mark.parametrize(("comes_back_s", "seconds"), [(60.0, 30.0), (20.0, 20.0), (3.0, 3.0)])
async def test_a_round_is_held_as_well_where_a_member_has_left_since_it_began(
    autojump_clock, nursery, comes_back_s: float, seconds: float
) -> None:
    """Else one that is there whenever a round begins, and never as it ends, keeps a pair from all others."""
    applied: dict[PeerId, int | None] = dict.fromkeys(NEAR[:2], 19) | dict.fromkeys(FAR, 12)
    round_closer, _ = closer(applied, delivering=FAR)

    async def flap() -> None:
        await trio.sleep(1.0)
        applied[NEAR[1]] = 0
        await trio.sleep(comes_back_s - 1.0)
        applied.update(dict.fromkeys(NEAR[:2], 20))
        round_closer._context.changed.beat()

    nursery.start_soon(flap)
    view = await round_closer.close(20, at_most_s=8.0)
    assert (round(view.seconds), view.closed_by) == (seconds, "quorum" if seconds < 30.0 else "deadline")
    assert len(round_closer._deadline._seconds) == (seconds < 8.0), "what held rounds last is nothing to learn from"


async def test_who_runs_on_waits_for_those_behind_for_as_long_as_they_deliver(autojump_clock) -> None:
    applied: dict[PeerId, int | None] = {NEAR[0]: 20} | dict.fromkeys(FAR, 12)
    round_closer, exchanges = closer(applied, delivering=FAR)
    for delivering in ((), FAR[:2]):  # FAR have delivered as it begins
        for peer in delivering:
            exchanges.applied(peer, (0, 13), trio.current_time(), delta=True)
        closed = [(await round_closer.close(20, at_most_s=5.0)).closed_by for _ in range(6)]
        assert closed == ["deadline"] * 4 + ["quorum"] * 2, "as many rounds as members may be behind, and no more"
