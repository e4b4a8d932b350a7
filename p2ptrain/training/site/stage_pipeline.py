"""One rank of a pipeline: its stages of the model, which go through the micro-batches of a step by torch's schedules.

A schedule is made for as many micro-batches of one shape. What a step and an evaluation need, which are of different
shapes, are kept beside each other; the stages are the same.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

KEPT_SCHEDULES: Final = 6
"""A step's, a judge's, and those of two evaluations, each with a shorter last batch. Each has buffers for what is
received. Chosen."""

LossOf = Callable[[torch.Tensor, int], torch.Tensor]
"""The loss of the last stage's output for the micro-batch of this number."""

logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
"""Where a stage fails torch prints the whole schedule; what failed is raised as well."""


class StagePipeline:
    """Has `stages`, by their numbers among `count`, compute with those of the other ranks of `group`. Collective among
    these ranks, which all have the same inputs."""

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        count: int,
        group: dist.ProcessGroup,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.ranks = dist.get_world_size(group)
        self.has_last = count - 1 in stages
        self._stages, self._count, self._group, self._device = stages, count, group, device
        self._schedules: dict[tuple[object, ...], Any] = {}
        self._loss_of: LossOf | None = None
        for stage in stages.values():
            stage.forward = _within(autocast, stage.forward)

    def backward(self, inputs: torch.Tensor, count: int, loss_of: LossOf) -> list[torch.Tensor]:
        """Add the gradients of each of `count` equal micro-batches to those of the parameters. Return their losses,
        which only the rank with the last stage has."""
        losses: list[torch.Tensor] = []
        self._loss_of = loss_of
        numbers = torch.arange(count, device="cpu")
        self._run(inputs, count, True, target=numbers, losses=losses, return_outputs=False)
        self._loss_of = None
        return [loss.detach() for loss in losses]

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Return what the model makes of `inputs`, whose number is a multiple of `ranks`; None in ranks without the
        last stage. To be called without gradients."""
        found: torch.Tensor | None = self._run(inputs, self.ranks, False)
        return found

    def _run(self, inputs: torch.Tensor, count: int, trains: bool, **options: object) -> Any:
        schedule = self._schedule(inputs, count, trains)
        try:
            return schedule.step(*([inputs] if 0 in self._stages else []), **options)
        except RuntimeError as error:
            raise error.__cause__ or error from None  # torch wraps what a stage raises, with all its arguments

    def _schedule(self, inputs: torch.Tensor, count: int, trains: bool) -> Any:
        key = (trains, count, inputs.shape, inputs.dtype)
        if key not in self._schedules:
            if len(self._schedules) == KEPT_SCHEDULES:
                self._schedules.clear()
            self._schedules[key] = self._made(count, self._loss if trains else None)
        return self._schedules[key]

    def _made(self, count: int, loss: Callable[..., torch.Tensor] | None) -> Schedule1F1B | ScheduleInterleaved1F1B:
        stages = [
            PipelineStage(stage, index, self._count, self._device, group=self._group)
            for index, stage in self._stages.items()
        ]
        # The losses are parts of the step's, not means that would have to be divided by their number.
        if len(stages) > 1:
            return ScheduleInterleaved1F1B(list(stages), count, loss, scale_grads=False)
        return Schedule1F1B(stages[0], count, loss, scale_grads=False)

    def _loss(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        assert self._loss_of is not None, "set for as long as a schedule runs"
        return self._loss_of(output, int(number))


def _within(
    context: Callable[[], AbstractContextManager[object]], forward: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    def within(*inputs: torch.Tensor) -> torch.Tensor:
        with context():
            return forward(*inputs)

    return within
