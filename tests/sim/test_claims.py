"""What a few neighbours claim moves nobody: at a start, at a join, at a resume, under an observer.

One liar (f = 1), with a round and a model of its own, among honest nodes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from claimants import Claimant, claim
from sim_swarm import STEP_SECONDS, Member, Swarm, swarm

from node.training.joining import ALONE_S, WAITED_OUT_S

ROUNDS = 12
SETTINGS: dict[str, Any] = {"train": {"rounds": ROUNDS, "eval_every": ROUNDS}, "sync": {"f": 1}}
LONG: dict[str, Any] = {"train": {"rounds": 300, "eval_every": 300}, "sync": {"f": 1}, "node": {"checkpoint_every": 5}}
PHASE_S = 5 * STEP_SECONDS
LIE = 1e3
"""Far from any model of digits, whose parameters are below 1."""


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.1)


def norm(member: Member) -> float:
    return float(member.node.inner.trainer.vector().abs().max())


@pytest.mark.parametrize("claimed", [10**9, pytest.param(20, marks=pytest.mark.thorough)])
async def test_one_liar_of_six_moves_no_start(
    claimed: int, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It claims a round before anybody else has said anything; all that it wins is a delay."""
    with trio.fail_after(1000):
        async with swarm(tmp_path) as members, trio.open_nursery() as nursery:
            first = await members.start("n0", wait_for=5, **SETTINGS)
            liar = await claim(members, nursery, first, 0, value=LIE)
            await liar.say(claimed)
            for number in range(1, 5):
                known = (first.transport.addresses[0], liar.address)
                await members.start(f"n{number}", wait_for=5, peers=known, **SETTINGS)
            await members.finished()
            liar.scope.cancel()
    for member in members.members.values():
        assert [fields["round"] for fields in member.told("round")] == list(range(1, ROUNDS + 1))
        assert not member.told("joined")
        assert member.eval_loss < 0.5 * member.node.journal.first["eval_loss"]
        assert norm(member) < 10
        (waiting,) = [it for it in member.told("waiting") if "say where it is" in it["message"]]
        assert "1 of 5 neighbours" in waiting["message"]
        assert member.told("round")[0]["at"] < WAITED_OUT_S + 10


async def running(members: Swarm, count: int, settings: dict[str, Any]) -> list[Member]:
    nodes = [await members.start(f"n{number}", wait_for=count - 1, **settings) for number in range(count)]
    await trio.sleep(35 * PHASE_S)
    return nodes


@pytest.mark.thorough
async def test_a_newcomer_whose_first_neighbour_lies_joins_the_honest(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.fail_after(1000):
        async with swarm(tmp_path) as members, trio.open_nursery() as nursery:
            nodes = await running(members, 4, LONG)
            liar = await claim(members, nursery, nodes[0], 0, value=LIE, peers=())
            await liar.say(200)
            late = await members.start("late", wait_for=1, peers=(liar.address,), **LONG)
            await trio.sleep(1.0)
            await late.transport.dial(nodes[0].transport.addresses[0])  # its record is told of in time, or this is
            await until(lambda: bool(late.told("round")))
            (joined,) = late.told("joined")
            assert joined["donors"] >= 3
            assert liar.peer not in joined["peers"]
            assert joined["round"] <= max(node.node.state.round for node in nodes)
            assert norm(late) < 10
            nursery.cancel_scope.cancel()


@pytest.mark.thorough
async def test_a_newcomer_beside_one_liar_alone_is_told(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Nobody can tell it from the first member of a swarm of two: its model is taken, and the operator is told."""
    with trio.fail_after(1000):
        async with swarm(tmp_path) as members, trio.open_nursery() as nursery:
            like = await members.start("like", **LONG)
            liar = await claim(members, nursery, like, 0, value=LIE, peers=())
            for name, claimed in (("far", 10**9), ("near", 20)):
                await liar.say(claimed, epoch=10**6 + (name == "near"))
                began = trio.current_time()
                late = await members.start(name, wait_for=1, peers=(liar.address,), **LONG)
                await until(lambda: bool(late.told("round")))  # noqa: B023
                warnings = " ".join(fields["message"] for fields in late.told("warning"))
                if name == "far":
                    assert not late.told("joined"), "no reason to end, and none to jump"
                    assert late.told("round")[0]["round"] == 1
                    assert "too few to be believed" in warnings
                else:
                    assert late.told("joined")[0]["at"] - began >= ALONE_S
                    assert "no other neighbour could confirm it" in warnings
                late.kill()
            nursery.cancel_scope.cancel()


@pytest.mark.thorough  # the adversary's named attacks play it twice
async def test_a_resumed_node_whose_first_neighbour_lies_keeps_what_it_has(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.fail_after(1000):
        async with swarm(tmp_path) as members, trio.open_nursery() as nursery:
            nodes = await running(members, 4, LONG)
            away = nodes[3]
            away.kill()
            await away.done.wait()
            liar = await claim(members, nursery, nodes[0], 0, value=LIE, peers=())
            await liar.say(299)
            for other in nodes[:3]:
                members.network.stall(other.transport.peer_id)
            back = await members.start("n3", wait_for=1, peers=(liar.address,), **LONG)
            assert back.resumed
            kept = back.node.state.round
            assert kept >= 25
            await until(lambda: len(back.told("round")) >= 10)
            assert not back.told("joined")
            assert [fields["round"] for fields in back.told("round")][:10] == list(range(kept + 1, kept + 11))
            assert norm(back) < 10
            nursery.cancel_scope.cancel()


async def watched(members: Swarm) -> tuple[list[Member], Member]:
    settings = {"train": {"rounds": 60, "eval_every": 4}, "sync": {"f": 1}}
    nodes = [await members.start(f"n{number}", wait_for=3, **settings) for number in range(4)]
    watcher = await members.start("watcher", wait_for=3, **{**settings, "node": {"role": "observer"}})
    return nodes, watcher


@pytest.mark.thorough
@pytest.mark.parametrize("identities", [2, pytest.param(5, marks=pytest.mark.thorough)])
async def test_identities_that_come_and_go_do_not_capture_an_observer(
    identities: int, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.fail_after(1000):
        async with swarm(tmp_path) as members, trio.open_nursery() as nursery:
            nodes, watcher = await watched(members)
            await until(lambda: watcher.node.state.round >= 8)
            for number in range(identities):
                liar: Claimant = await claim(
                    members, nursery, nodes[0], number, value=1e12, peers=(watcher.transport.addresses[0],)
                )
                await liar.say(59)
                await until(lambda: str(liar.peer) in watcher.node.estimates)  # noqa: B023
                await liar.leave()
            at = watcher.node.state.round
            await members.finished()
    assert at < 56
    rounds = watcher.told("evaluated")
    assert rounds[-1]["round"] == 60
    assert len({fields["round"] for fields in rounds}) >= 8
    assert max(fields["eval_loss"] for fields in rounds) < 3.0
    assert watcher.eval_loss < min(node.eval_loss for node in nodes) + 0.1
    assert torch.isfinite(watcher.node.inner.trainer.vector()).all()
