"""When a node takes part: all policies together over drawn traces, the local clock, and what reads the machine."""

import math
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.core.quiet_clock import local_minute
from gossip.core.quiet_hours import DAY
from node.config.schema import load
from node.events.event_types import Event, Paused, Unpaused, WarningEvent
from node.events.progress import NodeProgress
from node.metrics.energy import Meter
from node.participation import PARTICIPATION, device_reader
from node.participation.daily_energy import DailyEnergy
from node.participation.decider import Decider, Patience
from node.participation.device_reader import (
    DeviceReader,
    MeteredReader,
    NvmlReader,
    OthersLoadReader,
    UnreadableError,
    metered_in,
)
from node.participation.device_state import Battery, DeviceState, GpuUseByOthers, Reading
from node.system.errors import UsageError
from node.system.process_use import ProcessUse
from node.training.machine_readings import ThreadedReader, sources_of
from node.training.pausing import LOOK_S, Pauses

GAME = GpuUseByOthers(share=0.9, memory_bytes=0)
NOBODY = GpuUseByOthers(share=0.0, memory_bytes=0)


def decider(*names: str, calm_s: float = 30.0, stay_s: float = 10.0, unread_pauses: bool = False) -> Decider:
    policies = {name: PARTICIPATION.get(name) for name in names}
    return Decider(policies, Patience(calm_s=calm_s, stay_s=stay_s), unread_pauses=unread_pauses)


# -- all policies together

Trace = list[tuple[float, float, bool, float, tuple[Reading, ...]]]
"""Seconds since the look before, and what is read then."""

UNREAD: tuple[tuple[Reading, ...], ...] = ((), (), (), (), (), ("temperature",), ("gpu",), ("load",))
LOOK_BYTES = 4


