"""`metered`: pause while the link to the internet is paid by volume."""

from dataclasses import dataclass
from typing import ClassVar

from node.participation.device_state import DeviceState, Reading


@dataclass(frozen=True, kw_only=True)
class MeteredLink:
    """Pauses on a metered link, as NetworkManager says. A paused node publishes no updates, and still fetches and
    serves those of others."""

    reads: ClassVar[tuple[Reading, ...]] = ("metered",)
    at_once: ClassVar[bool] = False

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return that the link is metered."""
        return "the link is metered" if state.metered else None
