"""Knowledge distillation: a student learns what a teacher says of each example, beside the right answer.

    loss = a T^2 KL(teacher_T || student_T) + (1 - a) loss of the task
    a    = alpha min(1, 2 (1 - r)), 0 where r >= 1      r: the teacher's loss over the student's, of newest batches

with both distributions at temperature T (Hinton et al., 1503.02531): T^2 keeps the gradient's size where T changes.

The teacher's share falls with its lead: with half of the student's loss it has all of alpha, and once the student has
caught up it has none, for it would hold the student back. The losses are those of the batches that are trained on,
which both models are asked about anyway, so that no held-out example has a say.

The task is wrapped, so that a `Trainer` trains the student as it trains everything else: schedule, optimizer, clipping
and micro-batches are its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import nn

from p2ptrain.tasks.base import OPTIONAL, Batch, Shard, Task, TaskError, optimizer_options
from p2ptrain.tasks.batches import pair_of
from p2ptrain.tasks.calling import calling
from p2ptrain.training.evaluator import are_logits
from p2ptrain.training.heard_model import HeardModel, logits_in
from p2ptrain.training.train_config import MOST_TEMPERATURE

REMEMBERED: Final = 0.9
"""Weight of the ratio so far in its moving average: some ten batches, since one of 16 examples tells little. Chosen."""


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """How a student learns. ValueError, with the field's name, on a value that cannot be."""

    temperature: float = 2.0
    """T: what both distributions' logits are divided by."""
    alpha: float = 0.5
    """Largest share of the teacher's words in the loss; 0: the task's loss alone, and no teacher is asked."""
    fading: bool = True
    """Whether that share falls with the teacher's lead; else it is alpha throughout."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 < self.temperature <= MOST_TEMPERATURE):
            raise ValueError(f"temperature must be above 0 and at most {MOST_TEMPERATURE:g}, not {self.temperature:g}")
        if not (math.isfinite(self.alpha) and 0 <= self.alpha <= 1):
            raise ValueError(f"alpha must be between 0 and 1, not {self.alpha:g}")


class TeacherLead:
    """How far the teacher is ahead of the student, from their losses on the newest batches. Losses of a batch count
    from the next one on, so that a batch has the same share whether it is cut or not."""

    def __init__(self) -> None:
        self._ratio: float | None = None
        self._teacher, self._student = 0.0, 0.0

    def note(self, teacher: float, student: float, predictions: int) -> None:
        """Add both models' mean losses of a batch, or of a piece of one with so many predictions."""
        self._teacher += teacher * predictions
        self._student += student * predictions

    def begin_batch(self) -> None:
        """Take up what was noted. What is not finite, and a student without any loss, tells nothing."""
        teacher, student, self._teacher, self._student = self._teacher, self._student, 0.0, 0.0
        if not (math.isfinite(teacher) and math.isfinite(student) and student > 0):
            return
        ratio = max(0.0, teacher / student)
        self._ratio = ratio if self._ratio is None else REMEMBERED * self._ratio + (1 - REMEMBERED) * ratio

    @property
    def share(self) -> float:
        """Of alpha that the teacher has: 1 where its loss is half of the student's or less, 0 where it is no less."""
        return 1.0 if self._ratio is None else min(1.0, max(0.0, 2 * (1 - self._ratio)))


