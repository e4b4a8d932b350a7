"""Knowledge distillation: a student learns what a teacher says of each example, beside the right answer.

    loss = alpha T^2 KL(teacher_T || student_T) + (1 - alpha) loss of the task

with both distributions at temperature T (Hinton et al., 1503.02531): T^2 keeps the gradient's size where T changes.
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

MOST_TEMPERATURE: Final = 100.0
"""Beyond it both distributions are all but even, and T^2 multiplies rounding. Chosen; 2 to 4 are common."""


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """How a student learns. ValueError, with the field's name, on a value that cannot be."""

    temperature: float = 2.0
    """T: what both distributions' logits are divided by."""
    alpha: float = 0.5
    """Share of the teacher's words in the loss; 0: the task's loss alone, and no teacher is asked."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 < self.temperature <= MOST_TEMPERATURE):
            raise ValueError(f"temperature must be above 0 and at most {MOST_TEMPERATURE:g}, not {self.temperature:g}")
        if not (math.isfinite(self.alpha) and 0 <= self.alpha <= 1):
            raise ValueError(f"alpha must be between 0 and 1, not {self.alpha:g}")


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
            student, alpha = _Heard(model), self._config.alpha
            answer = self._task.loss(student, batch.batch)
            if alpha == 0:
                return answer
            said = distillation_loss(
                student.logits, self._said(batch.batch), _counted(batch.batch), self._config.temperature
            )
            return said * alpha + answer * (1 - alpha) if alpha < 1 else said

    def check(self, student: nn.Module, batch: Batch) -> None:
        """Raise TaskError unless both models give logits of the same classes for this batch of the task's."""
        pair = pair_of(batch)
        if pair is None:
            raise TaskError(f"the batches of {self.name} are no inputs with targets: there is nothing to distil")
        with torch.no_grad():
            learner = _Heard(student)
            self._task.loss(learner, batch)
            ours, theirs = learner.logits, self._said(batch)
        if not (are_logits(ours, pair[1]) and are_logits(theirs, pair[1])):
            raise TaskError(f"the models of {self.name} give no logits of its targets: there is nothing to distil")
        if ours.shape != theirs.shape:
            raise TaskError(f"the student tells {ours.shape[-1]} classes apart, and the teacher {theirs.shape[-1]}")

    @torch.no_grad()
    def _said(self, batch: Batch) -> torch.Tensor:
        teacher = _Heard(self._teacher)
        self._task.loss(teacher, batch)  # the task knows how its models are called
        return teacher.logits


@dataclass(frozen=True)
class Taught:
    """A batch to train on; others are to evaluate on."""

    batch: Batch


class _Heard(nn.Module):
    """A model whose newest output is kept."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.logits = torch.empty(0, dtype=torch.float32)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.model(*args, **kwargs)
        self.logits = logits_in(output)
        return output


def logits_in(output: Any) -> torch.Tensor:
    """Return the logits that a model returned, alone or, as transformers' models do, in a record."""
    return getattr(output, "logits", output)  # type: ignore[no-any-return]  # whatever the task's model returns


def _counted(batch: Batch) -> torch.Tensor:
    """Targets below 0 stand for predictions that do not count."""
    pair = pair_of(batch)
    assert pair is not None, "checked before the first step"
    return pair[1] >= 0
