"""Observers of simulated swarms: they hold the swarm's model at the rounds where it is looked at, and give nothing."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from sim_swarm import Member, Swarm, swarm
from sizes import thorough_but

from gossip.core.ids import PeerId
from gossip.membership import Role, pack_item, revoke_peer
from node.swarm.accept_invite import membership, read_invite
from node.swarm.create import CreateRequest, create
from node.swarm.folder import SwarmFolder
from node.swarm.inviting import Wish, give
from node.system.errors import RunError
from node.training.checkpoint import CheckpointStore
from p2ptrain.sync.model_averaging import ModelAveraging

ROUNDS, EVERY = 8, 4
LEARNING: dict[str, Any] = {"train": {"rounds": ROUNDS, "eval_every": EVERY}, "sync": {"f": 1}}
WATCHING: dict[str, Any] = {**LEARNING, "node": {"role": "observer", "checkpoint_every": 1}}
TRAINERS = ("a", "b", "c")
WATCH = Wish(role=Role.OBSERVER, full=True)


async def start_trainers(members: Swarm, **sections: Any) -> list[Member]:
    return [await members.start(name, wait_for=2, **{**LEARNING, **sections}) for name in TRAINERS]


def all_estimates(watcher: Member, trainers: list[Member]) -> torch.Tensor:
    return torch.stack([assembled(watcher).estimates[it.node.peer_id] for it in trainers])


def all_publics(trainers: list[Member]) -> torch.Tensor:
    return torch.stack([assembled(it).public_d for it in trainers])


def assembled(member: Member) -> ModelAveraging:
    assert isinstance(member.node.strategy, ModelAveraging)
    return member.node.strategy


def rounds_of(member: Member, event: str) -> list[int]:
    return [fields["round"] for fields in member.told(event)]


def model(member: Member) -> torch.Tensor:
    return member.node.inner.trainer.vector()


def found_private(folder: Path, *observers: str) -> SwarmFolder:
    """A private swarm of the trainers and these observers, whose folders are members'."""
    wish = CreateRequest(name="lab", at=("127.0.0.1", 4001), first=Wish(uses=len(TRAINERS), full=True))
    made = create(folder / "lab", {"task": {"name": "digits"}, **LEARNING}, wish, None)
    for name in TRAINERS + observers:
        line = made.line if name in TRAINERS else give(made.folder, made.folder.authority(None), WATCH)
        member = membership(folder / name, {}, read_invite(line))
        assert member is not None
        member.settle(None)
    return made.folder


@pytest.mark.parametrize("private", thorough_but({True}, [True, False]))
async def test_it_has_the_swarm_s_model_to_the_last_round_and_gives_nothing(
    private: bool, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    if private:
        found_private(tmp_path, "watcher")
    with trio.fail_after(100):
        async with swarm(tmp_path) as members:
            trainers = await start_trainers(members)
            watcher = await members.start("watcher", wait_for=1, **WATCHING)
            await members.finished()
    stats = watcher.node.service.stats
    assert (stats.payload_bytes_sent, stats.snapshot_bytes_sent) == (0, 0)
    assert watcher.node.inner.steps == 0
    assert rounds_of(watcher, "round")[-1] == ROUNDS == watcher.node.state.round
    assert rounds_of(watcher, "evaluated") == rounds_of(watcher, "round") == rounds_of(watcher, "checkpoint")
    assert watcher.told("round")[-1]["members"] == 3
    assert watcher.told("round")[-1]["bytes_received"] > watcher.told("round")[-1]["payload_bytes_received"] > 0

    estimates, publics = all_estimates(watcher, trainers), all_publics(trainers)
    assert torch.equal(estimates, publics), "of each it holds what that has told everybody, bit for bit"
    assert torch.equal(model(watcher), publics.median(0).values), "and of those the aggregate of newcomers, here f = 1"
    assert watcher.eval_loss < 0.7 * watcher.node.journal.first["eval_loss"]
    assert watcher.eval_loss < min(it.eval_loss for it in trainers) + 0.1

    for it in trainers:
        assert not any(it.told(event) for event in ("rejected", "banned", "warning"))
        assert {(fields["closed_by"], fields["members"]) for fields in it.told("round")} == {("quorum", 3)}
        assert (watcher.node.peer_id in {fields["peer"] for fields in it.told("neighbour_up")}) is not private
    kept = CheckpointStore(tmp_path / "watcher" / "checkpoint").newest()
    assert kept is not None
    assert kept.round == ROUNDS
    assert torch.equal(kept.tensors["trainer.parameters"], model(watcher))


@pytest.mark.parametrize("strategy", thorough_but({"moshpit"}, ["moshpit", "noloco"]))
async def test_where_members_meet_it_takes_their_whole_models(
    strategy: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    sync: dict[str, Any] = {"sync": {"strategy": strategy, "f": 0}}
    with trio.fail_after(500):
        async with swarm(tmp_path) as members:
            await start_trainers(members, **sync)
            watcher = await members.start("watcher", wait_for=1, **{**WATCHING, **sync})
            await members.finished()
    assert watcher.node.state.round >= EVERY
    assert watcher.node.service.stats.payload_bytes_sent == 0
    assert watcher.eval_loss < watcher.node.journal.first["eval_loss"]


@pytest.mark.thorough
async def test_it_stops_goes_on_and_is_cut_when_it_is_revoked(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lab = found_private(tmp_path, "watcher")
    learning = {"train": {"rounds": 40, "eval_every": EVERY}}
    with trio.fail_after(500):
        async with swarm(tmp_path, keep_errors=True) as members:
            trainers = await start_trainers(members, **learning)
            watcher = await members.start("watcher", wait_for=1, **{**WATCHING, **learning})
            await until(lambda: watcher.node.state.round >= EVERY)
            watcher.stop.set()
            await watcher.done.wait()
            kept = CheckpointStore(tmp_path / "watcher" / "checkpoint").newest()
            assert kept is not None
            assert kept.round == watcher.node.state.round
            assert torch.equal(kept.tensors["trainer.parameters"], model(watcher))

            again = await members.start("watcher", wait_for=1, **{**WATCHING, **learning})
            assert again.resumed
            assert again.node.state.round == kept.round
            await until(lambda: again.node.state.round > kept.round)
            assert not again.told("joined"), "that is told once"

            now = int(time.time())
            out = revoke_peer(
                lab.authority(None), lab.chain().swarm, PeerId(again.node.peer_id), issued_at=now, reason="left"
            )
            trainers[0].node.service.submit([pack_item(out)])
            await until(lambda: not again.node.service.neighbours())
            assert all(again.transport.peer_id not in it.transport.peers for it in trainers)
            await again.done.wait()
            assert "your membership was revoked by admin " in str(again.error)
            assert "(left)" in str(again.error)
            assert trainers[0].node.state.round < 40
            await members.finished()
            assert not any(it.error for it in trainers)
        assert {fields["members"] for it in trainers for fields in it.told("round")} == {3}


async def test_it_is_told_who_does_not_answer(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    with pytest.RaisesGroup(pytest.RaisesGroup(RunError, flatten_subgroups=True)):
        async with swarm(tmp_path) as members:
            gone = await members.start("a", **LEARNING)
            gone.kill()
            await gone.done.wait()
            gone.done = trio.Event()  # it is named all the same
            await members.start("watcher", wait_for=1, **WATCHING)
            await trio.sleep(30)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.02)