def distillation_loss(
    student: torch.Tensor, teacher: torch.Tensor, counted: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return T^2 KL(teacher || student), the mean over predictions, in nats: a scalar. `student` and `teacher` are
    logits (..., classes); `counted` bool (...) says which predictions count."""
    student_nc, teacher_nc = (logits[counted].float() / temperature for logits in (student, teacher))
    log_student_nc, log_teacher_nc = student_nc.log_softmax(-1), teacher_nc.log_softmax(-1)
    kl = (log_teacher_nc.exp() * (log_teacher_nc - log_student_nc)).sum()
    return kl * (temperature**2 / max(1, len(log_student_nc)))


class Ensemble(nn.Module):
    """The mean of several models' probabilities, as logits: the logarithm of it. Calls them as it is called itself."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return log probabilities (..., classes), in a record where the models return records."""
        outputs = [model(*args, **kwargs) for model in self.models]
        each = torch.stack([logits_in(output).float().log_softmax(-1) for output in outputs])
        logits = each.logsumexp(0) - math.log(len(outputs))
        return SimpleNamespace(logits=logits) if hasattr(outputs[0], "logits") else logits


class DistilledTask:
    """A task whose training loss is a student's. Held-out batches, and the loss on them, are the task's own."""

    def __init__(self, task: Task, teacher: nn.Module, config: DistillConfig) -> None:
        """`teacher` gives logits of the task's classes, in eval mode, on the device that trains."""
        self._task, self._teacher, self._config = task, teacher, config
        self.lead = TeacherLead()
        self.name, self.metric = task.name, task.metric
        self.optimizer_options = optimizer_options(task)
        for optional in OPTIONAL:
            if hasattr(task, optional):
                setattr(self, optional, getattr(task, optional))

    def build_model(self) -> nn.Module:
        """Return the student, as the task builds it."""
        return self._task.build_model()

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Return the task's batch, marked as one to train on."""
        self.lead.begin_batch()
        with calling(self._task, "train_batch"):
            return Taught(batch=self._task.train_batch(step, seed=seed, shard=shard, size=size))

    def eval_batches(self, limit: int) -> list[Batch]:
        """Return the task's held-out batches."""
        return self._task.eval_batches(limit)

    def tokens(self, batch: Batch) -> int:
        """Return how many predictions the task counts."""
        return self._task.tokens(batch.batch if isinstance(batch, Taught) else batch)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the student's loss of a batch to train on, the task's of any other: a scalar. TaskError where student
        and teacher tell different classes apart."""
        with calling(self._task, "loss"):
            if not isinstance(batch, Taught):
                return self._task.loss(model, batch)
            student = HeardModel(model)
            answer = self._task.loss(student, batch.batch)
            if self._config.alpha == 0:
                return answer
            teacher_loss, logits = self._said(batch.batch)
            self.lead.note(float(teacher_loss), float(answer.detach()), self._task.tokens(batch.batch))
            alpha = self._config.alpha * (self.lead.share if self._config.fading else 1.0)
            if alpha == 0:
                return answer
            said = distillation_loss(student.logits, logits, _counted(batch.batch), self._config.temperature)
            return said * alpha + answer * (1 - alpha) if alpha < 1 else said

    def check(self, student: nn.Module, batch: Batch) -> None:
        """Raise TaskError unless both models give logits of the same classes for this batch of the task's."""
        pair = pair_of(batch)
        if pair is None:
            raise TaskError(f"the batches of {self.name} are no inputs with targets: there is nothing to distil")
        with torch.no_grad():
            learner = HeardModel(student)
            self._task.loss(learner, batch)
            ours, theirs = learner.logits, self._said(batch)[1]
        if not (are_logits(ours, pair[1]) and are_logits(theirs, pair[1])):
            raise TaskError(f"the models of {self.name} give no logits of its targets: there is nothing to distil")
        if ours.shape != theirs.shape:
            raise TaskError(f"the student tells {ours.shape[-1]} classes apart, and the teacher {theirs.shape[-1]}")

    @torch.no_grad()
    def _said(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The teacher's loss, and its logits."""
        teacher = HeardModel(self._teacher)
        loss = self._task.loss(teacher, batch)  # the task knows how its models are called
        return loss, teacher.logits


@dataclass(frozen=True)
class Taught:
    """A batch to train on; others are to evaluate on."""

    batch: Batch


def _counted(batch: Batch) -> torch.Tensor:
    """Targets below 0 stand for predictions that do not count."""
    pair = pair_of(batch)
    assert pair is not None, "checked before the first step"
    return pair[1] >= 0
