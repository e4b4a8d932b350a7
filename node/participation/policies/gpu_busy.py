"""`gpu`: pause while somebody else's program, such as a game, uses the GPU."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from node.participation.device_state import DeviceState, Reading

MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class GpuBusy:
    """Pauses while one other process keeps more than a share of the GPU's time busy, or holds much of its memory. The
    defaults leave a desktop and a browser alone."""

    reads: ClassVar[tuple[Reading, ...]] = ("gpu",)
    at_once: ClassVar[bool] = True

    share: Annotated[float, "Share of the GPU's time from which it pauses."] = 0.2
    memory_mb: Annotated[float, "MiB of the GPU's memory from which it pauses."] = 1024.0
    margin: Annotated[float, "It goes on below this share of both limits."] = 0.8

    def __post_init__(self) -> None:
        """ValueError where the limits are none."""
        if not (self.share > 0 and self.memory_mb > 0 and 0 < self.margin < 1):
            raise ValueError("share and memory_mb must be above 0, and margin between 0 and 1")

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return that another program uses the GPU. It is not named: the reason is shown on pages and in logs."""
        if state.gpu is None:
            return None
        factor = self.margin if paused else 1.0
        if state.gpu.share < factor * self.share and state.gpu.memory_bytes < factor * self.memory_mb * MIB:
            return None
        used = f"{100 * state.gpu.share:.0f}% of the time, {state.gpu.memory_bytes / MIB:.0f} MiB"
        return f"another program uses the GPU ({used})"
