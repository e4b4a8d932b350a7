"""One rank of a site: what it computes when the leader says so.

A step is the one that a node of one process takes: `grad_accumulation` batches of `batch_size`, at the same addresses
of the data. The ranks with data of their own share its batches, or each batch's examples where there are fewer batches
than ranks. So neither the rate nor the data depends on how many ranks there are, and a run goes on with another number
of them.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from torch import nn

from p2ptrain.tasks.base import Batch, Derived, HoldsOutOwn, Shard, Task, optimizer_options
from p2ptrain.tasks.calling import TaskFaultError, calling, checked_loss
from p2ptrain.tasks.metrics import Means, Measures, checked_metrics, own_metrics
from p2ptrain.training.machine import Machine
from p2ptrain.training.sharded_model import Order
from p2ptrain.training.site.batch_shares import (
    BatchShare,
    GivenOutput,
    batch_share,
    inputs_of,
    micro_batches,
    padded,
    padded_examples,
)
from p2ptrain.training.site.cut_model import CutModel, cut_model
from p2ptrain.training.site.orders import GivenOrder, OrderChannel, SiteOrder
from p2ptrain.training.site.part_optimizers import PartOptimizers
from p2ptrain.training.site.pipeline_cut import PipelineCut
from p2ptrain.training.site.site_config import SiteConfig
from p2ptrain.training.site.site_model import SiteModel
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.trainer import JUDGED

if TYPE_CHECKING:
    from p2ptrain.training.site.stage_pipeline import StagePipeline


class LossKind(IntEnum):
    """What a loss is measured on."""

    HELD_OUT = 0
    OWN = 1
    """What the shard holds out for itself."""
    JUDGE = 2
    """A batch that models are judged by."""
    METRICS = 3
    """The task's own metrics, on what is held out."""


@dataclass(frozen=True)
class StepTaken:
    """What came of a step, the same in all ranks."""

    loss: float
    tokens: int
    taken: bool


