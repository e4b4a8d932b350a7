"""Many models of one task, stepped as one: for simulations of thousands of nodes in a process.

Each row is a node: its parameters, its optimizer's state, its shard. Gradients of all rows that take a step come of one
vectorised pass (torch.func.vmap over functional_call; torch.func.grad would import torch's compiler). The optimizer's
arithmetic is that of inner/adamw.py and inner/sgd.py, for rows that have taken different numbers of steps. A row does
what `Trainer` does, but for rounding, and for what `check_batched` refuses. Attention is computed by its formula: the
fused kernels have no rule for rows.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from p2ptrain import inner
from p2ptrain.drift.none import NoCorrection
from p2ptrain.inner.adamw import AdamW
from p2ptrain.inner.base import Place
from p2ptrain.inner.sgd import SGD
from p2ptrain.tasks.base import Batch, Shard, Task, TaskError, optimizer_options
from p2ptrain.training.flat import FlatParameters
from p2ptrain.training.model import build_model
from p2ptrain.training.train_config import TrainConfig

ROWS_AT_ONCE: Final = 256
"""Rows whose activations and gradients are in memory at a time: 30 MB for digits."""

TINY: Final = 1e-30
"""Stands for a gradient's norm that is 0."""


class RowOptimizer(Protocol):
    """An inner optimizer whose state is one row a model."""

    def move_(self, x_kd: torch.Tensor, grad_kd: torch.Tensor, rows: torch.Tensor, rate_k: torch.Tensor) -> None:
        """Move the models `x_kd` of these rows (k,) by their gradients, each at its rate (k,). Gradients may be
        overwritten."""


class RowAdamW:
    """`AdamW` by rows. State: two vectors and a count a row."""

    def __init__(self, rule: AdamW, rows: int, places: Sequence[Place]) -> None:
        numel = places[-1].span.stop
        self._rule = rule
        self._decayed = _decayed(places)
        self._mean_nd, self._square_nd = (
            torch.zeros(rows, numel, dtype=torch.float32),
            torch.zeros(rows, numel, dtype=torch.float32),
        )
        self._steps_n = torch.zeros(rows, dtype=torch.float32)

    def move_(self, x_kd: torch.Tensor, grad_kd: torch.Tensor, rows: torch.Tensor, rate_k: torch.Tensor) -> None:
        """Move the models `x_kd` of these rows (k,) by their gradients, each at its rate (k,)."""
        beta1, beta2 = self._rule.betas
        self._steps_n[rows] += 1
        steps_k = self._steps_n[rows]
        mean_kd = self._mean_nd[rows].lerp_(grad_kd, 1 - beta1)
        square_kd = self._square_nd[rows].mul_(beta2).addcmul_(grad_kd, grad_kd, value=1 - beta2)
        self._mean_nd[rows], self._square_nd[rows] = mean_kd, square_kd
        _decay_(x_kd, self._decayed, self._rule.weight_decay * rate_k)
        root_kd = square_kd.div_((1 - beta2**steps_k).unsqueeze(1)).sqrt_().add_(self._rule.epsilon)
        x_kd -= mean_kd.mul_((rate_k / (1 - beta1**steps_k)).unsqueeze(1)).div_(root_kd)


class RowSGD:
    """`SGD` by rows. State: a vector a row, and none with momentum 0."""

    def __init__(self, rule: SGD, rows: int, places: Sequence[Place]) -> None:
        self._rule = rule
        self._decayed = _decayed(places)
        self._momentum_nd = torch.zeros(rows if rule.momentum else 0, places[-1].span.stop, dtype=torch.float32)

    def move_(self, x_kd: torch.Tensor, grad_kd: torch.Tensor, rows: torch.Tensor, rate_k: torch.Tensor) -> None:
        """Move the models `x_kd` of these rows (k,) by their gradients, each at its rate (k,)."""
        _decay_(x_kd, self._decayed, self._rule.weight_decay * rate_k)
        if self._rule.momentum:
            momentum_kd = self._momentum_nd[rows].mul_(self._rule.momentum).add_(grad_kd)
            self._momentum_nd[rows] = momentum_kd
            grad_kd = grad_kd.add_(momentum_kd, alpha=self._rule.momentum) if self._rule.nesterov else momentum_kd
        x_kd -= grad_kd * rate_k.unsqueeze(1)


def check_batched(task: Task, config: TrainConfig) -> None:
    """Raise TaskError for what rows do not do: another optimizer, a drift correction, accumulation, other devices."""
    _rule(task, config)
    if config.drift != NoCorrection.name:
        raise TaskError(f"models that are stepped together have no drift correction: {config.drift}")
    if config.local:
        raise TaskError("models that are stepped together have no local parameters (train.local)")
    if config.grad_accumulation != 1:
        raise TaskError("models that are stepped together accumulate no gradients: raise train.batch_size")
    if config.device not in ("auto", "cpu"):
        raise TaskError(f"models are stepped together on the CPU, not on {config.device}")


