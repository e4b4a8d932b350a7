"""The loss of a student, against plain computations; and a task that is wrapped for it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import TaskError
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.distillation import (
    DistillConfig,
    DistilledTask,
    Ensemble,
    Taught,
    TeacherLead,
    distillation_loss,
)


def logits(*shape: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def plain(student: torch.Tensor, teacher: torch.Tensor, counted: torch.Tensor, temperature: float) -> float:
    """One prediction after another, in double precision, by probabilities."""
    total, count = 0.0, 0
    for ours, theirs, counts in zip(student.detach().double(), teacher.detach().double(), counted, strict=True):
        if counts:
            p, q = torch.softmax(theirs / temperature, 0), torch.softmax(ours / temperature, 0)
            total += sum(float(a) * math.log(float(a) / float(b)) for a, b in zip(p, q, strict=True))
            count += 1
    return temperature**2 * total / max(1, count)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0])
def test_the_loss_is_the_sum_over_predictions_that_count(temperature: float) -> None:
    student, teacher = logits(12, 5, seed=1), logits(12, 5, seed=2)
    counted = torch.arange(12) % 3 != 0
    found = float(distillation_loss(student, teacher, counted, temperature))
    assert found == pytest.approx(plain(student, teacher, counted, temperature), rel=1e-5)
    assert float(distillation_loss(teacher, teacher, counted, temperature)) == pytest.approx(0, abs=1e-6)


def test_a_batch_without_a_prediction_that_counts_has_no_loss() -> None:
    nothing = torch.zeros(4, dtype=torch.bool)
    assert float(distillation_loss(logits(4, 3, seed=1), logits(4, 3, seed=2), nothing, 2.0)) == 0


def test_an_ensemble_says_the_mean_of_probabilities_whether_models_return_records_or_not() -> None:
    one, two, x = nn.Linear(4, 3), nn.Linear(4, 3), logits(6, 4, seed=3)
    wanted = (one(x).softmax(-1) + two(x).softmax(-1)) / 2
    assert torch.allclose(Ensemble([one, two])(x).softmax(-1), wanted, atol=1e-6)

    class Record(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *, pixels: torch.Tensor) -> object:
            return type("Output", (), {"logits": self.model(pixels)})

    said = Ensemble([Record(one), Record(two)])(pixels=x).logits
    assert torch.allclose(said.softmax(-1), wanted, atol=1e-6)


def test_a_teacher_has_no_say_on_predictions_that_do_not_count() -> None:
    """Such as the user's words of a conversation, whose targets are -100."""
    task = tasks.get("digits")
    teacher, student = task.build_model().eval(), task.build_model()
    images, labels = task.train_batch(5, seed=1, shard=Shard(), size=8)
    labels = labels.masked_fill(torch.arange(8) % 2 == 0, -100)
    taught = DistilledTask(task, teacher, DistillConfig(alpha=1.0, fading=False))
    found = float(taught.loss(student, Taught(batch=(images, labels))).detach())
    counted = torch.arange(8) % 2 == 1
    assert found == pytest.approx(plain(student(images), teacher(images), counted, 2.0), rel=1e-4)
    assert found != pytest.approx(plain(student(images), teacher(images), ~counted | counted, 2.0), rel=1e-2)


def test_a_student_s_loss_is_the_weighted_sum_and_held_out_loss_the_task_s_own() -> None:
    task = tasks.get("digits")
    teacher, student = task.build_model().eval(), task.build_model()
    taught = DistilledTask(task, teacher, DistillConfig(temperature=3.0, alpha=0.25))
    batch = taught.train_batch(5, seed=1, shard=Shard(), size=8)
    images, labels = task.train_batch(5, seed=1, shard=Shard(), size=8)
    assert isinstance(batch, Taught)
    assert torch.equal(batch.batch[0], images)
    every = torch.ones(8, dtype=torch.bool)
    wanted = 0.25 * plain(student(images), teacher(images), every, 3.0)
    wanted += 0.75 * float(functional.cross_entropy(student(images), labels).detach())
    assert float(taught.loss(student, batch).detach()) == pytest.approx(wanted, rel=1e-5)
    assert float(taught.loss(student, (images, labels)).detach()) == float(
        task.loss(student, (images, labels)).detach()
    )
    assert taught.tokens(batch) == 8


def test_alpha_0_asks_no_teacher_and_trains_as_the_task_alone() -> None:
    class Unasked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("nobody needs it")

    config = TrainConfig(rounds=1, inner_steps=4, warmup_steps=2)
    task = tasks.get("digits")
    alone = Trainer(task, config, Shard())
    taught = Trainer(DistilledTask(task, Unasked(), DistillConfig(alpha=0)), config, Shard())
    for _ in range(4):
        alone.step()
        taught.step()
    assert torch.equal(alone.vector(), taught.vector())