def trace_of(data: bytes) -> Trace:
    """A trace of four bytes a look: one draw in place of five for each look, of which 10,000 traces take no minutes."""
    looks = (data[at : at + LOOK_BYTES] for at in range(0, len(data) - LOOK_BYTES + 1, LOOK_BYTES))
    return [
        (0.1 + 4.9 * gap / 255, 60 + 30 * heat / 255, what % 8 == 7, busy / 255, UNREAD[what // 8 % 8])
        for gap, heat, what, busy in looks
    ]


@settings(max_examples=10_000 if os.environ.get("THOROUGH") else 200)
@given(
    trace=st.binary(max_size=100 * LOOK_BYTES).map(trace_of),
    calm_s=st.floats(0.5, 40),
    stay_s=st.floats(0, 40),
    unread_pauses=st.booleans(),
)
def test_no_trace_of_readings_makes_it_flap_or_train_when_it_must_not(
    trace: Trace, calm_s: float, stay_s: float, unread_pauses: bool
) -> None:
    holds(trace, calm_s, stay_s, unread_pauses)


def test_traces_of_any_bytes_have_pauses() -> None:
    rng = random.Random(0)
    pauses = [holds(trace_of(rng.randbytes(100 * LOOK_BYTES)), 5.0, 10.0, False) for _ in range(100)]
    assert min(pauses) >= 1
    assert sum(pauses) > 150


def holds(
    trace: Trace,
    calm_s: float,
    stay_s: float,
    unread_pauses: bool,
) -> int:
    """Hold a trace to what is promised; return how many pauses it had."""
    its = decider("temperature", "gpu", "load", calm_s=calm_s, stay_s=stay_s, unread_pauses=unread_pauses)
    now = quiet_since = 0.0
    began: float | None = None
    changes: list[tuple[float, bool]] = []
    was_paused = False
    for seconds, degrees, plays, busy, unread in trace:
        now += seconds
        state = DeviceState(
            now=now,
            temperature_c=degrees,
            gpu=GAME if plays else NOBODY,
            load=busy,
            unread=dict.fromkeys(unread, "broken"),
        )
        paused = its.look(state, now) is not None
        at_once = (degrees >= 80 and "temperature" not in unread) or (plays and "gpu" not in unread)
        forbidden = at_once or (busy >= 0.3 and "load" not in unread) or (bool(unread) and unread_pauses)
        if at_once:
            assert paused, "at the very look at which it is read"
        if forbidden and began is not None and now - began >= stay_s:
            assert paused, "no later than it must have trained"
        if forbidden:
            quiet_since = now
        if not paused and was_paused:
            assert now - quiet_since >= calm_s
        if paused != was_paused:
            changes.append((now, paused))
        if paused:
            began = None
        elif began is None:
            began = now
        was_paused = paused
    pauses = sum(paused for _, paused in changes)
    assert pauses <= math.floor(now / calm_s) + 1
    for (begins, paused), (ends, _) in pairwise(changes):
        if paused:
            assert ends - begins >= calm_s
    return pauses


def test_soft_policies_let_training_go_on_for_a_while() -> None:
    its = decider("load", "gpu", stay_s=10.0, calm_s=5.0)
    assert its.look(DeviceState(now=0, load=0.0, gpu=NOBODY), 0.0) is None
    assert its.look(DeviceState(now=0, load=0.9, gpu=NOBODY), 1.0) is None, "it has trained for a second"
    assert its.look(DeviceState(now=0, load=0.9, gpu=NOBODY), 10.0) is not None
    assert its.look(DeviceState(now=0, load=0.0, gpu=NOBODY), 15.0) is None
    reason = its.look(DeviceState(now=0, load=0.9, gpu=GAME), 15.5)
    assert reason is not None, "a game need not wait"


NOON = datetime(2026, 1, 1, 12).timestamp()


def test_the_time_that_is_left_is_the_longest_of_those_that_forbid_it_or_unknown() -> None:
    """Also unknown while nothing forbids it: a pause that is broken by calm spells must not be told as a short one."""
    its = decider("hours", "energy", "gpu", calm_s=30.0)
    ten_hours, twelve_hours = 10 * 3600.0, 12 * 3600.0
    quiet = DeviceState(now=NOON, gpu=NOBODY, energy_j=0.0)
    for state, left in (
        (quiet, ten_hours + 30.0),
        (replace(quiet, energy_j=1e9), twelve_hours + 30.0),
        (replace(quiet, gpu=GAME), None),
        (replace(quiet, now=NOON + ten_hours - 1.0), 1.0 + 30.0),
        (replace(quiet, now=NOON + ten_hours), None),
        (replace(quiet, now=NOON + ten_hours + 1.0, gpu=None, unread={"gpu": "broken"}), None),
    ):
        assert its.look(state, state.now - NOON) is not None
        assert its.pause_seconds(state) == left


def test_what_cannot_be_read_or_raises_tells_no_return() -> None:
    its = decider("energy", unread_pauses=True)
    state = DeviceState(now=NOON, unread={"energy": "broken"})
    assert its.look(state, 0.0) is not None
    assert its.pause_seconds(state) is None

    class Broken:
        reads = ()
        at_once = True

        def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
            return "always"

        def returns_at(self, state: DeviceState) -> float | None:
            raise OverflowError("a third party's fault")

    broken = Decider({"broken": Broken()}, Patience(calm_s=1.0, stay_s=1.0))
    assert broken.look(state, 0.0) is not None
    assert broken.pause_seconds(state) is None


def test_what_is_forbidden_from_the_start_never_begins() -> None:
    assert decider("hours").look(DeviceState(now=datetime(2026, 1, 1, 12).timestamp()), 0.0) is not None


@pytest.mark.parametrize("pauses", [False, True])
def test_a_broken_reading_does_what_the_setting_says_and_keeps_its_margin(pauses: bool) -> None:
    its = decider("temperature", calm_s=0.0, unread_pauses=pauses)
    broken = DeviceState(now=0, unread={"temperature": "no bus"})
    assert its.look(DeviceState(now=0, temperature_c=85.0), 0.0) is not None
    assert (its.look(broken, 1.0) is not None) is pauses
    assert its.faults == {"temperature": "no bus"}
    assert its.look(DeviceState(now=0, temperature_c=75.0), 2.0) is not None, "it has not cooled down to 70"
    assert its.look(DeviceState(now=0, temperature_c=70.0), 3.0) is None
    assert its.faults == {}


def test_a_third_partys_policy_that_fails_is_one_that_cannot_be_told() -> None:
    class Broken:
        reads: tuple[Reading, ...] = ()
        at_once = True

        def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
            raise ZeroDivisionError("by zero")

    its = Decider({"theirs": Broken()}, Patience(calm_s=0, stay_s=0))
    assert its.look(DeviceState(now=0), 0.0) is None
    assert its.faults == {"theirs": "ZeroDivisionError: by zero"}


# -- the local clock


def hours_of_a_day(day: datetime, hours: str, zone: str) -> list[datetime]:
    """The minutes (UTC) of the 24 hours from `day` (UTC) on at which it trains."""
    its = PARTICIPATION.get("hours", hours=hours, zone=zone)
    minutes = [day + timedelta(minutes=minute) for minute in range(24 * 60)]
    return [at for at in minutes if its.forbids(DeviceState(now=at.timestamp()), paused=False) is None]


@pytest.mark.parametrize(
    ("day", "hours", "trains_h"),
    [
        (datetime(2026, 3, 28, 20, tzinfo=UTC), "22:00-07:00", 8),  # the clock is set forward on the 29th, at 01:00 UTC
        (datetime(2026, 10, 24, 18, tzinfo=UTC), "22:00-07:00", 10),  # and back on the 25th of October
        (datetime(2026, 6, 1, 18, tzinfo=UTC), "22:00-07:00", 9),
        (datetime(2026, 3, 28, 20, tzinfo=UTC), "02:00-03:00", 0),  # an hour that the clock leaves out
        (datetime(2026, 10, 24, 18, tzinfo=UTC), "02:00-03:00", 2),  # one that it shows twice
    ],
)
def test_hours_are_those_that_the_clock_shows_also_when_it_is_changed(day: datetime, hours: str, trains_h: int) -> None:
    assert len(hours_of_a_day(day, hours, "Europe/Berlin")) == trains_h * 60


def test_a_night_of_a_clock_change_has_one_pause(tmp_path: Path) -> None:
    """The hour that is shown twice is no new night."""
    its = PARTICIPATION.get("hours", hours="22:00-02:30", zone="Europe/Berlin")
    begins = datetime(2026, 10, 24, 18, tzinfo=UTC)
    d = Decider({"hours": its}, Patience(calm_s=30, stay_s=10))
    told = []
    for second in range(0, 12 * 3600, 20):
        now = (begins + timedelta(seconds=second)).timestamp()
        told.append(d.look(DeviceState(now=now), float(second)) is None)
    stretches = [value for at, value in enumerate(told) if at == 0 or told[at - 1] != value]
    # 02:30 comes twice: from 02:30 (summer) until 02:00 (winter) it is not the time, then for half an hour it is again.
    assert stretches == [False, True, False, True, False]


def test_a_week_of_nights_is_seven_pauses_a_week() -> None:
    d = decider("hours")
    changes, was = 0, None
    for second in range(0, 7 * 86400, 60):
        trains = d.look(DeviceState(now=1_780_000_000.0 + second), float(second)) is None
        changes += was is not None and trains != was
        was = trains
    assert changes == 14


# -- the task


def watched(states: Iterator[DeviceState], seconds: float, *names: str, **options: Any) -> tuple[Pauses, list[Event]]:
    events: list[Event] = []

    async def read() -> DeviceState:
        return next(states)

    async def main() -> Pauses:
        policies = {name: PARTICIPATION.get(name).reads for name in names}
        its = Pauses(decider(*names, **options), read, policies=policies, emit=events.append, tell_every_s=30.0)
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                await nursery.start(its.watch)
        return its

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)), events


