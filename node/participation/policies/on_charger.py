"""`plugged`: train on the charger alone."""

from dataclasses import dataclass
from typing import ClassVar

from node.participation.device_state import DeviceState, Reading


@dataclass(frozen=True, kw_only=True)
class OnCharger:
    """Pauses while the machine runs on its battery."""

    reads: ClassVar[tuple[Reading, ...]] = ("battery",)
    at_once: ClassVar[bool] = True

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return that the charger is not connected."""
        return "it runs on its battery" if state.battery is not None and not state.battery.plugged else None
