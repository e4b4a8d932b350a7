"""torch's DistributedDataParallel over gloo, plain or with one of torch's own communication hooks."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from node.bench.race.host import optimizers, set_rate
from node.bench.race.spec import HostPlan

PORT: Final = 29500
PATIENCE: Final = timedelta(minutes=10)
"""For one operation: the slowest link here takes seconds."""
FIRST_COMPRESSED: Final = 2
"""PowerSGD's first step with compression: the earliest that torch allows with error feedback."""

ONE_BUCKET_MB: Final = 1024
"""For PowerSGD, whose hook begins an all-reduce when another one ends: with two buckets gloo's hosts begin them in
different orders, and wait for each other for ever."""


class DDPStepper:
    """A step of data parallel training: the exact, or the hook's, mean gradient of all hosts."""

    def __init__(self, plan: HostPlan, model: nn.Module) -> None:
        distributed.init_process_group(
            "gloo",
            init_method=f"tcp://{plan.address}:{PORT}",
            rank=plan.rank,
            world_size=plan.spec.hosts,
            timeout=PATIENCE,
        )
        self._optimizers = optimizers(plan, model)
        self._clip_norm = plan.spec.train().clip_norm
        hook = plan.options.get("hook", "none")
        self._model = DistributedDataParallel(model, bucket_cap_mb=ONE_BUCKET_MB if hook == "powersgd" else None)
        _register(self._model, hook, plan.options.get("rank", 1))

    def step(self, loss: Callable[[nn.Module], torch.Tensor], rate: float) -> None:
        """Do one step at this learning rate, from the loss of this host's batch."""
        for optimizer in self._optimizers:
            set_rate(optimizer, rate)
            optimizer.zero_grad()
        loss(self._model).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        for optimizer in self._optimizers:
            optimizer.step()


def stepper(plan: HostPlan, model: nn.Module) -> DDPStepper:
    """Meet the other hosts; return what trains with them."""
    return DDPStepper(plan, model)


def _register(model: DistributedDataParallel, hook: str, rank: int) -> None:
    if hook == "bf16":
        model.register_comm_hook(None, _bf16)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=FIRST_COMPRESSED)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _bf16(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses a hook annotated with other types than its own
    """torch's hook under another name: by its own it is refused without NCCL, though gloo adds bf16 too."""
    return default_hooks.bf16_compress_hook(None, bucket)  # type: ignore[arg-type]  # as torch itself calls it
