"""The example of five clinics: a private step, a secure sum of all five, and a head that nobody else has, in one swarm.

Whole nodes with the settings that the guide shows, for fewer rounds, under the virtual clock and over the in-memory
network; what a user reads afterwards (what was spent, the cross-site table) is made of their folders.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import trio.testing
from sim_swarm import Member, Swarm, swarm

from examples.clinics.compare import CLINICS, SETTINGS
from examples.clinics.task import create
from node.config.schema import Config, from_raw
from node.privacy.budget import PrivacyBudget
from node.privacy.ledger import PrivacyLedger, read_ledger
from node.reporting.cross_site import cross_site
from node.roles.assembly import own_trainer
from node.system.run_dir import EVENTS, PRIVACY
from p2ptrain.privacy.accounting import RenyiAccountant
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import TaskError
from p2ptrain.training import Learner, Trainer

ROUNDS = 2


def settings(**over: Any) -> dict[str, Any]:
    raw: dict[str, Any] = tomllib.loads(SETTINGS.read_text())
    return {name: keys | over.get(name, {}) for name, keys in raw.items()}


def test_every_patient_is_in_one_clinic_and_clinics_are_unlike() -> None:
    task = create()
    shards = [Shard(index=index, count=CLINICS) for index in range(CLINICS)]
    trained_on = [task.examples_at(shard, range(task.example_count(shard))) for shard in shards]
    held_out = [task.shard_eval_batches(shard, 1000)[0] for shard in shards]
    everybody = torch.cat([features for features, _ in trained_on + held_out])
    assert len(everybody) == len(everybody.unique(dim=0)) == 569, "no patient is twice, none is left out"
    assert len(task.eval_batches(1000)[0][1]) == sum(len(labels) for _, labels in held_out)
    ill = [float(labels.float().mean()) for _, labels in trained_on]
    assert min(ill) < 0.1 < 0.6 < max(ill)
    sizes = [len(labels) for _, labels in trained_on]
    assert max(sizes) > 2 * min(sizes)


def test_settings_spend_what_they_say() -> None:
    config = from_raw(settings())
    accountant = RenyiAccountant()
    release = config.privacy.find().release(rate=config.privacy.rate, count=config.train.total_steps)
    assert release is not None
    spent = accountant.epsilon(config.privacy.delta, [release])
    assert config.privacy.epsilon is not None
    assert 0.99 * config.privacy.epsilon < spent <= config.privacy.epsilon


def test_another_number_of_clinics_is_refused() -> None:
    with pytest.raises(TaskError, match="--nodes 5"):
        create().example_count(Shard(index=0, count=4))


@pytest.mark.thorough
async def test_five_clinics_learn_in_secret_with_heads_of_their_own(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        nodes = [await clinic(members, index) for index in range(CLINICS)]
        await members.finished()
    for node in nodes:
        sums = node.told("secure_round")
        assert [(each["survivors"], each["groups_here"]) for each in sums] == [(CLINICS, 1)] * ROUNDS
        assert torch.equal(node.node.strategy.anchor_d, nodes[0].node.strategy.anchor_d), "one shared body"
        assert read_ledger(node.folder / PRIVACY).releases, "nothing was noised without an entry"
        (node.folder / EVENTS).touch()  # that a real node writes its own into
    first, second, *_ = [trainer_of(node).local_values() for node in nodes]
    assert set(first) == {"head.weight", "head.bias"}
    assert not torch.equal(first["head.weight"], second["head.weight"])
    assert nodes[0].node.strategy.anchor_d.numel() == 30 * 16 + 16, "no head is among what is summed"
    found = cross_site(tmp_path)
    assert [split.predictions for split in found.splits] == [34, 11, 30, 13, 26]


async def clinic(members: Swarm, index: int) -> Member:
    def counted(folder: Path, config: Config, peer_id: str) -> Learner:
        budget = PrivacyBudget(config.privacy, PrivacyLedger(folder / PRIVACY))
        return own_trainer(config, peer_id, spend=budget.spend)

    node = {"shard_index": index, "shard_count": CLINICS, "checkpoint_every": 1}
    told = settings(train={"rounds": ROUNDS, "eval_every": ROUNDS}, node=node)
    return await members.start(f"n{index}", wait_for=CLINICS - 1, trainer_of=counted, **told)


def trainer_of(member: Member) -> Trainer:
    trainer = member.node.inner.trainer
    assert isinstance(trainer, Trainer)
    return trainer
