"""What of the machine a trainer computes with: device, precision and CPU threads."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from p2ptrain.tasks.base import Batch, TaskError
from p2ptrain.tasks.batches import moved
from p2ptrain.training.train_config import TrainConfig

BF16_CAPABILITY = (8, 0)
"""CUDA compute capability from which bf16 runs on tensor cores (Ampere); before, it is emulated and slow."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Resolved from the configuration; see there for the choices."""

    device: torch.device
    precision: str
    """`bf16` or `fp32`."""
    threads: int

    @classmethod
    def of(cls, config: TrainConfig) -> "Machine":
        """TaskError when this machine has no such device."""
        device = pick_device(config.device)
        return cls(device=device, precision=pick_precision(config.precision, device), threads=config.threads)

    @property
    def has_own_memory(self) -> bool:
        """Whether the device has memory of its own, and says when it runs out."""
        return self.device.type == "cuda"

    def take(self, batch: Batch) -> Batch:
        """Return the batch on the device."""
        return moved(batch, self.device)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which to compute a loss."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def random_state(self) -> Callable[[], None]:
        """Return what makes torch's random numbers go on from here again."""
        here = torch.get_rng_state()
        there = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None

        def restore() -> None:
            torch.set_rng_state(here)
            if there is not None:
                torch.cuda.set_rng_state(there, self.device)

        return restore

    def free(self) -> None:
        """Give back the memory of what nobody uses any more."""
        gc.collect()  # tensors of a step that failed are in its frames, which errors and frames hold in cycles
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def free_workspaces(self) -> None:
        """Give back what cuBLAS computes in, which it takes again when it needs it. Call it while nobody computes."""
        if self.device.type == "cuda":
            torch._C._cuda_clearCublasWorkspaces()

    def pin_threads(self) -> None:
        """Set torch's threads in this thread: torch keeps the number per thread, and a worker thread of a pool may have
        been started with another."""
        if self.threads and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)


def pick_device(name: str) -> torch.device:
    """Return the device that `name` stands for. TaskError when this machine has none such."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name, dtype=torch.float32)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA; all else is the first
        reason = str(error).splitlines()[0]
        raise TaskError(f"device {name!r} cannot be used here ({reason}); set device to auto or cpu") from error


def pick_precision(wanted: str, device: torch.device) -> str:
    """`bf16` or `fp32`, given what was asked for and what the device computes in."""
    if wanted != "auto":
        return wanted
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= BF16_CAPABILITY
    return "bf16" if fast else "fp32"
