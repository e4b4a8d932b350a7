"""Loss of any vector of parameters, on a model of its own: beside a step, and touching nothing live."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from p2ptrain.tasks.base import OWN_SHARD, Batch, Derived, HoldsOutOwn, Shard, Task
from p2ptrain.tasks.batches import pair_of
from p2ptrain.tasks.calling import TaskFaultError, calling, checked_loss
from p2ptrain.tasks.metrics import Means, Measures, Metrics, checked_metrics, own_metrics
from p2ptrain.training.heard_model import HeardModel
from p2ptrain.training.machine import Machine
from p2ptrain.training.micro_batch import MicroBatch
from p2ptrain.training.model import bind_parameters, release_parameters

PROBED, PREDICTIONS = 4, 256
"""Examples on which models' predictions are compared, and how many of these: one small batch a model, where an
evaluation has hundreds of examples, and 100 MB where there are 50,000 classes."""


class Evaluator:
    """Thread-safe: one evaluation at a time. Its model, made by `shell` at the first one, is lent the vector's own
    memory, on a CPU, and only while it computes. That and the batches are kept."""

    def __init__(
        self,
        task: Task,
        machine: Machine,
        shell: Callable[[], nn.Module],
        *,
        examples: int,
        shard: Shard,
        bind: Callable[[torch.Tensor, nn.Module], nn.Module] = bind_parameters,
    ) -> None:
        """`bind` lends a vector to a shell, which it returns."""
        self._task, self._machine, self._shell, self._examples = task, machine, shell, examples
        self._bind = bind
        self._shard = shard
        self._micro = MicroBatch(task)
        """Of evaluations alone: without gradients more fits than in a step."""
        self._lock = threading.Lock()
        self._model: nn.Module | None = None
        self._batches: list[Batch] | None = None
        self._own_batches: list[Batch] | None = None
        """Of the shard's own held-out examples."""
        self._probe: Batch | None = None

    def take_at_a_time(self, examples: int) -> None:
        """Let no more examples go through the model at a time."""
        self._micro.take(examples)

    def loss(self, x_d: torch.Tensor, batches: list[Batch] | None = None) -> float:
        """Mean loss of the model `x_d` (d,) over `batches`, by default the held-out ones, weighed by predictions.
        ValueError on another shape."""
        with self._bound(x_d) as model:
            return self._mean(model, self._held_out() if batches is None else batches)

    def losses(self, x_d: torch.Tensor, batches: list[Batch]) -> list[float]:
        """Mean loss of the model `x_d` (d,) on each of these batches. ValueError on another shape."""
        with self._bound(x_d) as model:
            return [self._mean(model, [batch]) for batch in batches]

    def measure(self, x_d: torch.Tensor) -> Measures:
        """Return the same, and the task's own metrics: what these raise is told, not raised. ValueError on another
        shape."""
        loss = self.loss(x_d)
        metrics = own_metrics(self._task)
        derived = dict(self._task.derived_metrics(loss)) if isinstance(self._task, Derived) else {}
        with self._bound(x_d) as model:
            derived |= self._of_shard(model)
            try:
                return Measures(loss=loss, own={**derived, **(self._own(metrics, model) if metrics else {})})
            except TaskFaultError as fault:
                return Measures(loss=loss, own=derived, fault=str(fault))

    def own_loss(self, x_d: torch.Tensor) -> float:
        """Return the mean loss of the model `x_d` (d,) on what the shard holds out for itself, or, where it holds out
        nothing, on what is held out for all."""
        with self._bound(x_d) as model:
            own = self._of_shard(model).get(OWN_SHARD)
            return self._mean(model, self._held_out()) if own is None else own

    def log_probabilities(self, x_d: torch.Tensor) -> torch.Tensor:
        """Return what the model `x_d` (d,) says of the first PROBED held-out examples: log probabilities fp64 (n,
        classes) of PREDICTIONS or fewer. ValueError for a model whose outputs are no logits of its targets; whatever a
        task's own model raises."""
        with self._bound(x_d) as model:
            if self._probe is None:
                self._probe = self._task.eval_batches(PROBED)[0]
            pair = pair_of(self._machine.take(self._probe))
            if pair is None:
                raise ValueError(f"the batches of {self._task.name} are no inputs with targets")
            inputs, targets = pair
            with self._machine.autocast():
                outputs = model(inputs)
            logits = getattr(outputs, "logits", outputs)  # transformers' models return a record
            if not are_logits(logits, targets):
                raise ValueError(f"the outputs of {self._task.name} are no logits of its targets")
            return logits.flatten(0, -2)[:PREDICTIONS].double().log_softmax(-1).cpu()  # type: ignore[no-any-return]

    def logits(self, x_d: torch.Tensor, batches: list[Batch]) -> torch.Tensor:
        """Return what the model `x_d` (d,) says of `batches`: logits fp32 (n, classes) on the CPU, n predictions in
        their order. ValueError on another shape, and for a model whose outputs are no logits of its targets."""
        with self._bound(x_d) as model:
            return torch.cat(
                [self._micro.fitting(it, partial(self._said, model, it), self._machine.free) for it in batches]
            )

    def _said(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        found: list[torch.Tensor] = []
        for piece, _ in self._micro.cut(batch):
            heard = HeardModel(model)
            piece = self._machine.take(piece)
            with calling(self._task, "loss"), self._machine.autocast():
                self._task.loss(heard, piece)
            pair = pair_of(piece)
            if pair is None or not are_logits(heard.logits, pair[1]):
                raise ValueError(f"the outputs of {self._task.name} are no logits of its targets")
            found.append(heard.logits.flatten(0, -2).float().cpu())
        return torch.cat(found)

    def when_idle(self, act: Callable[[], None]) -> None:
        """Call `act`, unless an evaluation is under way."""
        if self._lock.acquire(blocking=False):
            try:
                act()
            finally:
                self._lock.release()

    @contextmanager
    def _bound(self, x_d: torch.Tensor) -> Iterator[nn.Module]:
        """The model with the parameters `x_d` (d,), until the block ends."""
        with self._lock, torch.no_grad():
            self._machine.pin_threads()
            if self._model is None:
                self._model = self._shell()
            try:
                yield self._bind(x_d, self._model)
            finally:
                release_parameters(self._model)

    def _held_out(self) -> list[Batch]:
        if self._batches is None:
            with calling(self._task, "eval_batches"):
                self._batches = list(self._task.eval_batches(self._examples))
        return self._batches

    def _mean(self, model: nn.Module, batches: list[Batch]) -> float:
        total, count = 0.0, 0
        for batch in batches:
            loss, tokens = self._micro.fitting(batch, partial(self._sum, model, batch), self._machine.free)
            total, count = total + loss, count + tokens
        return total / max(1, count)

    def _sum(self, model: nn.Module, batch: Batch) -> tuple[float, int]:
        """The loss of all predictions of `batch`, and how many there are."""
        total, count = 0.0, 0
        for piece, tokens in self._micro.cut(batch):
            with calling(self._task, "loss"):
                piece = self._machine.take(piece)
                with self._machine.autocast():
                    loss = float(checked_loss(self._task, self._task.loss(model, piece), trains=False))
            total, count = total + loss * tokens, count + tokens
        return total, count

    def _of_shard(self, model: nn.Module) -> dict[str, float]:
        """The loss on what the shard holds out for itself, where it does."""
        if not isinstance(self._task, HoldsOutOwn):
            return {}
        if self._own_batches is None:
            self._own_batches = self._task.shard_eval_batches(self._shard, self._examples)
        loss = self._mean(model, self._own_batches) if self._own_batches else math.nan
        return {OWN_SHARD: loss} if math.isfinite(loss) else {}

    def _own(self, metrics: Metrics, model: nn.Module) -> dict[str, float]:
        means = Means()
        for piece, tokens in (cut for batch in self._held_out() for cut in self._micro.cut(batch)):
            with calling(self._task, "metrics"):
                piece = self._machine.take(piece)
                with self._machine.autocast():
                    values = checked_metrics(self._task, metrics(model, piece))
            means.add(values, tokens)
        return means.finite()


def are_logits(outputs: object, targets: torch.Tensor) -> bool:
    """Return whether there is one class at least for every target: (..., classes) beside integers (...)."""
    return (
        isinstance(outputs, torch.Tensor)
        and outputs.is_floating_point()
        and not targets.is_floating_point()
        and outputs.shape[:-1] == targets.shape
        and int(targets.max()) < outputs.shape[-1]
    )


def kl_of_mean(others: Iterable[torch.Tensor], own: torch.Tensor) -> float | None:
    """KL(mean of the others' distributions || own), mean over predictions, in nats, from log probabilities
    (n, classes). None without others, and where it is not finite. One of the others is held at a time."""
    total, count = torch.full_like(own, -math.inf), 0
    for other in others:
        total, count = torch.logaddexp(total, other), count + 1
    mean = total - math.log(max(1, count))
    kl = float((mean.exp() * (mean - own)).sum(-1).mean())
    return max(0.0, kl) if count and math.isfinite(kl) else None
