"""How far predictions are apart: against a slow reference, and what is not compared."""

import math

import pytest
import torch
from torch import nn
from typed_events import typed

from node.metrics.node_metrics import Metrics
from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.evaluator import PREDICTIONS, PROBED, kl_of_mean


def trainer_of(name: str = "digits", **options: object) -> Trainer:
    return Trainer(tasks.get(name, **options), TrainConfig(threads=1, batch_size=8), Shard())


def reference(trainer: Trainer, own_d: torch.Tensor, others: list[torch.Tensor]) -> float:
    """By probabilities, one prediction at a time."""
    inputs, _ = trainer.task.eval_batches(PROBED)[0]

    def told(x_d: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return trainer.model_with(x_d)(inputs).flatten(0, -2)[:PREDICTIONS].double().softmax(-1)

    own, theirs = told(own_d), [told(x_d) for x_d in others]
    total = 0.0
    for row in range(len(own)):
        for column in range(own.shape[1]):
            p = sum(float(each[row, column]) for each in theirs) / len(theirs)
            total += p * math.log(p / float(own[row, column]))
    return total / len(own)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "byte-lm"])
def test_it_is_the_kl_of_the_mean(name, tmp_path):
    (tmp_path / "text").write_text("to be or not to be, that is the question\n" * 400)
    options = {} if name == "digits" else {"data": str(tmp_path / "text"), "size": "nano"}
    trainer = trainer_of(name, **options)
    own_d, generator = trainer.vector(), torch.Generator().manual_seed(0)
    others = [own_d + 0.05 * torch.randn(own_d.shape, generator=generator) for _ in range(3)]
    found = trainer.divergence(own_d, others)
    assert found == pytest.approx(reference(trainer, own_d, others), rel=1e-4)
    assert found > 1e-6
    assert trainer.divergence(own_d, [own_d, own_d]) == pytest.approx(0.0, abs=1e-12)
    assert torch.equal(trainer.vector(), own_d), "nothing live is touched"


def test_who_is_alone_has_nobody_to_compare_with():
    trainer = trainer_of()
    assert trainer.divergence(trainer.vector(), []) is None


def test_a_class_that_one_side_rules_out_is_no_number():
    sure = torch.tensor([[0.0, -math.inf]]).double()
    other = torch.tensor([[0.5, 0.5]]).double().log()
    assert kl_of_mean([other], sure) is None
    assert kl_of_mean([torch.full((1, 2), math.nan).double()], other) is None


class Odd:
    """Digits with another ending: two numbers for an image, to be compared with nothing."""

    def __init__(self, metric: str) -> None:
        self._digits, self.metric = tasks.get("digits"), metric

    def __getattr__(self, name: str) -> object:
        return getattr(self._digits, name)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))


@pytest.mark.parametrize("metric", ["nats per digit", "squared error"])
def test_outputs_that_are_no_logits_are_not_compared(metric):
    trainer = Trainer(Odd(metric), TrainConfig(threads=1, batch_size=8), Shard())
    assert trainer.divergence(trainer.vector(), [trainer.vector()]) is None


def test_the_metric_says_when_it_is_not_known():
    metrics = Metrics()

    def shown() -> float | None:
        return metrics.registry.get_sample_value("p2ptrain_output_divergence_nats")

    assert shown() == -1
    metrics.observe(typed({"ts": 1.0, "event": "evaluated", "round": 1, "eval_loss": 2.0, "output_divergence": 0.25}))
    assert shown() == 0.25
    metrics.observe(typed({"ts": 1.0, "event": "evaluated", "round": 2, "eval_loss": 2.0, "output_divergence": None}))
    assert shown() == -1
