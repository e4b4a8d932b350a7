"""`hours`: train in some hours of the day alone, by the local clock.

The hours are those that a clock on the wall shows. On the day on which it is set forward, hours that it leaves out are
not there, and on the day on which it is set back, an hour that it shows twice counts twice.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated, ClassVar, Final
from zoneinfo import ZoneInfo

from gossip.core.errors import LocalError
from gossip.core.quiet_hours import DAY, QuietHours, parse_all
from node.participation.device_state import DeviceState, Reading

MINUTE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class LocalHours:
    """Pauses outside of these hours."""

    reads: ClassVar[tuple[Reading, ...]] = ()
    at_once: ClassVar[bool] = False

    hours: Annotated[str, "When it trains: 22:00-07:00, or several, with commas between them."] = "22:00-07:00"
    zone: Annotated[str, "The clock's time zone, such as Europe/Berlin; empty: this machine's."] = ""

    def __post_init__(self) -> None:
        """ValueError for malformed hours, or a zone that is not known."""
        try:
            self._parsed  # noqa: B018  # it is parsed here, and kept
        except LocalError:
            raise ValueError("hours are written 22:00-07:00 (24 hours), with commas between several") from None
        try:
            self._local(0.0)
        except (ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
            raise ValueError(f"the time zone {self.zone!r} is not known: {error}") from None
        except KeyError:
            raise ValueError(f"the time zone {self.zone!r} is not known: one is Europe/Berlin") from None

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return that it is not the time."""
        if self._contain(state.now):
            return None
        local = self._local(state.now)
        return f"it trains at {self.hours}, and it is {local:%H:%M}"

    def returns_at(self, state: DeviceState) -> float | None:
        """Return when its hours begin; None where they do not within two days, as a clock that is set may leave them
        out."""
        first = state.now - state.now % MINUTE_S + MINUTE_S
        minutes = (first + MINUTE_S * number for number in range(2 * DAY))
        return next((at for at in minutes if self._contain(at)), None)

    def _contain(self, now: float) -> bool:
        local = self._local(now)
        return any(each.contain(local.hour * 60 + local.minute) for each in self._parsed)

    @cached_property
    def _parsed(self) -> tuple[QuietHours, ...]:
        return parse_all(part.strip() for part in self.hours.split(","))

    def _local(self, now: float) -> datetime:
        if self.zone:
            return datetime.fromtimestamp(now, ZoneInfo(self.zone))
        return datetime.fromtimestamp(now).astimezone()