def test_an_hour_of_broken_readings_is_one_warning() -> None:
    broken = DeviceState(now=0, gpu=NOBODY, unread={"battery": "the bus is gone"})
    works = DeviceState(now=0, gpu=NOBODY, battery=None)
    states = iter([broken, works, broken] * 2400)
    its, events = watched(states, 3500.0, "battery", "gpu")
    (warning,) = [event for event in events if isinstance(event, WarningEvent)]
    assert warning.message == (
        "participation: battery cannot be told (the bus is gone); until it can, training goes on without it "
        "(participation.unread)"
    )
    assert not its.paused


def test_a_policy_that_has_nothing_to_decide_by_is_told_once() -> None:
    state = DeviceState(now=0, battery=None, temperature_c=None)
    _, events = watched(iter([state] * 100), 20.0, "battery", "temperature")
    (warning,) = events
    assert isinstance(warning, WarningEvent)
    assert warning.message == "participation: temperature does nothing here, as this machine tells no temperature"


def test_reasons_that_take_turns_are_not_told_at_every_look() -> None:
    def state(look: int) -> DeviceState:
        return DeviceState(
            now=0,
            gpu=GAME if look % 2 else NOBODY,
            battery=Battery(percent=1 if look % 2 else 0, plugged=look % 2 == 1),
        )

    its, events = watched(map(state, range(10_000)), 3000.0, "battery", "gpu")
    assert its.paused
    assert 2 <= len(events) <= 101
    assert sum(its.seconds.values()) == pytest.approx(3000.0 - LOOK_S, abs=2 * LOOK_S)


