"""How fast a machine trains a model that it does not have: its products of matrices, against those of a machine on
which the model was trained.

Training is mostly products of matrices, but never only: what of a machine's rate in them a model makes use of depends
on its size, its kind and the batch. So that share is not guessed, it is measured where the model is: the *cost* of a
token is what that machine could have multiplied meanwhile. Another machine's rate over this cost is what it would
train, as far as both have the same weak points. Memory bandwidth and the input are not looked at.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch

from p2ptrain.tasks.base import Shard, Task
from p2ptrain.training.machine import Machine
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.trainer import Trainer

Clock = Callable[[], float]
"""Seconds, monotonic."""

RATE_S: Final = 0.5
"""Of multiplying: some dozen products, the quickest of which says what the machine can do, whatever runs beside."""

WIDTHS: Final = {"cpu": 512, "cuda": 4096, "mps": 2048}
"""Of the square matrices, by device: wide enough that the device's own start of a product does not count."""

STEPS_S: Final = 3.0
"""Of training, and at least so many steps:"""
LEAST_STEPS: Final = 3


@dataclass(frozen=True, kw_only=True)
class StepRates:
    """What some steps of a trainer have shown."""

    step_s: float
    """Median seconds of a step."""
    steps: int
    """How many were timed."""
    examples: int
    """Of a step: its batches' together."""
    tokens: float
    """Predictions of a step, as the task counts them."""
    micro_batch: int | None
    """Examples that went through the model at a time; None: a batch."""


def step_rates(trainer: Trainer, clock: Clock, for_s: float, step: Callable[[], object] | None = None) -> StepRates:
    """Return how fast `trainer` takes steps, by taking them for `for_s` seconds, at least two. The first one is not
    counted, however long it takes: libraries are loaded in it, steps are compiled, and it is found out how many
    examples fit at a time. `step`: what takes one, where more than a step of `trainer` belongs to it. Whatever the task
    raises."""
    config, step = trainer.config, trainer.step if step is None else step
    with _threads_of(trainer.machine):
        first_s = _timed(step, clock, at_least_s=0.0, times=1)[0]
        before = trainer.tokens
        seconds = _timed(step, clock, at_least_s=for_s - first_s, times=1)
    return StepRates(
        step_s=median(seconds),
        steps=len(seconds),
        examples=config.batch_size * config.grad_accumulation,
        tokens=(trainer.tokens - before) / len(seconds),
        micro_batch=trainer.micro_batch,
    )


def matmul_rate(config: TrainConfig, clock: Clock) -> float:
    """Return how many floating-point operations a second this machine does in products of matrices, on the device, in
    the precision and with the threads that it would train with. Takes RATE_S. TaskError where it has no such
    device."""
    machine = Machine.of(config)
    width = WIDTHS.get(machine.device.type, WIDTHS["cpu"])
    dtype = torch.bfloat16 if machine.precision == "bf16" else torch.float32
    left, right = (torch.full((width, width), 0.5, dtype=dtype, device=machine.device) for _ in range(2))
    with _threads_of(machine):
        _multiply(left, right)  # libraries are loaded, and kernels chosen, in the first one
        seconds = _timed(lambda: _multiply(left, right), clock, at_least_s=RATE_S, times=1)
    return 2 * width**3 / min(seconds)


def token_rate(task: Task, config: TrainConfig, clock: Clock) -> float:
    """Return how many tokens (of images: images) a second this machine trains, in the quickest of some steps.
    TaskError, ValueError where it cannot."""
    trainer = Trainer(task, config, Shard())
    with _threads_of(trainer.machine):
        trainer.step()
        before = trainer.tokens
        seconds = _timed(trainer.step, clock, at_least_s=STEPS_S, times=LEAST_STEPS)
    return (trainer.tokens - before) / len(seconds) / min(seconds)


def _multiply(left: torch.Tensor, right: torch.Tensor) -> None:
    float((left @ right)[0, 0])  # read back: until then a GPU has only been asked


def _timed(what: Callable[[], object], clock: Clock, *, at_least_s: float, times: int) -> list[float]:
    seconds: list[float] = []
    while len(seconds) < times or sum(seconds) < at_least_s:
        begun = clock()
        what()
        seconds.append(clock() - begun)
    return seconds


@contextmanager
def _threads_of(machine: Machine) -> Iterator[None]:
    before = torch.get_num_threads()
    machine.pin_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
