"""What every participation policy must hold: it decides by readings alone, with a margin, and says why in a line."""

from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.participation import PARTICIPATION, PRESETS, ParticipationPolicy
from node.participation.base import TellsReturn
from node.participation.device_state import READINGS, Battery, DeviceState, GpuUseByOthers
from p2ptrain.protocols import implements
from p2ptrain.registry import BadOptionError

every_policy = pytest.mark.parametrize("name", PARTICIPATION.names())

NOW = 1_700_000_000.0

states = st.builds(
    DeviceState,
    now=st.floats(0, 4e9),
    battery=st.none() | st.builds(Battery, percent=st.floats(0, 100), plugged=st.booleans()),
    temperature_c=st.none() | st.floats(2, 149),
    gpu=st.none() | st.builds(GpuUseByOthers, share=st.floats(0, 1), memory_bytes=st.integers(0, 1 << 38)),
    load=st.none() | st.floats(0, 1),
    memory_bytes=st.none() | st.integers(0, 1 << 42),
    metered=st.none() | st.booleans(),
    energy_j=st.none() | st.floats(0, 1e9),
)

BAD: dict[str, DeviceState] = {
    "battery": DeviceState(now=NOW, battery=Battery(percent=5, plugged=False)),
    "plugged": DeviceState(now=NOW, battery=Battery(percent=95, plugged=False)),
    "temperature": DeviceState(now=NOW, temperature_c=96.0),
    "gpu": DeviceState(now=NOW, gpu=GpuUseByOthers(share=0.0, memory_bytes=3 << 30)),
    "load": DeviceState(now=NOW, load=0.9),
    "memory": DeviceState(now=NOW, memory_bytes=100 << 20),
    "metered": DeviceState(now=NOW, metered=True),
    "energy": DeviceState(now=NOW, energy_j=3 * 3.6e6),
}
"""By policy, a machine that it pauses; `hours` asks for the time alone."""


def policy(name: str) -> ParticipationPolicy:
    return PARTICIPATION.get(name)


@every_policy
def test_it_reads_what_can_be_read(name: str) -> None:
    assert set(policy(name).reads) <= set(READINGS)
    assert isinstance(policy(name).at_once, bool)


@every_policy
@given(state=states, paused=st.booleans())
def test_it_says_the_same_of_the_same_readings_in_one_line(name: str, state: DeviceState, paused: bool) -> None:
    its = policy(name)
    why = its.forbids(state, paused=paused)
    assert why == its.forbids(state, paused=paused) == policy(name).forbids(state, paused=paused)
    assert why is None or (why and "\n" not in why and len(why) < 100)


@every_policy
@given(state=states)
def test_what_it_forbids_it_goes_on_to_forbid(name: str, state: DeviceState) -> None:
    """Hysteresis: a reading that pauses training never lets it go on."""
    its = policy(name)
    if its.forbids(state, paused=False) is not None:
        assert its.forbids(state, paused=True) is not None


@every_policy
@given(now=st.floats(0, 4e9), paused=st.booleans())
def test_a_machine_without_such_a_thing_trains(name: str, now: float, paused: bool) -> None:
    its = policy(name)
    if its.reads:
        assert its.forbids(DeviceState(now=now), paused=paused) is None


@every_policy
def test_it_forbids_something(name: str) -> None:
    if name in BAD:
        assert policy(name).forbids(BAD[name], paused=False) is not None
    else:
        assert policy(name).reads == ()
        assert {
            policy(name).forbids(DeviceState(now=NOW + 3600 * hour), paused=False) is None for hour in range(24)
        } == {
            True,
            False,
        }


def at_the_return(state: DeviceState, back: float) -> DeviceState:
    """The machine then, as far as a policy could have known: of the day's energy nothing is used."""
    return replace(state, now=back, energy_j=None if state.energy_j is None else 0.0)


