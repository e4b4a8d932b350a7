"""`memory`: pause where the machine's memory runs out."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from node.participation.device_state import DeviceState, Reading

MB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SpareMemory:
    """Pauses below `stop_mb` MiB of free memory, and goes on from `go_mb` MiB on. What training holds already it keeps
    while it is paused: it only takes no more."""

    reads: ClassVar[tuple[Reading, ...]] = ("memory",)
    at_once: ClassVar[bool] = True

    stop_mb: Annotated[float, "MiB of free memory below which it pauses."] = 512.0
    go_mb: Annotated[float, "MiB of free memory from which it goes on."] = 1024.0

    def __post_init__(self) -> None:
        """ValueError where the limits are none."""
        if not 0 <= self.stop_mb <= self.go_mb:
            raise ValueError(f"stop_mb ({self.stop_mb:g}) must not be below 0, nor above go_mb ({self.go_mb:g})")

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return that memory is short."""
        if state.memory_bytes is None or state.memory_bytes >= MB * (self.go_mb if paused else self.stop_mb):
            return None
        return f"{state.memory_bytes / MB:.0f} MiB of memory are free"
