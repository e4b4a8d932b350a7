"""A run ends well only with a usable model on disk: of diverged training, full disks and refused updates a node tells
at once and at the end, and keeps the last good checkpoint."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from sim_swarm import Member, put_part, swarm

from node.events.event_types import Interrupted
from node.roles import trainer
from node.system.errors import RunError
from node.training.checkpoint import Checkpoint, CheckpointStore
from node.training.node import Node
from node.training.round_report import LAST_WAITS_S
from p2ptrain.compress.base import PayloadError
from p2ptrain.sync.base import InPlace
from p2ptrain.training.evaluator import Measures

FAR_TOO_HIGH = 1e12
"""As a new user typed it."""

ROUNDS = 8


def train(**changed: Any) -> dict[str, Any]:
    return {"rounds": ROUNDS, "inner_steps": 5, "eval_every": 4, **changed}


def rounds_of(member: Member) -> list[int]:
    """Of its checkpoints."""
    return [int(folder.name[6:14]) for folder in sorted((member.folder / "checkpoint").glob("round-*"))]


async def test_a_rate_far_too_high_ends_the_run_at_once_and_no_checkpoint_is_written(tmp_path, autojump_clock):
    async with swarm(tmp_path, keep_errors=True) as members:
        member = await members.start("a", train=train(learning_rate=FAR_TOO_HIGH), node={"checkpoint_every": 1})
        await members.finished()
    assert isinstance(member.error, BaseException)
    error = only(member.error)
    assert "diverged in round 1: the held-out loss is" in error.message
    assert "no checkpoint was written before" in error.message
    assert "--set train.learning_rate=1e+11" in error.hint
    assert rounds_of(member) == []
    (told,) = member.told("diverged")
    assert (told["round"], told["checkpoint"]) == (1, None)
    assert not member.told("finished")


def only(error: BaseException) -> RunError:
    """What is in the groups around it."""
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, RunError)
    return error


async def test_who_diverges_later_names_the_last_good_checkpoint_and_it_stays(tmp_path, autojump_clock):
    async with swarm(tmp_path, keep_errors=True) as members:
        await members.start("a", train=train(rounds=3), node={"checkpoint_every": 1})
        await members.finished()
        hot = train(learning_rate=FAR_TOO_HIGH)
        member = await members.start("a", train=hot, node={"checkpoint_every": 1})
        await members.finished()
    assert member.error is not None
    kept = member.folder / "checkpoint" / "round-00000003"
    assert f"the last good checkpoint is {kept}" in only(member.error).message
    assert rounds_of(member) == [1, 2, 3], "none of the diverged state"
    newest = CheckpointStore(member.folder / "checkpoint").newest()
    assert newest is not None
    assert bool(newest.tensors["trainer.parameters"].isfinite().all())


@pytest.mark.parametrize("where", ["evaluation", "checkpoint", "interruption"])
async def test_a_model_that_jumped_in_its_last_step_is_never_saved(tmp_path, autojump_clock, where):
    """Parameters that are finite, and too large for any loss: no step was skipped that would tell."""

    def jumps(node: Node) -> None:
        def jump() -> torch.Tensor:
            return torch.full((node.inner.trainer.numel,), 1e38)

        trainer = node.inner.trainer
        if where == "interruption":
            own = trainer.state_view
            trainer.state_view = (  # type: ignore[method-assign]
                lambda: {**own(), "parameters": jump()} if stopped else own()
            )
        else:
            assert isinstance(node.strategy, InPlace)
            aggregate = node.strategy.aggregate_

            def far(theta_d: torch.Tensor, *args: Any, **keys: Any) -> Any:
                result = aggregate(theta_d, *args, **keys)
                if keys["round"] == 1:
                    object.__setattr__(result, "snapshot_d", jump())
                return result

            node.strategy.aggregate_ = far  # type: ignore[method-assign]

    stopped: list[bool] = []
    every = 2 if where == "evaluation" else 99
    async with swarm(tmp_path, keep_errors=True) as members:
        member = await members.start(
            "a", train=train(rounds=99, eval_every=every), node={"checkpoint_every": 2}, change=jumps
        )
        if where == "interruption":
            await trainer.trio.sleep(0.4)
            stopped.append(True)
            member.stop.set()
        await members.finished()
    assert member.error is not None
    assert "diverged" in only(member.error).message
    assert rounds_of(member) == []


async def test_liars_make_no_honest_node_stop(tmp_path, autojump_clock):
    """What is not finite is refused; what is finite and huge is outvoted."""
    liars = ["nan", "gaussian"]
    async with swarm(tmp_path) as members:
        for name, attack in zip("abcdefg", ["none"] * 5 + liars, strict=True):
            await members.start(name, wait_for=6, train=train(rounds=4), attack={"name": attack}, sync={"f": 2})
        await members.finished(*"abcde")
        honest = [members.members[name] for name in "abcde"]
    for member in honest:
        assert not member.told("diverged")
        assert len(member.told("round")) == 4
        assert {fields["reason"] for fields in member.told("rejected")} == {"nonfinite"}
        assert math.isfinite(member.eval_loss)
        assert rounds_of(member) == [4]


async def test_a_task_whose_batches_are_all_bad_ends_although_its_model_is_finite(tmp_path, autojump_clock):
    def bad(node: Node) -> None:
        node.inner.trainer.task.loss = lambda model, batch: model(batch[0]).sum() * math.nan  # type: ignore

        node.inner.trainer.evaluate = lambda x_d=None: 1.0  # type: ignore[method-assign]
        node.inner.trainer.measure = lambda x_d=None: Measures(loss=1.0)  # type: ignore[method-assign]

    async with swarm(tmp_path, keep_errors=True) as members:
        member = await members.start("a", train=train(), change=bad)
        await members.finished()
    assert member.error is not None
    assert "no step of 3 rounds was taken" in only(member.error).message
    assert len(member.told("round")) == 2


async def test_an_initial_model_without_a_finite_loss_is_not_trained(tmp_path, autojump_clock):
    def bad(node: Node) -> None:
        node.inner.trainer.evaluate = lambda x_d=None: math.nan  # type: ignore[method-assign]
        node.inner.trainer.measure = lambda x_d=None: Measures(loss=math.nan)  # type: ignore[method-assign]

    async with swarm(tmp_path, keep_errors=True) as members:
        member = await members.start("a", train=train(), change=bad)
        await members.finished()
    assert member.error is not None
    assert "the held-out loss of the initial model is nan" in only(member.error).message
    assert not member.told("round")


class Full(CheckpointStore):
    """On a disk that has no room while `full`."""

    full = True
    tried = 0

    def save(self, checkpoint: Checkpoint) -> Path:
        self.tried += 1
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().save(checkpoint)


def on(store: Full) -> Any:
    def change(node: Node) -> None:
        put_part(node, "checkpoints", store)

    return change


async def test_a_checkpoint_that_failed_is_told_of_and_tried_after_every_round(tmp_path, autojump_clock):
    store = Full(tmp_path / "a" / "checkpoint")
    async with swarm(tmp_path) as members:
        member = await members.start("a", train=train(), node={"checkpoint_every": 2}, change=on(store))
        while len(member.told("round")) < 4:
            await trainer.trio.sleep(0.01)
        store.full = False
        await members.finished()
        trainer.finish(member.node, member.folder, None)
    failed = [fields["round"] for fields in member.told("checkpoint_failed")]
    assert failed[:2] == [2, 3], "at the next round, and not at the next one that is due"
    warnings = [fields for fields in member.told("warning") if fields.get("about") == "checkpoint"]
    assert [bool(fields.get("recovered")) for fields in warnings] == [False, True], "people are told once"
    assert "no checkpoint of round 2: No space left on device" in warnings[0]["message"]
    assert rounds_of(member)[-1] == ROUNDS
    assert member.told("finished")


async def test_who_could_not_save_the_last_model_has_failed(tmp_path, autojump_clock):
    store = Full(tmp_path / "a" / "checkpoint")
    async with swarm(tmp_path) as members:
        member = await members.start("a", train=train(rounds=2), change=on(store))
        began = member.told("evaluated")
        await members.finished()
        assert store.tried == 1 + len(LAST_WAITS_S), "somebody may make room meanwhile"
        assert began
        with pytest.raises(RunError, match="trained 2 rounds, but the model was not saved: No space left") as caught:
            trainer.finish(member.node, member.folder, None)
    assert "node --run-dir" in caught.value.hint
    assert not (member.folder / "summary.json").exists()
    assert not member.told("finished")


async def test_room_made_while_the_last_one_waits_saves_the_run(tmp_path, autojump_clock):
    store = Full(tmp_path / "a" / "checkpoint")
    async with swarm(tmp_path) as members:
        member = await members.start("a", train=train(rounds=2), change=on(store))
        while store.tried < 3:
            await trainer.trio.sleep(0.1)
        store.full = False
        await members.finished()
        trainer.finish(member.node, member.folder, None)
    assert rounds_of(member) == [2]
    assert member.told("finished")


async def test_an_interrupted_node_on_a_full_disk_does_not_say_that_it_is_saved(tmp_path, autojump_clock):
    store = Full(tmp_path / "a" / "checkpoint")
    async with swarm(tmp_path) as members:
        member = await members.start("a", train=train(rounds=99), change=on(store))
        while len(member.told("round")) < 3:
            await trainer.trio.sleep(0.1)
        member.stop.set()
        began = trainer.trio.current_time()
        await members.finished()
        assert trainer.trio.current_time() - began < 5.0
        with pytest.raises(RunError, match="the model was not saved"):
            trainer.finish(member.node, member.folder, None, event=Interrupted)


def deaf_to(*names: str) -> Any:
    """To all updates of these."""

    def change(node: Node) -> None:
        def apply(peer: str, codec: str, payload: bytes) -> None:
            raise PayloadError("unknown_codec", codec)

        node.strategy.apply = apply  # type: ignore[method-assign]

    return change


@pytest.mark.parametrize(("f", "fails"), [(0, True), (1, False)])
async def test_who_could_take_no_update_says_so_at_once_and_at_the_end(tmp_path, autojump_clock, f, fails):
    """With more than f neighbours refused one at least was honest; of f all may be liars, who decide nothing."""
    async with swarm(tmp_path) as members:
        sync = {"f": f, "aggregator": "trimmed_mean"}
        first = await members.start("a", wait_for=1, train=train(), sync=sync, change=deaf_to())
        await members.start("b", wait_for=1, train=train(), sync=sync)
        await members.finished()
        messages = [fields["message"] for fields in first.told("warning")]
        assert sum("learns alone" in message for message in messages) == 1
        if fails:
            with pytest.raises(RunError, match="but alone: none of"):
                trainer.finish(first.node, first.folder, None)
            assert not first.told("finished")
        else:
            trainer.finish(first.node, first.folder, None)
            assert any("but alone: none of" in fields["message"] for fields in first.told("warning"))
            assert first.told("finished")
    assert rounds_of(first) == [ROUNDS], "the model is there"