class BatchedTrainer:
    """`rows` models, all of which begin as the seed says. TaskError for what cannot be done by rows, or a task whose
    loss cannot be vectorised.

    Memory a row: its parameters, and the optimizer's state; while it steps its gradient, and its activations.
    """

    def __init__(self, task: Task, config: TrainConfig, shards: Sequence[Shard], data_seeds: Sequence[int]) -> None:
        """`shards` and `data_seeds`: of each row."""
        check_batched(task, config)
        self.task, self.config = task, config
        self._shards, self._data_seeds = shards, data_seeds
        model = build_model(task, config.seed)
        flat = FlatParameters(model)
        self.places = flat.places
        self.genesis_d = flat.vector()
        self.x_nd = self.genesis_d.repeat(len(shards), 1)
        """All models, fp32 (n, d). Changed in place."""
        rule, rows = _rule(task, config), len(shards)
        self._optimizer: RowOptimizer = (
            RowAdamW(rule, rows, flat.places) if isinstance(rule, AdamW) else RowSGD(rule, rows, flat.places)
        )
        self._loss_of = _Loss(task, model)
        self._losses = vmap(self._loss, randomness="different")
        self._held_out_losses = vmap(self._loss, in_dims=(0, None), randomness="different")
        self.skipped_n = torch.zeros(len(shards), dtype=torch.int64)
        """Steps that a row did not take, as loss or gradient was not finite."""

    @property
    def numel(self) -> int:
        """Return the number of parameters of a model."""
        return self.genesis_d.numel()

    def step(self, rows: Sequence[int], steps: Sequence[int], rates: Sequence[float]) -> torch.Tensor:
        """Take one step of these rows, each at the data of its own step's number and at its rate. Returns their losses
        (k,)."""
        losses = torch.empty(len(rows), dtype=torch.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            at = slice(start, start + ROWS_AT_ONCE)
            losses[at] = self._step(rows[at], steps[at], rates[at])
        return losses

    @torch.no_grad()
    def evaluate(self, x_kd: torch.Tensor) -> torch.Tensor:
        """Return the mean held-out loss (k,) of each of these models (k, d)."""
        batches = self.task.eval_batches(self.config.eval_examples)
        counts = [self.task.tokens(batch) for batch in batches]
        losses = []
        for start in range(0, len(x_kd), ROWS_AT_ONCE):
            part_kd = x_kd[start : start + ROWS_AT_ONCE]
            with sdpa_kernel(SDPBackend.MATH):
                parts = [
                    self._held_out_losses(part_kd, batch) * count for batch, count in zip(batches, counts, strict=True)
                ]
            losses.append(torch.stack(parts).sum(0) / max(1, sum(counts)))
        return torch.cat(losses)

    def _step(self, rows: Sequence[int], steps: Sequence[int], rates: Sequence[float]) -> torch.Tensor:
        batches = [self._batch(row, step) for row, step in zip(rows, steps, strict=True)]
        at_k = torch.tensor(rows)
        x_kd = self.x_nd[at_k].requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):
            loss_k = self._losses(x_kd, _stacked(batches))
            # Rows have nothing to do with each other: the gradient of the sum is that of each.
            (grad_kd,) = torch.autograd.grad(loss_k.sum(), x_kd)
        x_kd, loss_k = x_kd.detach(), loss_k.detach()
        norm_k = torch.linalg.vector_norm(grad_kd, dim=1)
        usable_k = norm_k.isfinite() & loss_k.isfinite()
        self.skipped_n[at_k] += ~usable_k
        if not bool(usable_k.all()):
            at_k, x_kd, grad_kd, norm_k = at_k[usable_k], x_kd[usable_k], grad_kd[usable_k], norm_k[usable_k]
        if self.config.clip_norm > 0:
            grad_kd.mul_((self.config.clip_norm / norm_k.clamp(min=TINY)).clamp(max=1).unsqueeze(1))
        self._optimizer.move_(x_kd, grad_kd, at_k, torch.tensor(rates)[usable_k])
        self.x_nd[at_k] = x_kd
        return loss_k

    def _batch(self, row: int, step: int) -> Batch:
        size = self.config.batch_size
        return self.task.train_batch(step, seed=self._data_seeds[row], shard=self._shards[row], size=size)

    def _loss(self, x_d: torch.Tensor, batch: Batch) -> torch.Tensor:
        # Split at once: the gradient is then put together once, and not added up from one whole vector a parameter.
        parts = x_d.split_with_sizes([place.span.stop - place.span.start for place in self.places])
        parameters = {
            f"model.{place.name}": part.view(place.shape) for place, part in zip(self.places, parts, strict=True)
        }
        return torch.as_tensor(functional_call(self._loss_of, parameters, (batch,)))


class _Loss(nn.Module):
    """A task's loss as a module of the model, as functional_call wants it."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss, a scalar."""
        return self._task.loss(self.model, batch)


def _rule(task: Task, config: TrainConfig) -> AdamW | SGD:
    """The optimizer's options. TaskError for one that has no rows."""
    suited = optimizer_options(task).get(config.optimizer, {})
    rule: object = inner.get(config.optimizer, **{**suited, **config.optimizer_options()})
    if not isinstance(rule, AdamW | SGD):
        raise TaskError(f"models are stepped together by adamw and sgd, not by {config.optimizer}")
    return rule


def _stacked(batches: Sequence[Batch]) -> Batch:
    """Batches of like shapes as one, with a first dimension more. TaskError where they are unlike."""
    first, form = pytree.tree_flatten(batches[0])
    leaves: list[list[Any]] = [pytree.tree_leaves(batch) for batch in batches]
    try:
        stacked = [torch.stack([each[index] for each in leaves]) for index in range(len(first))]
    except (RuntimeError, TypeError, IndexError) as error:
        raise TaskError(f"batches of unlike shapes cannot be stepped together: {error}") from None
    return pytree.tree_unflatten(stacked, form)


def _decayed(places: Sequence[Place]) -> list[slice]:
    """Where weight decay applies: places side by side as one."""
    spans: list[slice] = []
    for place in places:
        if not place.decayed:
            continue
        if spans and spans[-1].stop == place.span.start:
            spans[-1] = slice(spans[-1].start, place.span.stop)
        else:
            spans.append(place.span)
    return spans


def _decay_(x_kd: torch.Tensor, decayed: Sequence[slice], factor_k: torch.Tensor) -> None:
    if bool(factor_k.any()):
        kept_k1 = (1 - factor_k).unsqueeze(1)
        for span in decayed:
            x_kd[:, span].mul_(kept_k1)
