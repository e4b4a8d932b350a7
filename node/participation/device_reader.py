"""Reads the machine for the participation policies: psutil, NVIDIA's driver (nvidia-ml-py), NetworkManager.

Every source is a function that returns a reading, None where the machine has no such thing, or raises. Whatever it
raises is noted in `DeviceState.unread`, and ends nothing. `DeviceReader` is given its sources: tests bring their own.
"""

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import psutil

from node.participation.device_state import Battery, DeviceState, GpuUseByOthers, Reading

FULL: Final = 100.0
"""Percent. Virtual machines and WSL report a full battery that is not plugged, and no time until it is empty: they run
on mains. A laptop that has just left its charger is taken for plugged as long as it says the same."""

POWER_SUPPLIES: Final = Path("/sys/class/power_supply")
"""Where Linux has a folder for each battery and charger."""

LOAD_WINDOW_S: Final = 5.0
"""Seconds over which the load of others is averaged: a program that starts is no load. Chosen."""

COOLEST_C, HOTTEST_C = 1.0, 150.0
"""Sensors that tell less or more are broken, or not connected."""

HEAT_SENSORS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
"""psutil's names of the sensors of processors. Disks, batteries and radios have limits of their own."""

METERED_EVERY_S: Final = 30.0
"""Seconds between two questions to NetworkManager: each is a process. Chosen."""

METERED_TIMEOUT_S: Final = 2.0

METERED_COMMAND: Final = (
    "busctl",
    "--system",
    "get-property",
    "org.freedesktop.NetworkManager",
    "/org/freedesktop/NetworkManager",
    "org.freedesktop.NetworkManager",
    "Metered",
)

METERED_SAYS: Final[Mapping[str, bool | None]] = {"0": None, "1": True, "2": False, "3": True, "4": False}
"""NMMetered: unknown, yes, no, guessed yes, guessed no."""

UTILIZATION_SINCE_S: Final = 2.0
"""Seconds of the GPU's past whose use by processes is asked for: the driver has a sample about every second."""

Source = Callable[[float], Any]
"""Returns a reading; `now`: Unix seconds."""


class UnreadableError(Exception):
    """A reading that should be there is not; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a source said."""

    value: Any = None
    failed: str = ""
    """Why it said nothing; empty: it did."""


class DeviceReader:
    """Reads what the policies ask for, and nothing else."""

    def __init__(self, sources: Mapping[Reading, Source]) -> None:
        self._sources = sources
        self.readings = tuple(sources)

    def __call__(self, now: float) -> DeviceState:
        """Read everything once. `now`: Unix seconds."""
        return state_of(now, {reading: self.one(reading, now) for reading in self.readings})

    def one(self, reading: Reading, now: float) -> Answer:
        """Read one thing."""
        try:
            return Answer(value=self._sources[reading](now))
        except Exception as error:  # of a driver, a bus, a file: a reading must not end the node
            return Answer(failed=str(error) or type(error).__name__)


def state_of(now: float, answers: Mapping[Reading, Answer]) -> DeviceState:
    """Return what sources said as readings of the moment `now`."""
    values = {reading: answer.value for reading, answer in answers.items()}
    return DeviceState(
        now=now,
        battery=values.get("battery"),
        temperature_c=values.get("temperature"),
        gpu=values.get("gpu"),
        load=values.get("load"),
        memory_bytes=values.get("memory"),
        metered=values.get("metered"),
        energy_j=values.get("energy"),
        unread={reading: answer.failed for reading, answer in answers.items() if answer.failed},
    )


def battery(now: float, supplies: Path = POWER_SUPPLIES) -> Battery | None:
    """Return the battery; None where there is none. Raises UnreadableError where psutil takes another device's for
    it."""
    if psutil.LINUX and not _has_battery(supplies):
        return None
    read = getattr(psutil, "sensors_battery", lambda: None)()  # not on every system
    if read is None:
        return None
    unknown = (psutil.POWER_TIME_UNKNOWN, psutil.POWER_TIME_UNLIMITED, None)
    idle = read.percent >= FULL and read.secsleft in unknown
    return Battery(percent=float(read.percent), plugged=read.power_plugged is not False or idle)