class SiteRank:
    """Builds this rank's part of the task's model, and does what is ordered. Collective. TaskError, ValueError."""

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        site: SiteConfig,
        shard: Shard,
        orders: OrderChannel,
        *,
        data_seed: int,
        device: torch.device,
    ) -> None:
        """`device`: of this rank."""
        self.task, self.config, self.shard, self.data_seed, self.orders = task, config, shard, data_seed, orders
        self.machine = Machine.of(replace(config, device=str(device)))
        self.timeout_s = site.timeout_s
        ranks = torch.distributed.get_world_size(orders.group)
        self.cut: CutModel = cut_model(task, config.seed, site, self.machine.device, ranks)
        self.model = self.cut.model
        self.sharded = SiteModel(self.model, self.cut.stages, orders)
        self.pipeline = None if self.cut.pipeline is None else self._piped(self.cut.pipeline)
        self.micro_batches = (
            1 if self.pipeline is None else site.micro_batch_count(config.batch_size, config.grad_accumulation, ranks)
        )
        options = {**optimizer_options(task).get(config.optimizer, {}), **config.optimizer_options()}
        self.optimizers = PartOptimizers(config.optimizer, options, self.sharded.parts, self.cut.places)
        self._kept: list[torch.Tensor] = []
        self._held_out: list[Batch] | None = None
        self._own_held_out: list[Batch] | None = None

    def follow(self) -> None:
        """Do what the leader orders, until it says that this is the end."""
        while (word := self.orders.heard()).order != SiteOrder.END:
            self.obey(word)

    def part(self) -> None:
        """Wait until all ranks know that this is the end."""
        self.orders.part(self.timeout_s)

    def obey(self, word: GivenOrder) -> None:
        """Do one order of the leader's."""
        match word.order:
            case SiteOrder.STEP:
                self.step(int(word.first), word.second)
            case SiteOrder.KEEP:
                self.keep()
            case SiteOrder.RESTORE:
                self.restore()
            case SiteOrder.MEASURE if word.first == LossKind.METRICS:
                self.metrics()
            case SiteOrder.MEASURE:
                self.loss(LossKind(int(word.first)), int(word.second))
            case SiteOrder.SAVE:
                self.optimizer_state()
            case SiteOrder.RESUME:
                self.take_optimizer_state(None)
            case order:
                self.sharded.follow(Order(order))

    def step(self, number: int, rate: float) -> StepTaken:
        """Take step `number` at this rate, unless loss or gradient is not finite."""
        self.machine.pin_threads()
        points = self.optimizers.points()
        kept = [] if points is None else [each.clone() for each in self.sharded.parts]
        self._set(points or [])
        loss, tokens = self._backward(number)
        self.sharded.check_used()
        self._set(kept)
        gradients = self.sharded.gradients()
        self.sharded.average(gradients, self.cut.data_groups)
        if self.cut.pipeline is not None:
            self.sharded.add_up(gradients, self.cut.pipeline.shared)
        squares = sum(float(each.double().square().sum()) for each in self.sharded.brought(gradients))
        loss, predicted, squares = self.orders.summed([loss / self.cut.same, tokens / self.cut.same, squares])
        norm = math.sqrt(squares) if math.isfinite(squares) else math.nan
        usable = math.isfinite(loss) and math.isfinite(norm)
        if usable:
            if 0 < self.config.clip_norm < norm:
                torch._foreach_mul_(gradients, self.config.clip_norm / norm)
            with torch.no_grad():
                self.optimizers.step(gradients, rate)
        for each in self.sharded.parameters:
            each.grad = None
        return StepTaken(loss, round(predicted), usable)

    def keep(self) -> None:
        """Put the model's parts aside, on the host."""
        self._kept = [each.to("cpu", copy=True) for each in self.sharded.parts]

    def restore(self) -> None:
        """Set the model to what was put aside."""
        self._set(self._kept)
        self._kept = []

    def loss(self, measured: LossKind, round_: int = 0) -> float:
        """Return the mean loss on the examples that are meant, in every rank; nan where there are none."""
        total = count = 0.0
        with torch.no_grad():
            self._set_training(False)
            for piece, model in map(self._evaluated, self._batches(measured, round_)):
                if model is not None:
                    total += float(self._computed(model, piece.batch, trains=False)) * piece.predictions
                    count += piece.predictions
            self._set_training(True)
        total, count = self.orders.summed([total, count])
        return total / count if count else math.nan

    def metrics(self) -> Measures:
        """Return the task's own metrics on what is held out; where it fails at them, why."""
        found = own_metrics(self.task)
        means, fault = Means(), ""
        assert found is not None
        with torch.no_grad():
            self._set_training(False)
            for piece, model in map(self._evaluated, self._batches(LossKind.HELD_OUT, 0)):
                if model is None:
                    continue
                with self._calls() as calls:
                    try:
                        if not fault:
                            with calling(self.task, "metrics"), self.machine.autocast():
                                values = checked_metrics(self.task, found(model, self.machine.take(piece.batch)))
                            means.add(values, piece.predictions)
                    except TaskFaultError as error:
                        fault = str(error)
                if fault and not calls and self.pipeline is None:  # the others gather the model's blocks, with this one
                    self._computed(model, piece.batch, trains=False)
            self._set_training(True)
        whole = Means()
        for each, failed in self.orders.gathered((means, fault)):
            whole.merge(each)
            fault = fault or failed
        return Measures(loss=math.nan, own={} if fault else whole.finite(), fault=fault)

    def has_own(self) -> bool:
        """Whether the shard holds something out for itself."""
        return isinstance(self.task, HoldsOutOwn) and bool(self._batches(LossKind.OWN, 0))

    def derived(self, loss: float) -> dict[str, float]:
        """Return the metrics that follow from a held-out loss."""
        return dict(self.task.derived_metrics(loss)) if isinstance(self.task, Derived) else {}

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's whole buffers, as one process has them; only in the leader."""
        state = {}
        for name in self.optimizers.names:
            buffers = self.optimizers.buffers(name)
            if self.optimizers.is_counter(name):
                state[name] = self._first_filled(buffers).to("cpu", copy=True)
            else:
                state[name] = self.sharded.gather(buffers)
        return state

    def take_optimizer_state(self, state: dict[str, torch.Tensor] | None) -> None:
        """Take the optimizer's state, which the leader has."""
        for name in self.optimizers.names:
            buffers = self.optimizers.buffers(name)
            if self.optimizers.is_counter(name):
                value = self.orders.share(None if state is None else state[name].to("cpu"))
                for each in buffers:
                    each.copy_(value)
            else:
                self.sharded.deal(None if state is None else state[name], buffers)

    def _piped(self, cut: PipelineCut) -> "StagePipeline":
        """Have this rank's stages compute with those of the others."""
        from p2ptrain.training.site.stage_pipeline import StagePipeline  # half a second that other sites do not wait

        return StagePipeline(cut.stages, cut.count, cut.group, self.machine.device, self.machine.autocast)

    def _backward(self, number: int) -> tuple[float, float]:
        """Add up this rank's share of the step's gradient. Return its share of the loss, and its predictions. Only the
        last pass has the ranks add up their gradients."""
        group, member, sharing = self._sharing()
        own = range(group, self.config.grad_accumulation, self.cut.data_ranks // sharing)
        if self.pipeline is not None:
            return self._backward_in_stages([self._batch(number, part) for part in own], member, sharing)
        total = torch.zeros((), device=self.machine.device, dtype=torch.float32)
        tokens = 0.0
        for part in own:
            piece = batch_share(self.task, self._batch(number, part), member, sharing)
            self._sync_gradients(part == own[-1])
            loss = self._computed(self.model, piece.batch, trains=True) * self._weight(piece)
            (loss * self.cut.data_ranks).backward()  # type: ignore[no-untyped-call]  # the ranks' gradients are averaged
            total += loss.detach()
            tokens += piece.predictions
        return float(total), tokens

    def _backward_in_stages(self, batches: Sequence[Batch], member: int, sharing: int) -> tuple[float, float]:
        """The same through the stages of a pipeline; loss and predictions are its last rank's."""
        ranks, size = self.cut.data_ranks, self.config.batch_size * len(batches) // (sharing * self.micro_batches)
        micro = [each for batch in batches for each in micro_batches(self.task, batch, member, sharing, size)]

        def loss_of(output: torch.Tensor, index: int) -> torch.Tensor:
            if not micro[index].predictions:
                return output.sum() * 0.0  # a mean over nothing is no number
            given = GivenOutput(output, trains=True)
            return self._computed(given, micro[index].batch, trains=True) * self._weight(micro[index]) * ranks

        assert self.pipeline is not None
        inputs = self.machine.take(torch.cat([inputs_of(self.task, each.batch) for each in micro]))
        losses = self.pipeline.backward(inputs, len(micro), loss_of)
        if not self.pipeline.has_last:
            return 0.0, 0.0
        return float(torch.stack(losses).sum()) / ranks, sum(each.predictions for each in micro)

    def _sharing(self) -> tuple[int, int, int]:
        """Return the first of the step's batches that this rank computes, its place among the ranks that share the
        examples of each of these, and how many these ranks are."""
        groups = math.gcd(self.cut.data_ranks, self.config.grad_accumulation)
        sharing = self.cut.data_ranks // groups
        return *divmod(self.cut.data_rank, sharing), sharing

    def _weight(self, piece: BatchShare) -> float:
        """Of a piece's mean loss in that of the step."""
        return piece.share / self.config.grad_accumulation

    def _sync_gradients(self, last: bool) -> None:
        self.model.set_requires_gradient_sync(last)  # type: ignore[operator]  # of FSDP2
        self.model.set_is_last_backward(last)  # type: ignore[operator]

    @contextmanager
    def _calls(self) -> Iterator[list[None]]:
        """Yield a list that has an entry for each call of the model within the block."""
        calls: list[None] = []
        hook = self.model.register_forward_pre_hook(lambda module, inputs: calls.append(None))
        try:
            yield calls
        finally:
            hook.remove()

    def _set_training(self, trains: bool) -> None:
        for stage in self.cut.stages:
            stage.train(trains)

    def _computed(self, model: nn.Module, batch: Batch, *, trains: bool) -> torch.Tensor:
        with calling(self.task, "loss"), self.machine.autocast():
            return checked_loss(self.task, self.task.loss(model, self.machine.take(batch)), trains=trains)

    def _batch(self, number: int, part: int) -> Batch:
        address = number * self.config.grad_accumulation + part
        with calling(self.task, "train_batch"):
            return self.task.train_batch(address, seed=self.data_seed, shard=self.shard, size=self.config.batch_size)

    def _batches(self, measured: LossKind, round_: int) -> Sequence[Batch]:
        examples = self.config.eval_examples
        if measured is LossKind.JUDGE:
            with calling(self.task, "train_batch"):
                seed, size = self.data_seed ^ JUDGED, self.config.batch_size
                return [self.task.train_batch(round_, seed=seed, shard=self.shard, size=size)]
        if measured is LossKind.OWN:
            assert isinstance(self.task, HoldsOutOwn), "asked for by the leader, whose task is the same"
            if self._own_held_out is None:
                self._own_held_out = list(self.task.shard_eval_batches(self.shard, examples))
            return self._own_held_out
        if self._held_out is None:
            with calling(self.task, "eval_batches"):
                self._held_out = list(self.task.eval_batches(examples))
        return self._held_out

    def _evaluated(self, batch: Batch) -> tuple[BatchShare, nn.Module | None]:
        """Return this rank's share of a batch, and what the task is to evaluate on it; None where another rank does, or
        nobody. All ranks go through the model for each batch."""
        ranks = self.cut.data_ranks
        if self.pipeline is None:
            return batch_share(self.task, batch, self.cut.data_rank, ranks), self.model
        piece = batch_share(self.task, batch, self.cut.data_rank, ranks, keeps_empty=True)
        inputs = inputs_of(self.task, piece.batch)
        whole = padded(inputs, padded_examples(batch, ranks, self.pipeline.ranks))
        output = self.pipeline.outputs(self.machine.take(whole))
        if output is None or not piece.predictions:
            return piece, None
        return piece, GivenOutput(output[: len(inputs)], trains=False)

    def _set(self, values: Sequence[torch.Tensor]) -> None:
        """Set the parts to `values`, where there are some."""
        with torch.no_grad():
            for part, value in zip(self.sharded.parts, values, strict=False):
                part.copy_(value.view(part.shape))

    def _first_filled(self, buffers: Sequence[torch.Tensor]) -> torch.Tensor:
        pairs = zip(buffers, self.sharded.parts, strict=True)
        return next((buffer for buffer, part in pairs if part.numel()), buffers[0])
