"""`load`: pause while other programs use the processor."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from node.participation.device_state import DeviceState, Reading


@dataclass(frozen=True, kw_only=True)
class OthersLoad:
    """Pauses while other processes keep the share `stop` of all cores busy, and goes on below `go`."""

    reads: ClassVar[tuple[Reading, ...]] = ("load",)
    at_once: ClassVar[bool] = False

    stop: Annotated[float, "Share of all cores, 0 to 1, from which it pauses."] = 0.3
    go: Annotated[float, "Share below which it goes on."] = 0.15

    def __post_init__(self) -> None:
        """ValueError where the limits are none."""
        if not 0 < self.go <= self.stop <= 1:
            raise ValueError(f"go ({self.go:g}) must be above 0 and not above stop ({self.stop:g}), and that at most 1")

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return that others compute."""
        if state.load is None or state.load < (self.go if paused else self.stop):
            return None
        return f"other programs keep {100 * state.load:.0f}% of the cores busy"