def _has_battery(supplies: Path) -> bool:
    """Return whether the battery that psutil reads is this machine's: it takes the first by name, and a wireless mouse
    or keyboard has one, too. Raises UnreadableError where the machine's is another one."""
    found = sorted(path for path in _folders(supplies) if path.name.startswith("BAT") or "battery" in path.name.lower())
    own = [path for path in found if _word(path / "scope") != "Device"]
    if own and own[0] != found[0]:
        raise UnreadableError(f"psutil reads the battery {found[0].name} of another device")
    return bool(own)


def _folders(supplies: Path) -> list[Path]:
    try:
        return list(supplies.iterdir())
    except OSError:  # a kernel without batteries
        return []


def _word(file: Path) -> str:
    """Return what a file of the kernel says; empty where it is not there, or its device has just gone."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def free_memory(now: float) -> int:
    """Return the bytes that programs can still have."""
    return int(psutil.virtual_memory().available)


class OthersLoadReader:
    """The share of all cores that other processes keep busy. `own`: CPU seconds of this node; `machine`: busy CPU
    seconds of all cores."""

    def __init__(
        self,
        own: Callable[[], float],
        machine: Callable[[], float],
        *,
        cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own, self._machine, self._clock = own, machine, clock
        self._cores = cores or os.cpu_count() or 1
        self._seen: deque[tuple[float, float]] = deque()
        """When, and CPU seconds of others."""

    def __call__(self, now: float) -> float | None:
        """Return the share over the newest seconds; None at the first call."""
        at = self._clock()
        self._seen.append((at, self._machine() - self._own()))
        while len(self._seen) > 2 and at - self._seen[1][0] >= LOAD_WINDOW_S:
            self._seen.popleft()
        began, before = self._seen[0]
        if at <= began:
            return None
        return min(1.0, max(0.0, (self._seen[-1][1] - before) / (at - began) / self._cores))


def processor_temperature(now: float) -> float | None:
    """Return the hottest processor's temperature in degrees Celsius; None where no sensor tells it."""
    sensors: Mapping[str, Any] = getattr(psutil, "sensors_temperatures", dict)()
    return hottest(each.current for name in HEAT_SENSORS for each in sensors.get(name, ()))


def hottest(values: Iterable[float | None]) -> float | None:
    """Return the highest temperature of sensors that work; None where there is none."""
    return max((float(it) for it in values if it is not None and COOLEST_C < it < HOTTEST_C), default=None)


@dataclass(frozen=True, kw_only=True)
class _GpuProcess:
    pid: int
    memory_bytes: int


