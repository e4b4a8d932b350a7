"""`energy`: pause for the rest of the day once training has taken its energy."""

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Annotated, ClassVar, Final

from node.participation.device_state import DeviceState, Reading

KWH: Final = 3.6e6
"""Joules."""


@dataclass(frozen=True, kw_only=True)
class EnergyCap:
    """Pauses from `kwh` of a day on until midnight, local time."""

    reads: ClassVar[tuple[Reading, ...]] = ("energy",)
    at_once: ClassVar[bool] = False

    kwh: Annotated[float, "Kilowatt hours that training may take a day."] = 2.0

    def __post_init__(self) -> None:
        """ValueError where there is nothing to take."""
        if not self.kwh > 0:
            raise ValueError(f"kwh must be above 0, not {self.kwh:g}")

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return that the day's energy is used up."""
        if state.energy_j is None or state.energy_j < self.kwh * KWH:
            return None
        return f"the day's {self.kwh:g} kWh are used up"

    def returns_at(self, state: DeviceState) -> float | None:
        """Return the next midnight, local time."""
        today = datetime.fromtimestamp(state.now).date()
        return datetime.combine(today + timedelta(days=1), time()).timestamp()
