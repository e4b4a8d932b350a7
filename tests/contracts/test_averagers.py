"""The contract of an averager, which every registered one passes: it closes real nodes' rounds, in every situation."""

from pathlib import Path
from typing import Any, Final, get_args

import pytest
import torch
import trio
import trio.testing
from sim_swarm import Member, swarm
from sizes import thorough_but

from gossip.core.api import Fetch
from node.training.averagers.averager_registry import AVERAGERS
from p2ptrain.registry import UnknownMemberError
from p2ptrain.sync import SYNC_STRATEGIES, SyncConfig, SyncStrategy, averages_gradients, build

STRATEGY: Final = {"gossip": "tracked_gossip", "allreduce": "moshpit", "secure": "secure_average"}
"""One for each averager."""

MEMBERS: Final = {"gossip": 3, "allreduce": 3, "secure": 5}
"""Of a swarm that one may leave: secure sums are of four at least. A group of `moshpit` has four at most."""

every_averager = pytest.mark.parametrize("name", AVERAGERS.names())


def strategy_of(name: str) -> SyncStrategy:
    return build(SyncConfig(strategy=name), torch.zeros(8), "own")


def of(name: str, **sections: Any) -> dict[str, Any]:
    return {"sync": {"strategy": STRATEGY[name]}, "train": {"rounds": 4, "eval_every": 4}, **sections}


def rounds_of(member: Member) -> list[int]:
    return [fields["round"] for fields in member.told("round")]


async def reached(member: Member, rounds: int) -> None:
    while member.node.state.round < rounds:  # noqa: ASYNC110
        await trio.sleep(0.05)


def test_every_strategy_names_one_that_takes_it() -> None:
    for strategy in SYNC_STRATEGIES.names():
        if not averages_gradients(strategy):
            AVERAGERS.get(SYNC_STRATEGIES.get(strategy).averager, strategy=strategy_of(strategy))


def test_a_strategy_that_it_cannot_close_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="'tracked_gossip' names the averager allreduce, and has no parts") as caught:
        AVERAGERS.get("allreduce", strategy=strategy_of("tracked_gossip"))
    assert "\n" not in str(caught.value)
    with pytest.raises(UnknownMemberError, match="there are: allreduce, gossip, secure"):
        AVERAGERS.get("carrier_pigeon", strategy=strategy_of("tracked_gossip"))


@every_averager
def test_it_says_what_it_fetches(name: str) -> None:
    averager = AVERAGERS.get(name, strategy=strategy_of(STRATEGY[name]))
    assert averager.fetches in set(get_args(Fetch)) - {"models"}, "models are for those who enter a run"


@pytest.mark.slow
@every_averager
async def test_members_close_their_rounds_together(
    name: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        for number in range(MEMBERS[name]):
            await members.start(f"n{number}", wait_for=MEMBERS[name] - 1, **of(name))
        await members.finished()
        for member in members.members.values():
            assert rounds_of(member) == [1, 2, 3, 4]
            assert max(fields["members"] for fields in member.told("round")) == MEMBERS[name]
            assert not member.told("rejected")
            assert not member.node.strategy_lock.locked()
            assert member.node.averager.least_s(member.node) >= 0.0
            assert member.node.counts.mean_bytes > 0
            assert member.eval_loss < member.node.journal.first["eval_loss"]


@every_averager
async def test_one_alone_closes_its_rounds_alone(
    name: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        member = await members.start("n0", wait_for=0, **of(name))
        await members.finished()
        assert rounds_of(member) == [1, 2, 3, 4]
        assert {fields["members"] for fields in member.told("round")} == {1}
        assert {fields["closed_by"] for fields in member.told("round")} == {"alone"}


@pytest.mark.slow
@pytest.mark.parametrize("name", thorough_but({"gossip"}, AVERAGERS.names()))
async def test_who_dies_in_the_middle_stops_nobody(
    name: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        for number in range(MEMBERS[name]):
            settings = of(name, train={"rounds": 12, "eval_every": 12})
            await members.start(f"n{number}", wait_for=MEMBERS[name] - 1, **settings)
        await reached(members.members["n0"], 3)
        *survivors, last = list(members.members)
        members.members[last].kill()
        await members.finished(*survivors)
        for survivor in survivors:
            member = members.members[survivor]
            assert rounds_of(member)[-1] == 12
            assert member.told("round")[-1]["members"] == MEMBERS[name] - 1


@pytest.mark.slow
@pytest.mark.parametrize("name", thorough_but({"gossip", "allreduce"}, AVERAGERS.names()))
async def test_the_strategy_is_free_while_peers_are_waited_for(
    name: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A neighbour's snapshot is asked for at any time: whoever waits for the network must not hold the lock."""
    async with swarm(tmp_path) as members:
        for number in range(2 if name != "secure" else MEMBERS[name]):
            await members.start(f"n{number}", wait_for=1, **of(name, train={"rounds": 12, "eval_every": 12}))
        node, other = (members.members[name].node for name in ("n0", "n1"))
        await reached(members.members["n0"], 2)
        waits = 0
        async with other.strategy_lock:  # it publishes nothing more, and n0 waits for it
            for _ in range(200):
                await trio.sleep(0.01)
                if node.queues()["closing"]:
                    with trio.move_on_after(0.005) as scope:
                        async with node.strategy_lock:
                            waits += 1
                    assert not scope.cancelled_caught
        assert waits > 50
        await members.finished()
