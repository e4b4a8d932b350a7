"""Gauges of the memory of the GPU that the node trains on, read at each scrape; none where it trains elsewhere.

The device is always named. torch's current device belongs to a thread, and a scrape is answered in another one than
training. Asked about another device, CUDA would begin to use it: some hundred MB, and a second on the event loop.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from prometheus_client import CollectorRegistry, Gauge

from node.metrics.declared import DECLARED


@dataclass(frozen=True)
class GpuUse:
    """Use of the device that the node trains on. None: it is not a CUDA device, or the value is not known."""

    share: float | None = None
    """Recent share of time in which the device computed, 0 to 1, by its driver; needs nvidia-ml-py."""
    memory_bytes: int | None = None
    """Bytes held by this process."""


def gpu_use(device: torch.device) -> GpuUse:
    """Return how busy and how full the device is, by two calls of microseconds to its driver."""
    if device.type != "cuda":
        return GpuUse()
    try:
        share = torch.cuda.utilization(device) / 100
    except Exception:  # no nvidia-ml-py, or one of its errors, whose class cannot be named without it
        share = None
    return GpuUse(share, torch.cuda.memory_reserved(device))


def register_gpu(registry: CollectorRegistry, device: torch.device) -> bool:
    """Add the `p2ptrain_gpu_*` gauges, in bytes, if `device` is a CUDA device. Return whether they were added."""
    if device.type != "cuda":
        return False
    cuda = torch.cuda
    _gauge(registry, "gpu_memory_allocated_bytes", lambda: cuda.memory_allocated(device))
    _gauge(registry, "gpu_memory_reserved_bytes", lambda: cuda.memory_reserved(device))
    _gauge(registry, "gpu_memory_free_bytes", lambda: cuda.mem_get_info(device)[0])
    return True


def _gauge(registry: CollectorRegistry, name: str, read: Callable[[], float]) -> None:
    metric = DECLARED[name]
    Gauge(metric.full_name, metric.help, registry=registry).set_function(read)