def test_status_shows_the_pause_and_its_reason() -> None:
    progress = NodeProgress(state="running")
    progress.observe(Paused(ts=1.0, reason="gpu", why="another program uses the GPU"))
    assert (progress.shown_state, progress.paused) == ("paused", "gpu: another program uses the GPU")
    progress.observe(Unpaused(ts=2.0, reason="gpu", seconds=1.0))
    assert (progress.shown_state, progress.paused) == ("running", "")


# -- readers


def test_what_a_source_raises_is_noted_and_the_others_are_read() -> None:
    def fails(now: float) -> None:
        raise OSError("no such sensor")

    state = DeviceReader({"temperature": fails, "load": lambda now: 0.5})(3.0)
    assert (state.load, state.temperature_c, dict(state.unread)) == (0.5, None, {"temperature": "no such sensor"})


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (None, None),
        ((80.0, 3600, False), Battery(percent=80.0, plugged=False)),
        ((80.0, psutil.POWER_TIME_UNLIMITED, True), Battery(percent=80.0, plugged=True)),
        ((80.0, psutil.POWER_TIME_UNKNOWN, None), Battery(percent=80.0, plugged=True)),
        ((100.0, psutil.POWER_TIME_UNKNOWN, False), Battery(percent=100.0, plugged=True)),  # WSL, virtual machines
        ((100.0, 9000, False), Battery(percent=100.0, plugged=False)),
    ],
)
def test_a_machine_without_a_battery_or_with_a_virtual_one_is_plugged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: Any, expected: Battery | None
) -> None:
    told = None if read is None else SimpleNamespace(percent=read[0], secsleft=read[1], power_plugged=read[2])
    monkeypatch.setattr(psutil, "sensors_battery", lambda: told)
    assert device_reader.battery(0.0, supplies(tmp_path, BAT0="System")) == expected


def supplies(folder: Path, **scopes: str) -> Path:
    """A folder of Linux's with power supplies, by name and scope; empty: it says none."""
    for name, scope in scopes.items():
        (folder / name).mkdir()
        if scope:
            (folder / name / "scope").write_text(f"{scope}\n")
    return folder


@pytest.mark.skipif(not psutil.LINUX, reason="sysfs is Linux's")
def test_a_mouses_battery_is_not_the_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mouse = SimpleNamespace(percent=20.0, secsleft=psutil.POWER_TIME_UNKNOWN, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: mouse)
    assert device_reader.battery(0.0, tmp_path / "none") is None, "a kernel without batteries"
    assert device_reader.battery(0.0, supplies(tmp_path, hidpp_battery_0="Device", AC="")) is None
    with pytest.raises(UnreadableError, match="hidpp_battery_0 of another device"):
        device_reader.battery(0.0, supplies(tmp_path, macsmc_battery="System"))
    laptop = device_reader.battery(0.0, supplies(tmp_path, BAT0=""))
    assert laptop == Battery(percent=20.0, plugged=False), "psutil takes the first by name"


def test_the_own_load_is_not_that_of_others() -> None:
    clock, own, machine = [0.0], [0.0], [0.0]
    its = OthersLoadReader(lambda: own[0], lambda: machine[0], cores=4, clock=lambda: clock[0])
    assert its(0.0) is None
    for _ in range(20):
        clock[0] += 0.5
        own[0] += 1.0  # two cores
        machine[0] += 1.5  # and one of somebody else's
    assert its(0.0) == pytest.approx(0.25)
    clock[0] += 5.0
    machine[0] += 20.0
    assert its(0.0) == pytest.approx(1.0)


