"""Whole nodes whose models differ in shape: they are in one run, rounds close as ever, what is sent is logits, a node
that is restarted goes on with its own model, and the run's folder has each member's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sim_swarm import Member, Swarm, played

from node.roles.assembly import run_info
from node.system.errors import UsageError
from node.system.run_dir import CHECKPOINTS, EVENTS
from node.training.checkpoint import CheckpointStore
from node.training.evaluation import build_models, find_models, mean_model
from p2ptrain.saved.models import SavedModelError, models_of, state_dict
from p2ptrain.training.logits_trainer import LogitsTrainer

PUBLIC = 40
SHAPES = ("mlp", "wide", "conv")


async def start(members: Swarm, name: str, *, index: int, **sections: Any) -> Member:
    task = {"name": "digits", "partition": "dirichlet", "alpha": 0.5, "public": PUBLIC, **sections.pop("task", {})}
    train = {"rounds": 4, "inner_steps": 3, "eval_every": 2, "shares": "logits", **sections.pop("train", {})}
    node = {"checkpoint_every": 1, "shard_index": index, "shard_count": 3, **sections.pop("node", {})}
    task.setdefault("model", SHAPES[index % 3])
    return await members.start(name, task=task, train=train, node=node, **sections)


def play(folder: Path, count: int = 3, **sections: Any) -> list[Member]:
    async def main(members: Swarm) -> list[Member]:
        found = [await start(members, f"n{each}", index=each, wait_for=count - 1, **sections) for each in range(count)]
        await members.finished()
        return found

    members = played(main, folder)
    for member in members:
        (member.folder / EVENTS).touch()  # that a real node writes its own into
    return members


def logits_of(member: Member) -> LogitsTrainer:
    trainer = member.node.inner.trainer
    assert isinstance(trainer, LogitsTrainer)
    return trainer


def test_models_of_three_shapes_are_one_run_and_hear_each_other(tmp_path: Path) -> None:
    members = play(tmp_path)
    trainers = [logits_of(member) for member in members]
    assert len({trainer.own.numel for trainer in trainers}) == 3
    for member, trainer in zip(members, trainers, strict=True):
        assert trainer.numel == 10 * PUBLIC
        assert len(member.told("round")) == 4
        assert max(each["members"] for each in member.told("round")) == 3
        estimates = [
            member.node.strategy.estimate_model(other.node.peer_id) for other in members if other is not member
        ]
        assert all(held is not None and held.shape == (10 * PUBLIC,) for held in estimates)
        assert any(bool(held.abs().sum() > 0) for held in estimates if held is not None), "they have said something"


def test_the_folder_has_each_member_s_own_model_and_no_mean(tmp_path: Path) -> None:
    members = play(tmp_path)
    found = find_models(tmp_path)
    loaded = build_models(found)
    assert [model.trainer.numel for model in loaded] == [logits_of(member).own.numel for member in members]
    for member, model in zip(members, loaded, strict=True):
        assert torch.equal(model.vector_d, logits_of(member).own.vector())
        assert model.evaluate() == pytest.approx(logits_of(member).evaluate())
    with pytest.raises(UsageError, match="have no mean"):
        mean_model(loaded)
    with pytest.raises(SavedModelError, match="name one"):
        state_dict(models_of(tmp_path).models)
    assert state_dict(models_of(tmp_path, members[0].name).models)


def test_a_node_that_is_restarted_goes_on_with_its_model_and_what_it_had_heard(tmp_path: Path) -> None:
    async def main(members: Swarm) -> Member:
        for each in range(3):
            await start(members, f"n{each}", index=each, wait_for=2)
        await members.finished()
        return await start(members, "n0", index=0)

    again = played(main, tmp_path)
    state = logits_of(again).state_dict()
    saved = CheckpointStore(again.folder / CHECKPOINTS).newest()
    assert saved is not None
    assert again.resumed
    assert torch.equal(state["parameters"], saved.trainer_state["parameters"])
    assert torch.equal(state["consensus.target"], saved.trainer_state["consensus.target"])
    assert bool(state["consensus.target"].abs().sum() > 0)


def test_another_public_batch_is_another_run_and_another_shape_is_not(tmp_path: Path) -> None:
    ids = {}
    for folder, task in (("a", {"model": "mlp"}), ("b", {"model": "conv"}), ("c", {"public": PUBLIC + 1})):
        (tmp_path / folder).mkdir()
        (member,) = play(tmp_path / folder, 1, task=task, train={"rounds": 1})
        trainer = logits_of(member)
        run = run_info(member.node.config, trainer.fingerprint, trainer.initial_vector(), trainer.identity)
        ids[folder] = run
    assert ids["a"] == ids["b"]
    assert ids["a"].run_id != ids["c"].run_id
