"""The quadratic task: what is known of it in closed form."""

import numpy as np
import pytest
import torch

from p2ptrain.tasks import Shard, TaskError
from p2ptrain.tasks.quadratic import Quadratic
from p2ptrain.training import TrainConfig
from p2ptrain.training.batched_trainer import BatchedTrainer

QUADRATIC = Quadratic(dimension=8, functions=6, spread=1.0, condition=4.0, noise=0.5)


def held_out(task: Quadratic, x_d: torch.Tensor, limit: int = 1000) -> float:
    model = task.build_model()
    with torch.no_grad():
        model.x_d.copy_(x_d)
        batches = task.eval_batches(limit)
        losses = [float(task.loss(model, batch)) * task.tokens(batch) for batch in batches]
    return sum(losses) / sum(map(task.tokens, batches))


def test_the_optimum_is_the_lowest_point_and_held_out_loss_is_the_mean_function() -> None:
    optimum_d = torch.from_numpy(QUADRATIC.optimum_d).float()
    assert held_out(QUADRATIC, optimum_d) == pytest.approx(QUADRATIC.lowest, rel=1e-5)
    for index in range(8):
        for step in (-0.1, 0.1):
            moved_d = optimum_d.clone()
            moved_d[index] += step
            excess = 0.5 * float(QUADRATIC.curvature_n.mean()) * step**2  # f is a quadratic of the mean curvature
            assert held_out(QUADRATIC, moved_d) - QUADRATIC.lowest == pytest.approx(excess, rel=1e-2)
            loss = held_out(QUADRATIC, moved_d)
            assert QUADRATIC.derived_metrics(loss)["excess"] == pytest.approx(excess, rel=1e-2)


def test_gradients_are_those_of_the_shards_function_with_the_noise_asked_for() -> None:
    model = QUADRATIC.build_model()
    batch = QUADRATIC.train_batch(0, seed=1, shard=Shard(index=2, count=6), size=20_000)
    (gradient_d,) = torch.autograd.grad(QUADRATIC.loss(model, batch), [model.x_d])
    exact_d = QUADRATIC.curvature_n[2] * (model.x_d.detach().double().numpy() - QUADRATIC.minimum_nd[2])
    np.testing.assert_allclose(gradient_d.numpy(), exact_d, atol=4 * 0.5 / np.sqrt(20_000))
    noise_sd = (batch[0].double().numpy() - QUADRATIC.minimum_nd[2]) * QUADRATIC.curvature_n[2]
    assert noise_sd.std() == pytest.approx(0.5, rel=0.02)


def test_a_shard_has_its_functions_and_more_shards_than_functions_are_refused() -> None:
    quadratic = Quadratic(dimension=2, functions=5, noise=0.0)
    targets, _ = quadratic.train_batch(0, seed=0, shard=Shard(index=1, count=2), size=64)
    own = {tuple(row) for row in quadratic.minimum_nd[1::2].astype(np.float32).tolist()}
    assert {tuple(row) for row in targets.tolist()} == own
    with pytest.raises(TaskError, match=r"set task\.functions"):
        quadratic.train_batch(0, seed=0, shard=Shard(index=0, count=6), size=1)


def test_sgd_without_noise_comes_to_its_functions_minimum_as_the_rate_says() -> None:
    """x_t - b = (1 - rate a)^t (x_0 - b), for each row of its own."""
    quadratic = Quadratic(dimension=8, functions=3, condition=4.0, noise=0.0)
    config = TrainConfig(
        rounds=4,
        inner_steps=5,
        batch_size=2,
        warmup_steps=0,
        clip_norm=0.0,
        device="cpu",
        optimizer="sgd",
        momentum=0.0,
        weight_decay=0.0,
    )
    shards = [Shard(index=index, count=3) for index in range(3)]
    trainer = BatchedTrainer(quadratic, config, shards, [0, 0, 0])
    begin_nd, rate = trainer.x_nd.double().numpy() - quadratic.minimum_nd, 0.1
    for step in range(10):
        trainer.step([0, 1, 2], [step] * 3, [rate] * 3)
    shrunk_n = (1 - rate * quadratic.curvature_n) ** 10
    np.testing.assert_allclose(trainer.x_nd.numpy() - quadratic.minimum_nd, shrunk_n[:, None] * begin_nd, atol=1e-5)
