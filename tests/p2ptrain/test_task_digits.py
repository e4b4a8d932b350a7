"""The digits task: who holds which examples."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from p2ptrain.tasks import digits
from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.digits import MAX_PIXEL, PARTITION_SEED, Digits
from p2ptrain.training import TrainConfig, Trainer


def shards(task, count):
    return [task.examples(Shard(index=index, count=count)) for index in range(count)]


def labels_held(task, examples):
    return len(set(task.train.labels[torch.from_numpy(examples)].tolist()))


@pytest.mark.parametrize("options", [{}, {"partition": "label"}, {"partition": "dirichlet", "alpha": 0.05}])
@pytest.mark.parametrize("count", [1, 4, 40])
def test_every_example_has_one_owner_and_no_shard_is_empty(options, count):
    task = Digits(**options)
    dealt = shards(task, count)
    assert all(len(part) for part in dealt)
    assert sorted(np.concatenate(dealt)) == list(range(len(task.train.labels)))
    again = shards(Digits(**options), count)
    assert all(np.array_equal(a, b) for a, b in zip(dealt, again, strict=True))


def test_they_are_those_of_scikit_learn():
    """Whose file is read without it: where it lies, and what stands in it, are scikit-learn's to change."""
    task = Digits()
    theirs = load_digits()
    pools = (task.held_out, task.train)
    order = np.random.default_rng(PARTITION_SEED).permutation(len(theirs.target))
    assert np.array_equal(torch.cat([pool.images for pool in pools]).numpy() * MAX_PIXEL, theirs.data[order])
    assert np.array_equal(torch.cat([pool.labels for pool in pools]).numpy(), theirs.target[order])


def test_without_scikit_learn_it_says_so(monkeypatch):
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TaskError, match="scikit-learn"):
        digits._pools.__wrapped__()


def test_a_fifth_is_held_out():
    task = Digits()
    assert len(task.held_out.labels) == 359
    assert len(task.train.labels) == 1797 - 359


def test_partitions_differ_as_they_should():
    even, skewed, by_label = (
        [labels_held(task, part) for part in shards(task, 5)]
        for task in (Digits(), Digits(partition="dirichlet", alpha=0.1), Digits(partition="label"))
    )
    assert min(even) == 10
    assert np.mean(skewed) < 9
    assert max(by_label) <= 4


def test_a_small_alpha_is_more_unequal():
    spread = [np.std([len(part) for part in shards(Digits(partition="dirichlet", alpha=a), 8)]) for a in (0.1, 100.0)]
    assert spread[0] > 4 * spread[1]


def test_too_many_shards_are_refused():
    with pytest.raises(TaskError, match="too few for 2000 shards"):
        Digits().train_batch(0, seed=0, shard=Shard(index=0, count=2000), size=4)


def test_it_can_be_learned():
    task = Digits()
    trainer = Trainer(task, TrainConfig(rounds=10, batch_size=64, device="cpu", threads=1), Shard())
    before = task.accuracy(trainer.model_with())
    for _ in range(200):
        trainer.step()
    assert before < 0.3
    assert task.accuracy(trainer.model_with()) > 0.93
