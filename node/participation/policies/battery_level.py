"""`battery`: pause on a battery that gets low."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from node.participation.device_state import DeviceState, Reading


@dataclass(frozen=True, kw_only=True)
class BatteryLevel:
    """Pauses below `stop` percent on the battery, and goes on at `go` percent or on the charger."""

    reads: ClassVar[tuple[Reading, ...]] = ("battery",)
    at_once: ClassVar[bool] = True

    stop: Annotated[float, "Percent below which it pauses."] = 40.0
    go: Annotated[float, "Percent from which it goes on."] = 50.0

    def __post_init__(self) -> None:
        """ValueError where the limits are none."""
        if not 0 <= self.stop <= self.go <= 100:
            raise ValueError(f"stop ({self.stop:g}) must not be above go ({self.go:g}), and both lie in 0 to 100")

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return that the battery is low."""
        if state.battery is None or state.battery.plugged:
            return None
        if state.battery.percent >= (self.go if paused else self.stop):
            return None
        return f"the battery is at {state.battery.percent:.0f}%"