class Nvml:
    """As pynvml, with one GPU."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.processes: dict[int, int | None] = {}
        self.shares: dict[int, int] = {}

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, at: int) -> str:
        return "gpu"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return "gpu"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:
        return []

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> list[Any]:
        if not self.shares:
            raise self.NVMLError
        return [SimpleNamespace(pid=pid, smUtil=share, timeStamp=1) for pid, share in self.shares.items()]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 71


def test_the_gpu_is_busy_with_somebody_elses_process_alone() -> None:
    nvml = Nvml()
    its = NvmlReader(nvml, "GPU-1", own=lambda: {1, 2})
    assert its.others(10.0) == NOBODY
    nvml.processes, nvml.shares = {1: 5 << 30, 2: 1 << 30}, {1: 99}
    assert its.others(10.0) == NOBODY
    nvml.processes[7], nvml.shares[7] = 2 << 30, 40
    assert its.others(10.0) == GpuUseByOthers(share=0.4, memory_bytes=2 << 30)
    nvml.processes[7] = None  # Windows does not tell
    assert its.others(10.0) == GpuUseByOthers(share=0.4, memory_bytes=0)
    assert its.temperature() == 71.0


def test_the_driver_counts_this_processs_memory() -> None:
    nvml = Nvml()
    its = NvmlReader(nvml)
    assert its.own_memory() is None, "no process, or the numbers of another system"
    nvml.processes = {os.getpid() + 1: 1 << 30, os.getpid(): 3 << 30}
    assert its.own_memory() == 3 << 30
    nvml.processes = {os.getpid(): None}
    assert its.own_memory() is None, "Windows does not tell"

    def lost(handle: str) -> list[Any]:
        raise nvml.NVMLError

    nvml.nvmlDeviceGetComputeRunningProcesses = lost  # type: ignore[method-assign]
    assert its.own_memory() is None, "the driver failed: a node trains on"


def test_a_container_that_hides_its_own_number_is_told_and_never_takes_itself_for_another() -> None:
    nvml = Nvml()
    nvml.processes = {4711: 5 << 30}
    with pytest.raises(UnreadableError, match="--pid=host"):
        NvmlReader(nvml, "GPU-1", own=lambda: {1}).others(0.0)
    assert NvmlReader(nvml, own=lambda: {1}).others(0.0) == GpuUseByOthers(share=0.0, memory_bytes=5 << 30)


def test_network_manager_is_asked_now_and_then() -> None:
    said = iter(["u 1", "u 4", "u 0", "what?"])
    its = MeteredReader(lambda: next(said))
    assert [its(0.0), its(29.0), its(31.0), its(62.0)] == [True, True, False, None]
    with pytest.raises(UnreadableError, match="what"):
        its(95.0)
    with pytest.raises(UnreadableError):
        metered_in("")


def test_network_manager_that_does_not_answer_is_asked_as_seldom() -> None:
    asked = []

    def hangs() -> str:
        asked.append(len(asked))
        raise UnreadableError("no answer")

    its = MeteredReader(hangs)
    for look in range(61):  # for half a minute, and a moment
        with pytest.raises(UnreadableError, match="no answer"):
            its(1000.0 + look * LOOK_S)
    assert len(asked) == 2


def test_the_cap_of_a_day_holds_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("node.participation.daily_energy.write_atomic", full)
    joules = [0.0]
    its = DailyEnergy(tmp_path / "energy", lambda: joules[0])
    noon = datetime(2026, 5, 5, 12).timestamp()
    its.today(noon)
    joules[0] = 8e6
    assert its.today(noon + 61) == 8e6


def test_a_cap_that_nothing_counts_for_is_told(tmp_path: Path) -> None:
    def reading(meter: Meter) -> DeviceState:
        source = sources_of(torch.device("cpu"), ProcessUse(), meter, tmp_path / "energy")["energy"]()
        return DeviceReader({"energy": source})(0.0)

    assert reading(Meter(counters={"rapl": lambda: 5.0})).energy_j == 0.0
    assert "nothing counts" in reading(Meter(counters={})).unread["energy"]
    readings = iter([1.0])
    meter = Meter(counters={"rapl": lambda: float(next(readings, "gone"))})
    assert "fails: rapl" in reading(meter).unread["energy"], "text that is no number ends nothing either"


def test_the_days_energy_outlives_a_restart_and_ends_at_midnight(tmp_path: Path) -> None:
    path, joules = tmp_path / "energy", [100.0]
    noon = datetime(2026, 5, 5, 12).timestamp()
    its = DailyEnergy(path, lambda: joules[0])
    assert its.today(noon) == 0.0, "what this process took before is not counted twice"
    joules[0] += 50.0
    assert its.today(noon + 61) == 50.0
    again = DailyEnergy(path, lambda: 7.0)
    assert again.today(noon + 120) == 50.0
    assert again.today(noon + 86400) == 0.0
    path.write_text("{")
    assert DailyEnergy(path, lambda: 7.0).today(noon) == 0.0


async def test_a_reader_that_hangs_is_given_up_and_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr("node.training.machine_readings.READ_S", 0.5)
    go, calls = threading.Event(), []

    def hangs(now: float) -> float:
        calls.append(now)
        go.wait(10)
        return 1.0

    levels = iter(range(100))
    its = ThreadedReader(DeviceReader({"load": hangs, "memory": lambda now: next(levels)}), lambda: 5.0)
    for look in range(2):
        state = await its()
        assert dict(state.unread) == {"load": "no answer within 0.5 s"}
        assert state.memory_bytes == look, "what does not hang is read"
    assert len(calls) == 1
    go.set()
    with trio.fail_after(5):
        while (await its()).load != 1.0:
            pass


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the machine's time zone as its owner does, without a word to the process."""
    yield lambda name: monkeypatch.setenv("TZ", name)
    monkeypatch.undo()
    time.tzset()


