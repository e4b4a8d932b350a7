"""Other rules for closing rounds in the middle of a run, as a private swarm's newer manifest brings them."""

from types import SimpleNamespace

import trio

from gossip.context import Notifier
from gossip.core.api import Arrivals
from gossip.core.config import GossipConfig
from gossip.core.ids import PeerId
from gossip.updates.exchange_times import ExchangeTimes
from gossip.updates.round_closer_task import RoundCloser
from gossip.updates.rounds import LearnedDeadline, Standing, standing


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
    present = Standing(staleness={"a": 0, "b": 1}, fresh=1, neighbours=2)  # type: ignore[dict-item]
    engine = SimpleNamespace(
        standing=lambda round, now: present,
        round_closed=lambda: None,
        seated=dict,
        paused=lambda round, now: frozenset(),
        unawaited=frozenset(),
        neighbours=present.staleness,
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


async def test_a_round_is_not_kept_open_for_those_that_are_too_far_ahead_to_count(autojump_clock) -> None:
    """Their updates come, and are no member's: to wait for them is to wait for every deadline."""
    near, far = [PeerId(letter) for letter in "abc"], [PeerId(letter) for letter in "wxyz"]
    applied: dict[PeerId, int | None] = dict.fromkeys(near, 5) | dict.fromkeys(far, 40)
    engine = SimpleNamespace(
        standing=lambda round, now: standing(round, applied, 4, liars=1, trusted=far),
        round_closed=lambda: None,
        seated=lambda: {peer: SimpleNamespace(announced_round=at, tracked=True) for peer, at in applied.items()},
        paused=lambda round, now: frozenset(),
        unawaited=frozenset(),
        neighbours=applied,
        degrees_of=lambda peers: dict.fromkeys(peers, 7),
    )
    exchanges = ExchangeTimes(applied)
    for peer in far:
        exchanges.applied(peer, (0, 40), trio.current_time(), delta=True)
    context = SimpleNamespace(config=GossipConfig(), engine=engine, changed=Notifier(), liars=1)
    round_closer = RoundCloser(context, exchanges)  # type: ignore[arg-type]
    view = await round_closer.close(5, at_most_s=60.0)
    assert (view.closed_by, view.fresh) == ("quorum", 4)
    assert round_closer.arrivals(5) == Arrivals(neighbours=4, announced=4, arrived=4)