@every_policy
@given(state=states)
def test_a_return_that_it_tells_is_when_it_lets_training_go_on(name: str, state: DeviceState) -> None:
    its = policy(name)
    if implements(its, TellsReturn) and its.forbids(state, paused=True) is not None:
        back = its.returns_at(state)
        assert back is not None
        assert state.now < back <= state.now + 25 * 3600
        assert its.forbids(at_the_return(state, back), paused=True) is None
        assert its.forbids(replace(state, now=back - 61.0), paused=True) or back - 61.0 <= state.now, "no later"


def test_hours_and_the_days_energy_tell_their_return() -> None:
    assert {name for name in PARTICIPATION.names() if implements(policy(name), TellsReturn)} == {"hours", "energy"}


@pytest.mark.parametrize(
    ("hours", "now", "back"),
    [
        ("22:00-07:00", "2026-11-27 14:05:30", "2026-11-27 22:00:00"),
        ("22:00-07:00,12:00-13:00", "2026-11-27 07:00:00", "2026-11-27 12:00:00"),
        ("02:10-02:50", "2026-03-29 01:00:00", "2026-03-30 02:10:00"),  # the clock leaves these out that night
        ("02:10-02:50", "2026-10-24 12:00:00", "2026-10-25 02:10:00"),
    ],
)
def test_hours_begin_by_the_clock_on_the_wall(hours: str, now: str, back: str) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    its = PARTICIPATION.get("hours", hours=hours, zone="Europe/Berlin")
    assert isinstance(its, TellsReturn)
    at = its.returns_at(DeviceState(now=datetime.fromisoformat(now).replace(tzinfo=berlin).timestamp()))
    assert at == datetime.fromisoformat(back).replace(tzinfo=berlin).timestamp()


@every_policy
def test_an_option_that_it_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(BadOptionError, match="takes no option 'colour'"):
        PARTICIPATION.get(name, colour="red")


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("battery", {"stop": 60, "go": 50}, "must not be above"),
        ("temperature", {"stop": 70.0, "go": 70.0}, "must be below"),
        ("gpu", {"margin": 1.0}, "margin"),
        ("load", {"stop": 1.5}, "at most 1"),
        ("memory", {"stop_mb": 2000.0}, "must not be"),
        ("hours", {"hours": "22-7"}, "22:00-07:00"),
        ("hours", {"zone": "Europe/Atlantis"}, "not known"),
        ("hours", {"zone": "../../etc/passwd"}, "not known"),
        ("energy", {"kwh": 0.0}, "above 0"),
    ],
)
def test_limits_that_are_none_are_refused(name: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        PARTICIPATION.get(name, **options)


def test_presets_name_policies_that_there_are() -> None:
    assert {name for names in PRESETS.values() for name in names} <= set(PARTICIPATION.names())
    assert PRESETS["always"] == ()


@pytest.mark.parametrize(
    ("name", "field", "stops", "between", "goes"),
    [
        ("temperature", "temperature_c", 80.0, 75.0, 70.0),
        ("load", "load", 0.3, 0.2, 0.14),
        ("memory", "memory_bytes", 511 << 20, 700 << 20, 1024 << 20),
        ("battery", "battery", *(Battery(percent=it, plugged=False) for it in (39.9, 45.0, 50.0))),
        ("gpu", "gpu", *(GpuUseByOthers(share=it, memory_bytes=0) for it in (0.2, 0.17, 0.15))),
    ],
)
def test_between_its_limits_it_stays_as_it_was(name: str, field: str, stops: Any, between: Any, goes: Any) -> None:
    its = policy(name)

    def forbids(value: Any, *, paused: bool) -> bool:
        return its.forbids(DeviceState(now=NOW, **{field: value}), paused=paused) is not None

    assert [forbids(it, paused=False) for it in (stops, between, goes)] == [True, False, False]
    assert [forbids(it, paused=True) for it in (stops, between, goes)] == [True, True, False]
