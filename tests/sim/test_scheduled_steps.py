"""Real nodes whose rounds are of unequal lengths, by `train.inner_steps_schedule`: each trains as many steps as the
settings say, restarted in the middle, come late, or slower than the others."""

from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from sim_swarm import Member, swarm
from sizes import thorough_but
from swarm_founding import found_private

from node.config.schema import from_raw
from node.swarm import agreed_settings
from node.system.errors import UsageError
from p2ptrain.sync import StepsAnchor
from p2ptrain.training import TrainConfig, lr_at

ROUNDS = 12
TRAIN = {"rounds": ROUNDS, "inner_steps": 6, "eval_every": ROUNDS, "learning_rate": 2e-3}


def planned(schedule: str, **changes: Any) -> TrainConfig:
    return TrainConfig(**{"warmup_steps": 5, **TRAIN, "inner_steps_schedule": schedule, **changes})


def steps_of(member: Member) -> list[int]:
    return [fields["steps"] for fields in member.told("round")]


@pytest.mark.parametrize(
    ("strategy", "schedule"),
    thorough_but(
        {("tracked_gossip", "qsr"), ("allreduce", "post_local")},
        [
            ("tracked_gossip", "qsr"),
            ("allreduce", "post_local"),
            ("mime", "qsr"),
            ("sparta", "qsr"),
            ("des_loc", "qsr"),
        ],
    ),
)
async def test_all_rounds_have_the_schedules_steps_and_rates(
    strategy: str, schedule: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    train, told = planned(schedule), {**TRAIN, "inner_steps_schedule": schedule}
    async with swarm(tmp_path) as members:
        for number in range(4):
            await members.start(f"n{number}", wait_for=3, sync={"strategy": strategy}, train=told)
        await members.finished()
        nodes = list(members.members.values())
    factor = nodes[0].node.config.sync.spec().local_rate
    for member in nodes:
        assert steps_of(member) == [train.steps_in(round_) for round_ in range(ROUNDS)]
        rates = [fields["learning_rate"] for fields in member.told("round")]
        assert rates[-1] == pytest.approx(factor * lr_at(train.total_steps - 1, train.total_steps, train))
        assert member.eval_loss < 0.5 * member.node.journal.first["eval_loss"]
        assert not member.told("rejected")
        assert not member.told("joined")
    if strategy == "mime":  # its anchor takes the round's steps, the same ones everywhere
        anchors = [member.node.strategy.state_dict()["anchor"] for member in nodes]
        assert all(torch.equal(anchor_d, anchors[0]) for anchor_d in anchors)
        assert all(isinstance(member.node.strategy, StepsAnchor) for member in nodes)


async def test_one_restarted_in_the_middle_goes_on_with_the_schedule(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    train, told = planned("qsr"), {**TRAIN, "inner_steps_schedule": "qsr"}
    keeping = {"checkpoint_every": 4}
    async with swarm(tmp_path) as members:
        for name in ("a", "b"):
            await members.start(name, wait_for=1, train=told, node=keeping)
        again = await members.start("c", wait_for=2, train=told, node=keeping)
        while again.node.state.closed_round is None or again.node.state.closed_round < 8:  # noqa: ASYNC110
            await trio.sleep(0.01)
        again.kill()
        await again.done.wait()
        back = await members.start("c", wait_for=2, train=told, node=keeping)
        await members.finished()
    assert back.resumed
    done = [(fields["round"] - 1, fields["steps"]) for fields in back.told("round")]
    assert done[-1] == (ROUNDS - 1, train.steps_in(ROUNDS - 1))
    first = done[0][0]
    assert 8 <= first < ROUNDS
    assert all(steps <= train.steps_in(round_) for round_, steps in done)
    for name in ("a", "b"):
        assert steps_of(members.members[name]) == [train.steps_in(round_) for round_ in range(ROUNDS)]


async def test_a_newcomer_takes_up_the_round_and_its_steps(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    train, told = planned("qsr"), {**TRAIN, "inner_steps_schedule": "qsr"}
    async with swarm(tmp_path) as members:
        first = [await members.start(name, wait_for=2, train=told) for name in ("a", "b", "c")]
        while (first[0].node.state.closed_round or 0) < 6:  # noqa: ASYNC110
            await trio.sleep(0.01)
        late = await members.start("late", wait_for=1, train=told)
        await members.finished()
    (joined,) = late.told("joined")
    rounds = {fields["round"] - 1: fields["steps"] for fields in late.told("round")}
    assert joined["round"] >= 6
    assert list(rounds) == list(range(joined["round"], ROUNDS))
    assert rounds == {round_: train.steps_in(round_) for round_ in rounds}
    assert late.node.inner.trainer.global_step == train.total_steps, "it counts as the others do"


@pytest.mark.thorough
async def test_a_slow_machine_does_its_share_of_every_round(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    told = {**TRAIN, "rounds": 20, "inner_steps": 12, "inner_steps_schedule": "qsr"}
    train = planned("qsr", rounds=20, inner_steps=12)
    pace = {"pace": "dylu", "linger_s": 5.0}
    async with swarm(tmp_path) as members:
        for number, seconds in enumerate((0.05, 0.05, 0.05, 0.2)):
            await members.start(f"n{number}", wait_for=3, step_seconds=seconds, train=told, node=pace)
        await members.finished()
        *fast, slow = members.members.values()
    for member in fast:
        assert steps_of(member) == [train.steps_in(round_) for round_ in range(20)]
    plans = [fields["inner_steps"] for fields in slow.told("round")][4:-1]  # each of the round after
    wanted = [train.steps_in(round_ + 1) / 4 for round_ in range(4, 19)]
    assert all(abs(plan - share) <= 1 + 0.1 * share for plan, share in zip(plans, wanted, strict=True))


async def test_more_rounds_are_another_plan_that_all_find(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    more = planned("qsr", rounds=ROUNDS + 6)
    async with swarm(tmp_path) as members:
        for rounds in (ROUNDS, ROUNDS + 6):
            told = {**TRAIN, "rounds": rounds, "inner_steps_schedule": "qsr"}
            again = [await members.start(name, wait_for=1, train=told) for name in ("a", "b")]
            await members.finished()
    for member in again:
        assert member.resumed
        assert steps_of(member) == [more.steps_in(round_) for round_ in range(ROUNDS, ROUNDS + 6)]


def test_a_manifest_has_the_schedule_where_it_is_not_the_default() -> None:
    """So the digests of swarms of the release before stay what they were, and older members take the others'."""
    plain = agreed_settings.settings_of(from_raw({}))
    assert not {"inner_steps_schedule", "least_inner_steps", "synchronous_share"} & plain["train"].keys()
    config = from_raw({"train": {"inner_steps_schedule": "qsr", "least_inner_steps": 3}})
    told = agreed_settings.settings_of(config)
    assert from_raw(agreed_settings.raw_of(told)).train == config.train
    for schedule in ("post_local", "constant"):
        given = {"train": {"inner_steps_schedule": schedule}}
        with pytest.raises(UsageError, match="contradicts the swarm"):
            agreed_settings.under(told, "lab", given)
    agreed_settings.under(plain, "lab", {"train": {"inner_steps_schedule": "constant"}})
    with pytest.raises(UsageError, match="there it is 'constant'"):
        agreed_settings.under(plain, "lab", {"train": {"inner_steps_schedule": "qsr"}})


async def test_a_private_swarms_manifest_says_it(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    learning: dict[str, Any] = {"train": {**TRAIN, "inner_steps_schedule": "post_local"}, "sync": {"f": 0}}
    found_private(tmp_path, learning, ("a", "b"))
    train = planned("post_local")
    async with swarm(tmp_path) as members:
        for name in ("a", "b"):
            await members.start(name, wait_for=1, follows=True, **learning)
        await members.finished()
        for member in members.members.values():
            assert steps_of(member) == [train.steps_in(round_) for round_ in range(ROUNDS)]
