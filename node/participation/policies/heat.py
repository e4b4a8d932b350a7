"""`temperature`: pause where the machine gets hot."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from node.participation.device_state import DeviceState, Reading


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Pauses from `stop` degrees Celsius on, and goes on at `go` degrees."""

    reads: ClassVar[tuple[Reading, ...]] = ("temperature",)
    at_once: ClassVar[bool] = True

    stop: Annotated[float, "Degrees Celsius from which it pauses."] = 80.0
    go: Annotated[float, "Degrees Celsius down to which it cools before it goes on."] = 70.0

    def __post_init__(self) -> None:
        """ValueError where it would have to get hotter to go on."""
        if not self.go < self.stop:  # nan, too
            raise ValueError(f"go ({self.go:g}) must be below stop ({self.stop:g})")

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return that it is hot."""
        if state.temperature_c is None:
            return None
        too_hot = state.temperature_c > self.go if paused else state.temperature_c >= self.stop
        return f"it is at {state.temperature_c:.0f} C" if too_hot else None
