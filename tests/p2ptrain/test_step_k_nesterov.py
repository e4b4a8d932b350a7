"""SNOO (2510.15830): a node alone takes nesterov's outer step on its own movement, every K steps; without momentum it
is Lookahead (1907.08610). Against both as their papers write them, in float64."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from p2ptrain.sync import SyncConfig, build
from p2ptrain.sync.base import AllReduceStrategy, SyncStrategy
from p2ptrain.tasks import Shard, get
from p2ptrain.training import TrainConfig, Trainer

D = 6
ROUNDS = 8
K = 5
MOMENTA = [(0.9, 0.7), (0.5, 0.3), (0.0, 0.5), (0.0, 1.0)]


def fast(w_d: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """K steps of an inner optimizer, from the slow weights."""
    for _ in range(K):
        w_d = w_d - 0.1 * (w_d - 1 + generator.normal(size=D))
    return w_d


def snoo(*, mu: float, eta: float) -> Iterator[np.ndarray]:
    """Algorithm 1: the slow weights after each round."""
    w_d, b_d, generator = np.zeros(D), np.zeros(D), np.random.default_rng(0)
    for _ in range(ROUNDS):
        s_d = w_d - fast(w_d, generator)
        b_d = mu * b_d + s_d
        w_d = w_d - eta * (mu * b_d + s_d)
        yield w_d


def lookahead(*, share: float) -> Iterator[np.ndarray]:
    """Slow weights go a share of the way to the fast ones, and fast ones begin there."""
    w_d, generator = np.zeros(D), np.random.default_rng(0)
    for _ in range(ROUNDS):
        w_d = w_d + share * (fast(w_d, generator) - w_d)
        yield w_d


def closed_alone(strategy: SyncStrategy, theta_d: torch.Tensor, round: int) -> torch.Tensor:
    """A round that nobody else takes part in: what it does to the model."""
    if isinstance(strategy, AllReduceStrategy):
        group = strategy.peer_selection([], round=round)
        strategy.pack(theta_d, round=round)
        return strategy.finish(theta_d, group, [], round=round).correction_d
    strategy.encode(theta_d, round=round)
    return strategy.aggregate(theta_d, {}, round=round).correction_d


@pytest.mark.parametrize(("mu", "eta"), MOMENTA)
@pytest.mark.parametrize("settings", [{"strategy": "diloco"}, {"strategy": "allreduce", "outer": "nesterov"}])
@pytest.mark.parametrize("f", [0, 1])
def test_a_node_alone_takes_its_steps(settings: dict[str, str], mu: float, eta: float, f: int) -> None:
    aggregator = "trimmed_mean" if f else "mean"
    config = SyncConfig(**settings, alpha=mu, beta=eta, aggregator=aggregator, f=f)
    strategy = build(config, torch.zeros(D), "own", rounds=ROUNDS)
    w_d, generator = torch.zeros(D), np.random.default_rng(0)
    for round, expected in enumerate(snoo(mu=mu, eta=eta)):
        theta_d = torch.from_numpy(fast(w_d.double().numpy(), generator)).float()
        w_d = theta_d + closed_alone(strategy, theta_d, round)
        np.testing.assert_allclose(w_d.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_without_momentum_they_are_lookaheads() -> None:
    for ours, theirs in zip(snoo(mu=0.0, eta=0.5), lookahead(share=0.5), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_trainer_goes_on_from_the_slow_weights_with_its_own_moments(optimizer: str) -> None:
    """Fast weights begin each round at the slow ones; the inner optimizer's state stays, as in the paper."""
    config = TrainConfig(optimizer=optimizer, warmup_steps=0, device="cpu", threads=1, batch_size=4)
    trainer = Trainer(get("digits"), config, Shard())
    strategy = build(SyncConfig(strategy="diloco", alpha=0.5, beta=0.5), trainer.vector(), "own", rounds=ROUNDS)
    slow_d, buffered_d = trainer.vector(), torch.zeros(trainer.numel)
    for round in range(3):
        for _ in range(2):
            trainer.step()
        before = {name: value for name, value in trainer.state_dict().items() if name != "parameters"}
        fast_d = trainer.vector()
        trainer.begin_round()
        trainer.correct(closed_alone(strategy, fast_d, round))
        buffered_d = 0.5 * buffered_d + slow_d - fast_d
        slow_d = slow_d - 0.5 * (0.5 * buffered_d + slow_d - fast_d)
        torch.testing.assert_close(trainer.vector(), slow_d, rtol=1e-5, atol=1e-6)
        after = trainer.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
