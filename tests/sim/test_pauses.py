"""Nodes that pause their training while somebody plays, or the battery is low: real nodes on a virtual clock."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import trio
from sim_swarm import Member, Swarm, played
from sizes import thorough_but

from gossip.core.limits import PAUSE_PROTOCOL
from node.participation.device_state import Battery, DeviceState, GpuUseByOthers
from node.training.pausing import LOOK_S
from node.training.round_report import moment, readings
from p2ptrain.training import Trainer

GAME = GpuUseByOthers(share=0.9, memory_bytes=6 << 30)
NOBODY = GpuUseByOthers(share=0.0, memory_bytes=0)
REACTION_S = 1.0


def machine(busy: Callable[[float], bool], battery: Callable[[float], Battery | None] = lambda now: None) -> Any:
    def read() -> DeviceState:
        now = trio.current_time()
        return DeviceState(now=now, gpu=GAME if busy(now) else NOBODY, battery=battery(now))

    return read


def watched(member: Member) -> list[float]:
    """When each of its steps began, from now on."""
    times: list[float] = []
    step = member.node.inner.trainer.take_step

    def take(*args: Any, **options: Any) -> Any:
        times.append(trio.current_time())
        return step(*args, **options)

    member.node.inner.trainer.take_step = take  # type: ignore[method-assign]
    return times


def steps_published(member: Member) -> int:
    return sum(fields["steps"] for fields in member.told("round"))


def test_a_game_pauses_training_within_a_second_and_its_end_lets_it_go_on(tmp_path: Path) -> None:
    begins, ends, calm = 3.3, 9.1, 2.0

    async def main(members: Swarm) -> tuple[Member, list[float]]:
        member = await members.start(
            "n",
            machine=machine(lambda now: began + begins <= now < began + ends),
            participation={"policy": ["gpu"], "calm_s": calm},
            train={"rounds": 40},
        )
        times = watched(member)
        await members.finished()
        return member, [time - began for time in times]

    began = 0.0
    member, times = played(main, tmp_path)
    assert not [time for time in times if begins + REACTION_S < time < ends + calm - LOOK_S]
    after = min(time for time in times if time >= ends)
    assert ends + calm - LOOK_S <= after <= ends + calm + REACTION_S
    (paused,), (unpaused,) = member.told("paused"), member.told("unpaused")
    assert begins <= paused["at"] <= begins + REACTION_S
    assert (paused["reason"], unpaused["reason"]) == ("gpu", "gpu")
    assert paused["why"] == "another program uses the GPU (90% of the time, 6144 MiB)"
    assert unpaused["seconds"] == pytest.approx(unpaused["at"] - paused["at"], abs=1e-3)
    assert member.node.state.finished
    assert member.node.pauses is not None
    assert member.node.pauses.seconds_now()["gpu"] == pytest.approx(unpaused["seconds"], abs=1e-3)
    assert steps_published(member) == len(times), "the round under way ended early, and none of its steps was lost"


def plays(now: float) -> bool:
    return now > 4.0 and now % 4.0 < (1.0 if now // 4.0 % 2 else 3.0)


def four(folder: Path, *, rounds: int, pauses: bool) -> tuple[Sequence[Member], list[float]]:
    """Three nodes that always train, and one that is away for one second, then for three, of every four; and when that
    one took its steps."""
    folder.mkdir()

    async def main(members: Swarm) -> tuple[Sequence[Member], list[float]]:
        times: list[float] = []
        for number in range(4):
            often = number == 3 and pauses
            member = await members.start(
                f"n{number}",
                wait_for=3,
                step_seconds=0.2,
                machine=machine(plays) if often else None,
                participation={"policy": ["gpu"], "calm_s": 0.5} if often else {},
                sync={"aggregator": "mean", "f": 0},
                train={"rounds": rounds, "inner_steps": 3, "eval_every": rounds, "batch_size": 32},
                node={"linger_s": 5.0},
            )
            if often:
                times = watched(member)
        await members.finished()
        return list(members.members.values()), times

    result: tuple[Sequence[Member], list[float]] = played(main, folder)
    return result


@pytest.mark.thorough
@pytest.mark.parametrize(("rounds", "least"), [pytest.param(60, 8, id="eight"), pytest.param(345, 50, id="fifty")])
def test_pauses_lose_no_step_but_the_open_one_and_harm_nobody(tmp_path: Path, rounds: int, least: int) -> None:
    still, _ = four(tmp_path / "still", rounds=rounds, pauses=False)
    paused, times = four(tmp_path / "paused", rounds=rounds, pauses=True)
    away = paused[-1]
    pauses, joins = len(away.told("paused")), len(away.told("joined"))
    assert pauses >= least
    assert joins >= pauses // 4, "after the longer ones it is further behind than max_staleness"
    assert len(times) - steps_published(away) == joins, "one step before each model that it took"
    assert not away.told("neighbour_lost")[:-3], "it stays everybody's neighbour until the end"
    for before, after in zip(still[:3], paused[:3], strict=True):
        assert after.told("round")[-1]["at"] == pytest.approx(before.told("round")[-1]["at"], rel=0.02)
    others, alone = (fmean(member.eval_loss for member in run[:3]) for run in (paused, still))
    assert others < 1.15 * alone


@pytest.mark.parametrize("strategy", thorough_but({"default"}, ["default", "allreduce"]))
def test_nobody_waits_for_an_announced_pause(tmp_path: Path, strategy: str) -> None:
    """Three of four are away for twelve seconds. Measured without a word: four rounds of 3.9 s in place of 2.1 s where
    models are exchanged, and rounds that end at their deadline elsewhere."""
    begins, ends, known_s = 12.0, 24.0, 3.0
    sync = {"aggregator": "mean", "f": 0} if strategy == "default" else {"strategy": strategy}

    async def main(members: Swarm) -> tuple[float, dict[str, Member], dict[str, set[str]]]:
        began = trio.current_time()
        opened: dict[str, set[str]] = {}
        for number in range(4):
            away = number > 0
            member = await members.start(
                f"n{number}",
                wait_for=3,
                step_seconds=0.2,
                machine=machine(lambda now: began + begins <= now < began + ends) if away else None,
                participation={"policy": ["gpu"], "calm_s": 0.5} if away else {},
                sync=sync,
                network={"quorum": 1.0},
                train={"rounds": 40, "inner_steps": 10, "eval_every": 40, "batch_size": 4},
            )
            opened[member.name] = protocols_of(member)
        await trio.sleep_until(began + ends)
        return began, members.members, opened

    began, members, opened = played(main, tmp_path)
    rounds = members["n0"].told("round")
    early = [fields["at"] for fields in rounds if fields["at"] < began + begins]
    late = [fields for fields in rounds if fields["at"] > began + begins + known_s]
    usual_s = fmean(after - before for before, after in pairwise(early[2:]))
    assert max(after["at"] - before["at"] for before, after in pairwise(late)) < 1.1 * usual_s
    assert {fields["closed_by"] for fields in late} == {"alone"}
    if strategy == "default":
        assert {fields["members"] for fields in late[:2]} == {4}, "they belong to its rounds until they are too stale"
    assert {name for name, protocols in opened.items() if PAUSE_PROTOCOL in protocols} == {"n1", "n2", "n3"}


def protocols_of(member: Member) -> set[str]:
    """The protocols of the streams that it opens, from now on."""
    opened: set[str] = set()
    open_stream = member.transport.open_stream

    def noted(peer: Any, protocol: str, **options: Any) -> Any:
        opened.add(protocol)
        return open_stream(peer, protocol, **options)

    member.transport.open_stream = noted  # type: ignore[method-assign]
    return opened


def test_a_stop_while_paused_ends_at_once_with_a_checkpoint_and_the_next_start_goes_on(tmp_path: Path) -> None:
    """The memory of the device is given back meanwhile: the checkpoint is made of what is on the host."""

    async def main(members: Swarm) -> tuple[float, Member, Member]:
        first = await members.start(
            "n", machine=machine(lambda now: now > 2.0), participation={"policy": ["gpu"]}, train={"rounds": 20}
        )
        trainer = first.node.inner.trainer
        assert isinstance(trainer, Trainer)
        trainer.give_back_memory = trainer.park  # type: ignore[assignment, method-assign]  # on a CPU, too
        await trio.sleep(5.0)
        assert trainer.flat.data_d.untyped_storage().nbytes() == 0
        began = trio.current_time()
        first.stop.set()
        await first.done.wait()
        took = trio.current_time() - began
        again = await members.start("n", machine=machine(lambda now: False), train={"rounds": 20})
        await again.done.wait()
        return took, first, again

    took, first, again = played(main, tmp_path)
    assert took <= 1.0
    assert first.told("checkpoint")
    assert again.resumed
    assert again.node.pauses is None, "without policies"
    assert again.node.state.finished
    assert again.node.inner.trainer.global_step == steps_published(first) + steps_published(again)


def test_a_game_that_leaves_no_room_is_waited_for(tmp_path: Path) -> None:
    async def main(members: Swarm) -> Member:
        member = await members.start(
            "n",
            machine=machine(lambda now: 1.0 < now < 3.0),
            participation={"policy": ["gpu"], "calm_s": 0.5},
            train={"rounds": 12},
        )
        trainer = member.node.inner.trainer
        assert isinstance(trainer, Trainer)
        take = trainer.take_memory

        def full() -> None:
            if trio.current_time() < 12.0:
                raise torch.OutOfMemoryError("full")
            take()

        trainer.give_back_memory = trainer.park  # type: ignore[assignment, method-assign]
        trainer.take_memory = full  # type: ignore[method-assign]
        await member.done.wait()
        return member

    member = played(main, tmp_path)
    (warning,) = [each for each in member.told("warning") if each.get("about") == "participation"]
    assert "no room" in warning["message"]
    assert member.node.state.finished


def test_a_node_that_always_trains_has_no_task_for_it(tmp_path: Path) -> None:
    def names(task: trio.lowlevel.Task) -> list[str]:
        return [task.name, *(name for n in task.child_nurseries for child in n.child_tasks for name in names(child))]

    async def main(members: Swarm) -> tuple[list[str], list[str]]:
        found = []
        for policies in ([], ["gpu"]):
            await members.start(
                f"n{len(policies)}",
                machine=machine(lambda now: False),
                participation={"policy": policies},
                train={"rounds": 40},
            )
            await trio.sleep(1.0)
            root = trio.lowlevel.current_root_task()
            assert root is not None
            found.append([name for name in names(root) if name == "pauses"])
        return found[0], found[1]

    assert played(main, tmp_path) == ([], ["pauses"])


def test_a_node_shows_who_says_that_it_is_paused_and_until_when(tmp_path: Path) -> None:
    async def main(members: Swarm) -> None:
        one = await members.start("one", train={"rounds": 400})
        other = await members.start("other", wait_for=1, train={"rounds": 400})
        await trio.sleep(5.0)
        whom = other.node.peer_id

        def shown() -> tuple[bool, float | None, int]:
            it = moment(one.node, None).peers[whom]
            return it["paused"], it["returns_at"], readings(one.node).neighbours_paused

        assert shown() == (False, None, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.node.service.say_paused, lambda: 3600.0)
            await trio.sleep(0.2)
            paused, returns_at, count = shown()
            nursery.cancel_scope.cancel()
        assert (paused, count) == (True, 1)
        assert returns_at == pytest.approx(time.time() + 3600.0, abs=90.0)
        assert returns_at is not None
        assert returns_at % 60 == 0
        one.stop.set()
        other.stop.set()
        await members.finished()

    played(main, tmp_path)
