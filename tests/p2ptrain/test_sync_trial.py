"""zeno under every strategy: models are tried on local data, and those that do worst are left out."""

import pytest
import torch

from p2ptrain import tasks
from p2ptrain.sync import SyncConfig, SyncStrategy, build
from p2ptrain.sync.vectors import to_bytes
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer

NUMEL = 9000
AIM = 3.0
STRATEGIES = ["tracked_gossip", "streaming", "sparse_loco", "async", "diloco"]
LIARS, HONEST = 4, 2
"""More liars than any rule that only counts could bear."""


def distance(x_d: torch.Tensor, round: int) -> float:
    """A loss: how far from the aim."""
    return float((x_d - AIM).abs().mean())


def fault_tolerance(strategy: str) -> SyncStrategy:
    config = SyncConfig(strategy=strategy, compressor="none", aggregator="zeno", f=LIARS)
    made = build(config, torch.zeros(NUMEL), own="me", judge=distance)
    for index in range(HONEST):
        made.track(f"honest{index}", to_bytes(torch.full((NUMEL,), 1.0)))
    for index in range(LIARS):
        made.track(f"liar{index}", to_bytes(torch.full((NUMEL,), -50.0)))
    return made


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_moves_towards_those_who_do_well(strategy: str) -> None:
    made = fault_tolerance(strategy)
    theta_d = torch.full((NUMEL,), 0.5)
    made.encode(theta_d, round=0)
    everybody = dict.fromkeys([f"honest{index}" for index in range(HONEST)] + [f"liar{n}" for n in range(LIARS)], 0)
    result = made.aggregate(theta_d, everybody, round=0)
    after_d = theta_d + result.correction_d
    assert result.robust
    assert result.members == 1 + HONEST + LIARS
    assert distance(after_d, 0) < distance(theta_d, 0), "two of three who do well are nearer than we are"
    assert float(after_d.min()) >= 0.5 - 1e-5, "nobody has pulled the other way, in any coordinate"


def test_all_vectors_of_a_round_are_tried_in_that_round() -> None:
    rounds: list[int] = []

    def judge(x_d: torch.Tensor, round: int) -> float:
        assert x_d.shape == (NUMEL,), "whole models, also where a fragment is averaged"
        rounds.append(round)
        return 0.0

    made = build(SyncConfig(strategy="streaming", aggregator="zeno", f=1), torch.zeros(NUMEL), judge=judge)
    made.track("one", None)
    made.encode(torch.ones(NUMEL), round=3)
    made.aggregate(torch.ones(NUMEL), {"one": 0}, round=3)
    assert rounds == [3, 3]


@pytest.mark.parametrize("name", ["zeno", "nnm+zeno"])
def test_without_a_judge_it_is_refused_in_one_line(name: str) -> None:
    config = SyncConfig(aggregator=name, f=1)
    with pytest.raises(ValueError, match="tries models on local data"):
        build(config, torch.zeros(NUMEL))


def test_the_trainers_judge_is_a_batch_of_own_data_another_in_each_round() -> None:
    task = tasks.get("digits")
    trainer = Trainer(task, TrainConfig(batch_size=32, device="cpu"), Shard(index=1, count=4))
    x_d = trainer.vector()
    assert trainer.judge(x_d, 0) == trainer.judge(x_d, 0) != trainer.judge(x_d, 1)
    before = trainer.judge(x_d, 5)
    for _ in range(100):
        trainer.step()
    assert trainer.judge(trainer.vector(), 5) < before