class NvmlReader:
    """NVIDIA's GPUs by their driver. `uuid`: of the one that the node trains on; "": it trains elsewhere, and all
    count."""

    def __init__(self, module: Any, uuid: str = "", own: Callable[[], Collection[int]] | None = None) -> None:
        """`module`: pynvml. `own`: the numbers of this node's processes. Raises the driver's error."""
        self._nvml, self._trains_here = module, bool(uuid)
        self._own_now = own_processes if own is None else own
        self._own: set[int] = set()
        self._met: set[int] = set()
        """Processes that were looked at already: whose children the others are is asked for new ones alone."""
        module.nvmlInit()
        if uuid:
            self._handles = [module.nvmlDeviceGetHandleByUUID(uuid)]
        else:
            self._handles = [module.nvmlDeviceGetHandleByIndex(at) for at in range(module.nvmlDeviceGetCount())]

    def others(self, now: float) -> GpuUseByOthers | None:
        """Return the largest use by another process; None where there is no GPU.

        Raises UnreadableError where this node's own process is not among those that use the GPU on which it trains: in
        a container the driver names processes by the host's numbers, and the node would take itself for another."""
        if not self._handles:
            return None
        found = [(handle, self._processes(handle)) for handle in self._handles]
        own = self._own_among({pid for _, there in found for pid in there})
        share, memory = 0.0, 0
        for handle, there in found:
            if self._trains_here and there and not own & there.keys():
                raise UnreadableError("its processes have another system's numbers: run the container with --pid=host")
            others = {pid: each for pid, each in there.items() if pid not in own}
            memory = max([memory, *(each.memory_bytes for each in others.values())])
            share = max([share, *(used for pid, used in self._shares(handle, now).items() if pid in others)])
        return GpuUseByOthers(share=share, memory_bytes=memory)

    def own_memory(self) -> int | None:
        """Return the bytes of GPUs that the driver counts for this process; None where it does not know it, as in a
        container with numbers of its own, and where it fails."""
        with suppress(self._nvml.NVMLError):
            own = [there.get(os.getpid()) for there in map(self._processes, self._handles)]
            return sum(each.memory_bytes for each in own if each is not None) or None
        return None

    def temperature(self) -> float | None:
        """Return the hottest GPU's temperature in degrees Celsius."""
        nvml = self._nvml
        return hottest(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU) for handle in self._handles)

    def _own_among(self, there: set[int]) -> set[int]:
        if not there <= self._met:
            self._own = set(self._own_now())
        self._met = there
        return self._own

    def _processes(self, handle: Any) -> dict[int, _GpuProcess]:
        nvml = self._nvml
        computing = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        drawing = nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
        found: dict[int, _GpuProcess] = {}
        for each in chain(computing, drawing):
            memory = int(each.usedGpuMemory or 0)  # None where the driver does not tell, as on Windows
            known = found.get(each.pid)
            found[each.pid] = _GpuProcess(pid=each.pid, memory_bytes=max(memory, known.memory_bytes if known else 0))
        return found

    def _shares(self, handle: Any, now: float) -> dict[int, float]:
        """Return the newest share of time by process. A GPU that nobody uses has no sample: that is an error of the
        driver's, and so is one that cannot tell."""
        since = int(1e6 * (now - UTILIZATION_SINCE_S))
        with suppress(self._nvml.NVMLError):
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, since)
            newest = sorted(samples, key=lambda sample: sample.timeStamp)
            return {sample.pid: sample.smUtil / 100 for sample in newest}
        return {}


def own_processes() -> set[int]:
    """Return the numbers of this process and of those that it has started."""
    own = psutil.Process()
    return {own.pid, *(child.pid for child in own.children(recursive=True))}


class MeteredReader:
    """Whether NetworkManager takes the link for metered. `ask`: returns what its command prints."""

    def __init__(self, ask: Callable[[], str] | None = None) -> None:
        self._ask = _ask_network_manager if ask is None else ask
        self._asked: float | None = None
        self._newest: bool | None = None
        self._failed = ""
        """Why there was no answer; empty: there was one. It is kept as long as an answer: all other readings wait while
        a command hangs."""

    def __call__(self, now: float) -> bool | None:
        """Return the newest answer; None where NetworkManager does not know. Raises UnreadableError."""
        if self._asked is None or abs(now - self._asked) >= METERED_EVERY_S:
            self._asked = now
            try:
                self._newest, self._failed = metered_in(self._ask()), ""
            except (OSError, UnreadableError) as error:
                self._failed = str(error)
        if self._failed:
            raise UnreadableError(self._failed)
        return self._newest


def metered_in(text: str) -> bool | None:
    """Return what `busctl get-property` printed, such as "u 4". Raises UnreadableError for anything else."""
    words = text.split()
    if len(words) != 2 or words[0] != "u" or words[1] not in METERED_SAYS:
        raise UnreadableError(f"NetworkManager said {text.strip()[:60]!r}")
    return METERED_SAYS[words[1]]


def _ask_network_manager() -> str:
    try:
        told = subprocess.run(
            METERED_COMMAND,
            capture_output=True,
            text=True,
            timeout=METERED_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise UnreadableError("there is no busctl to ask NetworkManager with") from None
    except subprocess.CalledProcessError:
        raise UnreadableError("NetworkManager does not answer") from None
    except subprocess.TimeoutExpired:
        raise UnreadableError(f"NetworkManager did not answer within {METERED_TIMEOUT_S:g} s") from None
    return told.stdout
