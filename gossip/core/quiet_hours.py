"""Hours in which a node leaves the link to the people of the house, as "22:00-07:00" in local time."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from gossip.core.errors import LocalError

DAY: Final = 24 * 60
"""Minutes of a day."""

_HOURS: Final = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)", re.ASCII)


@dataclass(frozen=True)
class QuietHours:
    """From minute `begins` of the day until minute `ends`, which may be tomorrow's."""

    begins: int
    ends: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "22:00-07:00". Raises LocalError for anything else."""
        found = _HOURS.fullmatch(text)
        hours = [int(number) for number in found.groups()] if found else [24, 0, 24, 0]
        begins, ends = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
        if max(begins, ends) >= DAY or max(hours[1], hours[3]) >= 60 or begins == ends:
            raise LocalError(f"quiet hours are written 22:00-07:00 (24 hours, local time, not {text!r})")
        return cls(begins, ends)

    def contain(self, minute: int) -> bool:
        """Return whether this minute of the day is a quiet one."""
        if self.begins < self.ends:
            return self.begins <= minute < self.ends
        return minute >= self.begins or minute < self.ends


def parse_all(texts: Iterable[str]) -> tuple[QuietHours, ...]:
    """Parse several quiet hours. Raises LocalError."""
    return tuple(QuietHours.parse(text) for text in texts)
