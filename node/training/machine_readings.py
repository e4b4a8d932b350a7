"""What a node's pauses are made of: its policies, and readers of this machine for what these ask.

pauses_of ── policies (node/participation) ── ReaderOf ── DeviceReader, in threads of its own ── Pauses
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import trio

from gossip.core.quiet_clock import follow_zone
from node.config.schema import Config
from node.events.journal import Journal
from node.metrics.energy import Meter, SystemTimes, nvml_uuid
from node.participation import device_reader
from node.participation.daily_energy import DailyEnergy
from node.participation.decider import Decider, Patience
from node.participation.device_reader import Answer, DeviceReader, NvmlReader, Source, UnreadableError, state_of
from node.participation.device_state import DeviceState, Reading
from node.system.errors import UsageError
from node.system.process_use import ProcessUse
from node.training.pausing import READ_S, Pauses, Read
from p2ptrain.training import Learner

ReaderOf = Callable[[Sequence[Reading], torch.device, ProcessUse, Meter | None], Read]
"""Returns what reads these of the machine, where training on a device takes so much."""


def pauses_of(
    config: Config, reads: ReaderOf, journal: Journal, learner: Learner, use: ProcessUse, meter: Meter | None
) -> Pauses | None:
    """Return what pauses a node's training; None where it always trains. UsageError where it cannot be paused."""
    settings = config.participation
    policies = settings.policies()
    if not policies or config.node.role != "trainer":
        return None
    if learner.steps_elsewhere:
        message = "[participation]: the steps are those of a loop of your own, which no policy pauses"
        raise UsageError(message, "leave it out, or train a task by `p2ptrain node`")
    asked = tuple(dict.fromkeys(reading for policy in policies.values() for reading in policy.reads))
    pauses = settings.unread == "pause"
    return Pauses(
        Decider(policies, Patience(calm_s=settings.calm_s, stay_s=settings.stay_s), unread_pauses=pauses),
        reads(asked, learner.device, use, meter),
        policies={name: policy.reads for name, policy in policies.items()},
        emit=journal.emit,
        unread_pauses=pauses,
        tell_every_s=settings.calm_s,
    )


class ThreadedReader:
    """Reads in worker threads, one for each reading: a driver may take its time, and the event loop has none. A reading
    that hangs is left to itself, and is not started again before it has ended. The others are read meanwhile."""

    def __init__(self, reader: DeviceReader, unix_time: Callable[[], float]) -> None:
        self._reader, self._unix_time = reader, unix_time
        self._limits = {reading: trio.CapacityLimiter(1) for reading in reader.readings}

    async def __call__(self) -> DeviceState:
        """Read, for READ_S at most."""
        follow_zone()  # policies know the hours of the local day
        now = self._unix_time()
        answers = dict.fromkeys(self._reader.readings, Answer(failed=f"no answer within {READ_S:g} s"))

        async def ask(reading: Reading) -> None:
            answers[reading] = await trio.to_thread.run_sync(
                self._reader.one, reading, now, limiter=self._limits[reading], abandon_on_cancel=True
            )

        with trio.move_on_after(READ_S):
            async with trio.open_nursery() as nursery:
                for reading, limit in self._limits.items():
                    if limit.available_tokens:  # else it hangs since an earlier look
                        nursery.start_soon(ask, reading)
        return state_of(now, answers)


def machine_reader(
    asked: Sequence[Reading],
    device: torch.device,
    use: ProcessUse,
    meter: Meter | None,
    *,
    unix_time: Callable[[], float],
    energy_file: Path,
) -> Read:
    """Return what reads this machine."""
    sources = {
        reading: source for reading, source in sources_of(device, use, meter, energy_file).items() if reading in asked
    }
    return ThreadedReader(DeviceReader({name: make() for name, make in sources.items()}), unix_time)


def sources_of(
    device: torch.device, use: ProcessUse, meter: Meter | None, energy_file: Path
) -> Mapping[Reading, Callable[[], Source]]:
    """Return what makes the source of each reading."""
    times = SystemTimes(use)
    return {
        "battery": lambda: device_reader.battery,
        "temperature": lambda: _Temperature(device),
        "gpu": lambda: _others_on_gpu(device),
        "load": lambda: device_reader.OthersLoadReader(times.own, times.machine),
        "memory": lambda: device_reader.free_memory,
        "metered": device_reader.MeteredReader,
        "energy": lambda: _energy(meter, energy_file),
    }


class _Temperature:
    """The hottest of the processor and, where it is known, the GPU that trains."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = nvml_reader(device) if device.type == "cuda" else None

    def __call__(self, now: float) -> float | None:
        gpu = None if self._gpu is None else self._gpu.temperature()
        return device_reader.hottest((device_reader.processor_temperature(now), gpu))


def _others_on_gpu(device: torch.device) -> Source:
    if _nvml() is None:
        return _not_installed
    reader = nvml_reader(device)
    return _none if reader is None else reader.others


def nvml_reader(device: torch.device) -> NvmlReader | None:
    """Return the reader of NVIDIA's GPUs; None on a machine without its driver, or without nvidia-ml-py."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return NvmlReader(nvml, nvml_uuid(device) if device.type == "cuda" else "")
    except nvml.NVMLError:
        return None


def _energy(meter: Meter | None, path: Path) -> Source:
    if meter is None:
        return _none
    day = DailyEnergy(path, lambda: sum(meter.joules().values()))

    def read(now: float) -> float:
        joules = day.today(now)
        if meter.failed:
            raise UnreadableError(f"the counter of energy fails: {', '.join(sorted(meter.failed))}")
        if not meter.counters:  # a cap would never be reached, and nobody told
            raise UnreadableError("nothing counts the energy that training takes here")
        return joules

    return read


def _none(now: float) -> None:
    return None


def _not_installed(now: float) -> None:
    raise UnreadableError("nvidia-ml-py is not installed: pip install 'p2ptrain[energy]'")


def _nvml() -> Any:
    """Return the module pynvml; None where it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