def test_a_student_of_a_teacher_alone_comes_near_it_and_leaves_it_as_it_was() -> None:
    task = tasks.get("digits")
    teacher = task.build_model().eval()
    before = [each.clone() for each in teacher.parameters()]
    taught = DistilledTask(task, teacher, DistillConfig(alpha=1.0, fading=False))
    trainer = Trainer(taught, TrainConfig(rounds=1, inner_steps=60, warmup_steps=10), Shard())
    batch = taught.train_batch(1000, seed=9, shard=Shard(), size=64)
    apart = float(taught.loss(trainer.model, batch).detach())
    for _ in range(60):
        trainer.step()
    assert float(taught.loss(trainer.model, batch).detach()) < 0.25 * apart
    assert all(torch.equal(was, now) for was, now in zip(before, teacher.parameters(), strict=True))
    assert all(each.grad is None for each in teacher.parameters())


def test_micro_batches_of_a_student_give_the_whole_batch_s_gradient() -> None:
    task = tasks.get("digits")
    teacher, config = task.build_model().eval(), TrainConfig(rounds=1, inner_steps=1, batch_size=12)
    whole, cut = (Trainer(DistilledTask(task, teacher, DistillConfig()), config, Shard()) for _ in range(2))
    cut.take_at_a_time(5)
    for step in range(3):  # the teacher's share follows from the batches before
        whole.gradient(step)
        cut.gradient(step)
    assert torch.allclose(whole.gradient()[1], cut.gradient()[1], atol=1e-6)


class Guess(nn.Module):
    """As sure of class 0 as its one number says."""

    def __init__(self, sure: float) -> None:
        super().__init__()
        self.sure = nn.Parameter(torch.tensor(sure, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.sure.expand(len(x)), *[torch.zeros(len(x))] * 9], dim=-1)


def test_the_teacher_s_share_falls_with_its_lead_and_ends_where_it_has_none() -> None:
    task = tasks.get("digits")
    batch = (torch.zeros(4, 64), torch.zeros(4, dtype=torch.int64))
    taught = DistilledTask(task, Guess(3.0), DistillConfig(alpha=0.5))
    teacher_loss = float(task.loss(Guess(3.0), batch).detach())
    for sure, wanted in ((0.0, None), (2.5, None), (3.0, 0.0), (5.0, 0.0)):
        taught.lead.__init__()  # type: ignore[misc]
        taught.loss(Guess(sure), Taught(batch=batch))
        assert taught.lead.share == 1.0, "what was said of a batch counts from the next one on"
        taught.lead.begin_batch()
        ratio = teacher_loss / float(task.loss(Guess(sure), batch).detach())
        assert taught.lead.share == pytest.approx(min(1, 2 * (1 - ratio)) if wanted is None else wanted, abs=1e-6)
    assert float(taught.loss(Guess(5.0), Taught(batch=batch)).detach()) == float(task.loss(Guess(5.0), batch).detach())


def test_a_batch_without_a_finite_loss_tells_nothing_of_the_lead() -> None:
    lead = TeacherLead()
    lead.note(0.5, 1.0, 8)
    lead.begin_batch()
    for teacher, student in ((math.nan, 1.0), (1.0, math.inf), (1.0, 0.0), (math.inf, 1.0)):
        lead.note(teacher, student, 8)
        lead.begin_batch()
        assert lead.share == 1.0
    lead.note(1.5, 1.0, 8)
    lead.begin_batch()
    assert lead.share == pytest.approx(2 * (1 - 0.6)), "a tenth of 1.5, and nine of 0.5"


def test_a_student_of_a_bad_teacher_learns_as_well_as_alone() -> None:
    task = tasks.get("digits")
    config = TrainConfig(rounds=1, inner_steps=150, warmup_steps=10, device="cpu", threads=1)
    held_out = {}
    for name, given in (("alone", {"alpha": 0.0}), ("fading", {}), ("constant", {"fading": False})):
        torch.manual_seed(7)
        untrained = task.build_model().eval()
        trainer = Trainer(DistilledTask(task, untrained, DistillConfig(**given)), config, Shard())
        for _ in range(150):
            trainer.step()
        held_out[name] = trainer.evaluate()
    assert held_out["fading"] < 1.05 * held_out["alone"]
    assert held_out["constant"] > 1.2 * held_out["alone"], "it is the rule that helps"


def test_models_of_different_classes_are_refused() -> None:
    task = tasks.get("digits")
    taught = DistilledTask(task, nn.Linear(64, 12), DistillConfig())
    batch = task.train_batch(0, seed=0, shard=Shard(), size=4)
    with pytest.raises(TaskError, match="10 classes apart, and the teacher 12"):
        taught.check(task.build_model(), batch)


def test_a_task_without_classes_is_refused() -> None:
    task = tasks.get("quadratic")
    taught = DistilledTask(task, task.build_model(), DistillConfig())
    with pytest.raises(TaskError, match="there is nothing to distil"):
        taught.check(task.build_model(), task.train_batch(0, seed=0, shard=Shard(), size=4))


@pytest.mark.parametrize("wrong", [{"temperature": 0}, {"temperature": math.inf}, {"alpha": -0.1}, {"alpha": math.nan}])
def test_what_cannot_be_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DistillConfig(**wrong)
