"""Models that are stepped together do what each would do alone."""

import pytest
import torch

from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import TaskError
from p2ptrain.training import Trainer
from p2ptrain.training.batched_trainer import BatchedTrainer
from p2ptrain.training.train_config import TrainConfig, lr_at

ROWS = 3


def config(**settings: object) -> TrainConfig:
    given = {"rounds": 4, "inner_steps": 5, "batch_size": 8, "threads": 1, "warmup_steps": 3, "device": "cpu"}
    return TrainConfig(**{**given, **settings})


def both(task, train):
    shards = [Shard(index=index, count=ROWS) for index in range(ROWS)]
    return BatchedTrainer(task, train, shards, [train.seed] * ROWS), [Trainer(task, train, shard) for shard in shards]


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "sgd", "learning_rate": 0.1}, {"optimizer": "sgd", "nesterov": True}, {"clip_norm": 0.05}],
    ids=["adamw", "sgd", "nesterov", "clipped"],
)
def test_each_row_is_a_trainer(settings):
    train = config(**settings)
    together, alone = both(tasks.get("digits"), train)
    for step in range(6):
        rows = list(range(ROWS)) if step % 2 else [0, 2]  # rows of different ages
        steps = [alone[row].global_step for row in rows]
        losses = together.step(rows, steps, [lr_at(at, train.total_steps, train) for at in steps])
        told = [alone[row].step() for row in rows]
        assert losses.tolist() == pytest.approx(told, rel=1e-4)
    for row, trainer in enumerate(alone):
        torch.testing.assert_close(together.x_nd[row], trainer.vector(), rtol=1e-4, atol=2e-6)
    held_out = [trainer.evaluate() for trainer in alone]
    assert together.evaluate(together.x_nd).tolist() == pytest.approx(held_out, rel=1e-4)


def test_text_is_stepped_together_too():
    train = config(batch_size=2, eval_examples=4)
    together, alone = both(tasks.get("byte-lm", size="pico"), train)
    together.step([0, 1, 2], [0, 0, 0], [1e-3] * 3)
    alone[1].step()
    assert together.evaluate(together.x_nd[1:2]).item() != together.evaluate(together.genesis_d[None]).item()
    assert not torch.equal(together.x_nd[0], together.x_nd[1])


def test_a_step_that_is_not_finite_is_not_taken():
    together, _ = both(tasks.get("digits"), config())
    together.x_nd[1] = float("nan")
    before_d = together.x_nd[0].clone()
    together.step([0, 1], [0, 0], [1e-3, 1e-3])
    assert together.skipped_n.tolist() == [0, 1, 0]
    assert not torch.equal(together.x_nd[0], before_d)
    assert together.x_nd[1].isnan().all()


@pytest.mark.parametrize("settings", [{"optimizer": "muon"}, {"drift": "scaffold"}, {"grad_accumulation": 2}])
def test_what_rows_cannot_do_is_refused(settings):
    with pytest.raises(TaskError, match="stepped together"):
        both(tasks.get("digits"), config(**settings))
