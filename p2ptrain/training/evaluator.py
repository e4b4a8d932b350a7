"""Loss of any vector of parameters, on a model of its own: beside a step, and touching nothing live."""

import threading
from collections.abc import Callable

import torch
from torch import nn

from p2ptrain.tasks.base import Batch, Task
from p2ptrain.training.machine import Machine
from p2ptrain.training.model import lend


class Evaluator:
    """Thread-safe: one evaluation at a time. Model and batches are made at the first one and kept."""

    def __init__(self, task: Task, machine: Machine, copy_model: Callable[[], nn.Module], *, examples: int) -> None:
        self._task, self._machine, self._copy_model, self._examples = task, machine, copy_model, examples
        self._lock = threading.Lock()
        self._model: nn.Module | None = None
        self._batches: list[Batch] | None = None

    def loss(self, x_d: torch.Tensor, batches: list[Batch] | None = None) -> float:
        """Mean loss of the model `x_d` (d,) over `batches`, by default the held-out ones, weighed by predictions.
        ValueError on another shape."""
        with self._lock, torch.no_grad():
            self._machine.pin_threads()
            if self._model is None:
                self._model = self._copy_model()
            return self._mean(lend(x_d, self._model), self._held_out() if batches is None else batches)

    def _held_out(self) -> list[Batch]:
        if self._batches is None:
            self._batches = self._task.eval_batches(self._examples)
        return self._batches

    def _mean(self, model: nn.Module, batches: list[Batch]) -> float:
        total, count = 0.0, 0
        for batch in map(self._machine.take, batches):
            with self._machine.autocast():
                loss = float(self._task.loss(model, batch))
            tokens = self._task.tokens(batch)
            total, count = total + loss * tokens, count + tokens
        return total / max(1, count)
