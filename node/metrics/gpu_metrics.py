"""Memory of the GPU that the node trains on, as gauges, read at each scrape; there are none where it trains elsewhere.

The device is always named: torch's current one belongs to a thread, and a scrape is not answered in the one that
trains; asked about another device, CUDA would begin to use it, at some hundred MB and a second on the event loop.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from prometheus_client import CollectorRegistry, Gauge

from node.metrics.declared import DECLARED


@dataclass(frozen=True)
class GpuUse:
    """Of the device that the node trains on. None: it is none of CUDA's, or nobody can say."""

    share: float | None = None
    """Of the last moment in which it computed, 0 to 1, as its driver says; wants nvidia-ml-py."""
    memory_bytes: int | None = None
    """Held by this process."""


def gpu_use(device: torch.device) -> GpuUse:
    """How busy the device is, and how full: two calls to its driver, of microseconds."""
    if device.type != "cuda":
        return GpuUse()
    try:
        share = torch.cuda.utilization(device) / 100
    except Exception:  # no nvidia-ml-py, or an error of its own class, which cannot be named without it
        share = None
    return GpuUse(share, torch.cuda.memory_reserved(device))


def register_gpu(registry: CollectorRegistry, device: torch.device) -> bool:
    """Add the `p2ptrain_gpu_*` gauges, in bytes, if `device` is one of CUDA's; whether it was done."""
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
