"""Quiet hours by the local wall clock: the one place here that depends on the time of day."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from gossip.core.quiet_hours import parse_all

QUIET_LOOK_S: Final = 20.0
"""Seconds between two checks whether quiet hours are over: they are given to the minute, and no clock wakes a task."""


def follow_zone() -> None:
    """Take the machine's time zone as it is now: laptops travel, and C's library looks once, at the start."""
    if hasattr(time, "tzset"):  # not on Windows
        time.tzset()


def local_minute() -> int:
    """Return the minute of the day in local time."""
    follow_zone()
    now = time.localtime()
    return now.tm_hour * 60 + now.tm_min


def quiet_by(hours: Iterable[str], minute_of_day: Callable[[], int]) -> Callable[[], bool]:
    """Return a function that says whether it is a quiet hour now. Raises LocalError for malformed hours."""
    known = parse_all(hours)
    return lambda: any(each.contain(minute_of_day()) for each in known)
