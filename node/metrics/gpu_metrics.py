"""Gauges of the memory of the GPU that the node trains on, read at each scrape; none where it trains elsewhere.

The device is always named. torch's current device belongs to a thread, and a scrape is answered in another one than
training. Asked about another device, CUDA would begin to use it: some hundred MB, and a second on the event loop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from prometheus_client import CollectorRegistry, Gauge

from node.metrics.declared import DECLARED


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """Bytes of the device's memory, as the process that trains sees them."""

    allocated: int
    """In tensors."""
    reserved: int
    """Held by torch."""
    free: int
    """Free on the device."""


@dataclass(frozen=True)
class GpuUse:
    """Use of the device that the node trains on. None: it is not a CUDA device, or the value is not known."""

    share: float | None = None
    """Recent share of time in which the device computed, 0 to 1, by its driver; needs nvidia-ml-py."""
    memory_bytes: int | None = None
    """Bytes held by the process that trains."""


def gpu_memory(device: torch.device) -> GpuMemory | None:
    """Return the memory of the device on which this process trains; None where that is not a CUDA device."""
    if device.type != "cuda":
        return None
    cuda = torch.cuda
    return GpuMemory(
        allocated=cuda.memory_allocated(device),
        reserved=cuda.memory_reserved(device),
        free=cuda.mem_get_info(device)[0],
    )


def gpu_use(device: torch.device, memory: GpuMemory | None) -> GpuUse:
    """Return how busy the device is, by a call of microseconds to its driver, and how full by `memory`."""
    if device.type != "cuda":
        return GpuUse()
    try:
        share = torch.cuda.utilization(device) / 100
    except Exception:  # no nvidia-ml-py, or one of its errors, whose class cannot be named without it
        share = None
    return GpuUse(share, None if memory is None else memory.reserved)


def register_gpu(
    registry: CollectorRegistry, device: torch.device, read: Callable[[], GpuMemory | None] | None = None
) -> bool:
    """Add the `p2ptrain_gpu_*` gauges, in bytes, if `device` is a CUDA device. Return whether they were added. `read`:
    returns what another process trains with; None: this one does."""
    if device.type != "cuda":
        return False
    read = read or partial(gpu_memory, device)

    def gauge(name: str, field: Callable[[GpuMemory], int]) -> None:
        _gauge(registry, name, lambda: 0 if (memory := read()) is None else field(memory))

    gauge("gpu_memory_allocated_bytes", lambda memory: memory.allocated)
    gauge("gpu_memory_reserved_bytes", lambda memory: memory.reserved)
    gauge("gpu_memory_free_bytes", lambda memory: memory.free)
    return True


def _gauge(registry: CollectorRegistry, name: str, read: Callable[[], float]) -> None:
    metric = DECLARED[name]
    Gauge(metric.full_name, metric.help, registry=registry).set_function(read)
