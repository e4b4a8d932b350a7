"""DP-SGD's gradient: examples drawn, clipped one by one, summed, noised, and divided by what is expected.

    g = (sum over drawn i of grad_i min(1, C / ||grad_i||)  +  N(0, (z C)^2)) / (q N)

Every one of N examples is drawn with probability q from secret randomness, so that a step may have none: it is then of
noise alone, and a step like any other. The number that was drawn is told to nobody, and neither is a loss.

Where memory runs out, the same draw is summed again from its first example, with half as many at a time. It is one
draw, paid for once, and noise comes on the whole sum alone. What is halved is the number that is allowed, and not the
number drawn: who reads of it learns whether a draw fitted, and not how many there were.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from p2ptrain.inner.base import Place
from p2ptrain.privacy.allowance import Allowance
from p2ptrain.privacy.base import Privatizer
from p2ptrain.training.example_gradients import Gradients, add_weighted_, norms_of
from p2ptrain.training.machine import Machine
from p2ptrain.training.micro_batch import half_of
from p2ptrain.training.private_training import PrivateTraining

COMPARED: Final = 3
"""Examples whose gradients are compared with a loop's before the first step: more than one, for vmap to go over."""

CHUNK_BYTES: Final = 1 << 28
"""Most memory of the gradients of single examples, where the user sets no number of them. Chosen."""


@dataclass
class PoissonDraws:
    """Who is drawn: each of `count` examples with probability `rate`, in every step."""

    count: int
    rate: float
    chunk: int
    """Examples whose gradients are in memory at a time."""

    @classmethod
    def of(cls, count: int, rate: float, privacy: PrivateTraining, *, example_bytes: int) -> "PoissonDraws":
        """Return draws with the chunk that is set, or one that fits. `example_bytes`: of the gradient of an example."""
        fitting = min(math.ceil(2 * rate * count), CHUNK_BYTES // example_bytes)
        return cls(count, rate, privacy.chunk or max(1, fitting))


def compared(count: int) -> list[int]:
    """Return which of `count` examples to compare the gradients of with a loop's: a few, far from each other."""
    return [count * place // COMPARED for place in range(min(COMPARED, count))]


def fill_private_gradient_(
    sums: Sequence[tuple[torch.Tensor, Sequence[Place]]],
    gradients_at: Callable[[list[int]], Gradients],
    draws: PoissonDraws,
    allowance: Allowance,
    privacy: PrivateTraining,
    *,
    machine: Machine,
    fewer: Callable[[int, Exception], int] = half_of,
) -> None:
    """Fill flat vectors with the private gradient of one step: each (d,) with that of the parameters at its places,
    all of which are clipped together. `gradients_at` returns those of the examples of these numbers, of which there is
    at least one. `fewer`: how many to take at a time where so many did not fit; raises the error where that is none of
    memory. Raises BudgetSpentError, with nothing drawn."""
    allowance.take()
    drawn = privacy.source.drawn(draws.count, draws.rate).tolist()
    while True:
        restore_random_state = machine.random_state()
        try:
            _sum_clipped_(sums, gradients_at, drawn, draws.chunk, privacy.privatizer)
            break
        except Exception as error:
            draws.chunk = fewer(draws.chunk, error)
        restore_random_state()
        machine.free()
    for sum_d, _ in sums:
        privacy.privatizer.add_noise_(sum_d, privacy.source)
        sum_d.div_(draws.rate * draws.count)


def _sum_clipped_(
    sums: Sequence[tuple[torch.Tensor, Sequence[Place]]],
    gradients_at: Callable[[list[int]], Gradients],
    drawn: list[int],
    chunk: int,
    privatizer: Privatizer,
) -> None:
    for sum_d, _ in sums:
        sum_d.zero_()
    for start in range(0, len(drawn), chunk):
        gradients = gradients_at(drawn[start : start + chunk])
        factors = privatizer.factors(norms_of(gradients))  # by the norm over all of them
        for sum_d, places in sums:
            add_weighted_(sum_d, gradients, factors, places)