async def test_a_laptop_that_travels_has_the_hours_of_where_it_is(zone: Callable[[str], None]) -> None:
    noon = datetime(2026, 5, 5, 12, tzinfo=UTC).timestamp()
    night, its = PARTICIPATION.get("hours"), ThreadedReader(DeviceReader({}), lambda: noon)
    zone("UTC")
    assert night.forbids(await its(), paused=False) == "it trains at 22:00-07:00, and it is 12:00"
    zone("UTC-11")
    assert night.forbids(await its(), paused=True) is None, "it is 23:00 there"


def test_quiet_hours_travel_too(zone: Callable[[str], None]) -> None:
    zone("UTC")
    here = local_minute()
    zone("UTC-11")
    assert (local_minute() - here) % DAY in (11 * 60, 11 * 60 + 1)


# -- settings


def test_words_and_policies_come_together_and_options_in_every_form(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[participation]\npolicy = ["temperature"]\n[participation.temperature]\nstop = 75\n')
    its = load([file], ["participation.hours.zone=Europe/Berlin"], {"participation": {"when": "night"}}).participation
    assert its.names == ("hours", "temperature")
    assert its.options == {"temperature": {"stop": 75}, "hours": {"zone": "Europe/Berlin"}}
    policies = its.policies()
    assert getattr(policies["temperature"], "stop") == 75.0  # noqa: B009
    written = tmp_path / "again.toml"
    written.write_text(load([file]).to_toml())
    assert load([written]) == load([file])
    assert load().participation.policies() == {}, "always, unless it is told"


@pytest.mark.parametrize(
    ("sets", "what"),
    [
        (["participation.when=nigth"], "did you mean night"),
        (['participation.policy=["heat"]'], "unknown participation.policy 'heat'"),
        (["participation.heat.stop=3"], "unknown participation.policy 'heat'"),
        (['participation.policy=["battery"]', "participation.battery.stopp=3"], "takes no option 'stopp'"),
        (['participation.policy=["battery"]', "participation.battery.stop=soon"], "a number"),
        (["participation.calm_s=-1"], "participation.calm_s"),
        (["participation.unread=maybe"], "participation.unread"),
    ],
)
def test_a_mistake_in_participation_is_one_line(sets: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what) as error:
        load(sets=sets)
    assert "\n" not in error.value.message


def test_a_temperature_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="below stop"):
        PARTICIPATION.get("temperature", stop=math.nan)  # as `nan` in a TOML file


def test_options_of_a_policy_that_does_not_hold_are_told() -> None:
    assert load(sets=["participation.battery.stop=30"]).participation.idle() == [
        'participation.battery does nothing: name it, as in participation.policy=["battery"]'
    ]


def test_a_pause_that_goes_on_counts_in_seconds_that_are_read() -> None:
    """Alerts look at how the seconds rise while a node is paused, and not at the pause that has ended."""
    busy = DeviceState(now=0, gpu=GAME)

    async def read() -> DeviceState:
        return busy

    async def main() -> dict[str, float]:
        its = Pauses(decider("gpu"), read, policies={"gpu": ()}, emit=lambda event: None, look_s=600.0)
        async with trio.open_nursery() as nursery:
            await nursery.start(its.watch)
            await trio.sleep(7.0)
            nursery.cancel_scope.cancel()
        return its.seconds_now()

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == {"gpu": pytest.approx(7.0)}
