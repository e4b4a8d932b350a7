"""A task's loss by way of torch.compile, or as it is where that cannot be.

Only the steps are compiled: forward pass, loss and, with them, the backward pass. What they compute is the same within
rounding, so members with and without it train one model together.
"""

from collections.abc import Callable

import torch
from torch import nn

from p2ptrain import faults
from p2ptrain.tasks.base import Batch, Task

BACKEND = "inductor"
"""Torch's own. It needs a C++ compiler for a CPU, and Triton for a GPU."""

ADVICE = " Set TORCHDYNAMO_VERBOSE"
"""Where in torch's messages its advice to developers begins."""


class CompiledLoss:
    """`task.loss` as a callable, compiled at its first call where `compiles`; the first steps take longer."""

    def __init__(self, task: Task, *, compiles: bool) -> None:
        self._task = task
        self._compiles = compiles
        self._compiled: Callable[[nn.Module, Batch], object] | None = None
        self.fault = ""
        """Why it is not compiled although it was to be."""

    def __call__(self, model: nn.Module, batch: Batch) -> object:
        """Return what the task's loss returns."""
        if not self._compiles:
            return self._task.loss(model, batch)
        if self._compiled is None:  # here, since this may fail, too
            self._compiled = torch.compile(self._task.loss, backend=BACKEND)
        return self._compiled(model, batch)

    def gives_up(self, error: Exception) -> bool:
        """After `error` in a compiled forward or backward pass: return whether the step is to be taken again without
        compiling, as all later ones are. Not for want of memory. Where the task is at fault, it fails again, with its
        own place in the message."""
        if not self._compiles or faults.lacks_memory(error):
            return False
        self._compiles, self._compiled = False, None
        self.fault = faults.what_of(error.__cause__ or error).partition(ADVICE)[0]
        return True
