"""Energy of training: read from the machine's own counters, or estimated, with the source named.

    nvml       the GPU that the node trains on, as its driver counts (nvidia-ml-py), other processes included
    rapl       the processors' packages (/sys/class/powercap), by this process's share of the machine's busy CPU time
    estimate   this process's CPU time, at so many watts for a busy core

A node on a GPU has `nvml`, and also `rapl` or `estimate` for its processor. Where its GPU does not report its energy,
the node reports none: the processor's few watts would be taken for the whole.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import psutil

from node.system.process_use import ProcessUse

if TYPE_CHECKING:
    import torch  # a bootstrap node imports this module without torch

SOURCES: Final = ("nvml", "rapl", "estimate")

POWERCAP: Final = Path("/sys/class/powercap")

Joules = Callable[[], float]
"""Reads a counter of joules, of which only differences matter. Raises OSError when it can no longer be read, and
ValueError when what it reads is no number."""


class CpuTimes(Protocol):
    """Seconds of CPU time, since an arbitrary moment."""

    def own(self) -> float:
        """Return the CPU time of this process, all threads."""

    def machine(self) -> float:
        """Return the busy CPU time of the whole machine, all cores."""


class SystemTimes:
    """CPU times by the operating system."""

    def __init__(self, use: ProcessUse | None = None) -> None:
        """`use`: of the node's processes; None: of this one."""
        self._use = ProcessUse() if use is None else use

    def own(self) -> float:
        """Return the node's CPU time in seconds."""
        return self._use.cpu_s()

    def machine(self) -> float:
        """Return the machine's busy CPU time in seconds."""
        times = psutil.cpu_times()
        # guest is part of user, and iowait is idle.
        return float(times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "irq", 0.0))


@dataclass(kw_only=True)
class Meter:
    """Measures energy since its construction, by source. A counter that fails is no longer read, but its sum is kept.
    It may be read from several threads."""

    counters: dict[str, Joules]
    failed: set[str] = field(default_factory=set)
    """Sources that can no longer be read."""
    _seen: dict[str, float] = field(default_factory=dict)
    _total: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.joules()

    def joules(self) -> Mapping[str, float]:
        """Return the joules so far, by source; empty where there is no counter."""
        with self._lock:  # or what was taken between two readings would count in two threads
            for source, read in list(self.counters.items()):
                try:
                    now = read()
                except (OSError, ValueError):
                    del self.counters[source]
                    self.failed.add(source)
                    continue
                # A counter that restarts (its driver was loaded again) is ignored for one reading.
                step = max(0.0, now - self._seen.get(source, now))
                self._total[source] = self._total.get(source, 0.0) + step
                self._seen[source] = now
            return dict(self._total)


def meter_for(
    device: "torch.device",
    *,
    watts: float,
    nvml: Any = None,
    powercap: Path = POWERCAP,
    times: CpuTimes | None = None,
) -> Meter:
    """Return the meter of a node that trains on `device`, with the counters that can be read. `watts`: of a busy core,
    for the estimate. `nvml`: the module pynvml; by default the installed one, if any."""
    times = times or SystemTimes()
    counters: dict[str, Joules] = {}
    if device.type != "cpu":
        gpu = _gpu(device, nvml) if device.type == "cuda" else None
        if gpu is None:
            return Meter(counters={})
        counters["nvml"] = gpu
    packages = [package for path in sorted(powercap.glob("intel-rapl:*")) if (package := _package(path)) is not None]
    if packages:
        counters["rapl"] = _Share(packages, times)
    else:
        counters["estimate"] = lambda: times.own() * watts
    return Meter(counters=counters)


class _Share:
    """This process's share of the energy that all packages took between two readings."""

    def __init__(self, packages: Sequence[Joules], times: CpuTimes) -> None:
        self._packages, self._times = packages, times
        self._before = self._read()
        self._joules = 0.0

    def __call__(self) -> float:
        now = self._read()
        joules, own, machine = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        self._joules += max(0.0, joules) * min(1.0, own / machine if machine > 0 else 0.0)
        return self._joules

    def _read(self) -> tuple[float, float, float]:
        return sum(read() for read in self._packages), self._times.own(), self._times.machine()


def _package(path: Path) -> Joules | None:
    """Return a package's counter; None for a part of a package, and for one that this user may not read (most Linux
    kernels since 2020 allow only root)."""
    if path.name.count(":") != 1:
        return None
    try:
        span = int((path / "max_energy_range_uj").read_text())
        last, turns = int((path / "energy_uj").read_text()), 0
    except (OSError, ValueError):
        return None

    def read() -> float:
        nonlocal last, turns
        now = int((path / "energy_uj").read_text())
        turns += now < last  # it wraps about every hour
        last = now
        return (turns * span + now) / 1e6

    return read


def _gpu(device: "torch.device", nvml: Any) -> Joules | None:
    """Return the GPU's counter; None without nvidia-ml-py, without NVIDIA's driver, or where the GPU has none."""
    for module in _modules(nvml):
        with suppress(module.NVMLError):
            module.nvmlInit()
            handle = module.nvmlDeviceGetHandleByUUID(nvml_uuid(device))

            def read() -> float:
                try:
                    return float(module.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # noqa: B023
                except module.NVMLError as error:  # noqa: B023
                    raise OSError(str(error)) from error

            with suppress(OSError):
                read()
                return read
    return None


def _modules(nvml: Any) -> Iterator[Any]:
    if nvml is not None:
        yield nvml
        return
    with suppress(ImportError):
        import pynvml

        yield pynvml


def nvml_uuid(device: "torch.device") -> str:
    """Return the GPU's id in NVML: device numbers differ where CUDA_VISIBLE_DEVICES hides some."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
